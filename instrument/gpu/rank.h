// The steps of a rank whose kernels run on a GPU.
#pragma once

#include "../workload/job.h"
#include "lane.h"

namespace efaprof::dispatch {

class GpuSteps {
public:
    // Everything that takes time: the library's kernels are loaded, memory is pinned, the step's graph is made.
    // `queues`: the kernels post to them by themselves; null: proxies do.
    GpuSteps(Engine &engine, const Job &job, const GdaQueues *queues);
    ~GpuSteps();
    GpuSteps(const GpuSteps &) = delete;
    GpuSteps &operator=(const GpuSteps &) = delete;

    // Returns the wall time of the counted steps, in ticks.
    uint64_t run();
    // For steps that ended early: tells the kernels to end, and gives them some time to.
    void stop() const { lane_.stop(); }
    LaneCounts counts() const { return lane_.counts(); }
    uint64_t verified() const { return lane_.done().verified; }
    GpuTimes times() const;

private:
    struct Spread {
        uint32_t p50, p99; // ns
    };
    Spread spread(uint32_t phase, uint32_t first, uint32_t stride) const;
    GpuLane::Reach reach() const;
    void run_step(uint32_t step);
    void wait_done(uint32_t step);
    void check_fault() const;
    void check_sample(uint32_t step) const;
    void check_arrived(uint32_t step, uint32_t src) const;
    void keep_spans(uint32_t step);
    void write_records();
    void compare_clocks();
    [[noreturn]] void say(const gpu::Fault &fault) const;

    Engine &engine_;
    const Job &job_;
    const Options &options_;
    const gpu::Api &gpu_;
    GpuLane lane_;
    uint32_t *durations_[2]; // [dispatch, combine][step · layers + layer] ns, of counted steps
};

} // namespace efaprof::dispatch
