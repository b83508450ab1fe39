// What the ranks of one run share: a mapping made before they are forked. It carries addresses and keys at the
// start, barriers at both ends and the cause of an early end; no data passes through it.
#pragma once

#include "../protocol/routing.h"
#include "../proxy/fabric.h"
#include "../proxy/stop.h"
#include "lane.h"

namespace efaprof::dispatch {

// Of the kernels of a rank on a GPU, over all counted layers.
struct GpuTimes {
    uint32_t dispatch_p50_ns, dispatch_p99_ns, combine_p50_ns, combine_p99_ns;
    uint32_t bare_dispatch_p50_ns, bare_combine_p50_ns; // of the steps without stamps, where they take turns
    uint32_t clock_error_ns, clock_samples;
    double clock_drift_ppm;
    uint64_t violations; // events that came before their cause, on the clocks as fitted
};

struct Result {
    LaneCounts lane;
    uint64_t verified; // tokens
    uint64_t checksum; // of the results, 0 where none is made
    uint64_t wall_ns;  // of the counted steps
    uint32_t threads;
    bool has_imm;
    char provider[48];
    GpuTimes gpu;
};

struct Barrier {
    uint32_t arrived;
    uint32_t round;
};

struct Job {
    Options options;
    double ticks_per_ns;
    Stop stop;
    Barrier barrier;
    Contact contacts[protocol::MAX_PROXIES][protocol::MAX_RANKS];
    Result results[protocol::MAX_RANKS];
};

Job *make_job(const Options &options);
// Returns when every rank has called it; ends the process when the run was stopped.
void meet(Job &job);

// Clock ticks in a nanosecond.
double measure_ticks();

} // namespace efaprof::dispatch
