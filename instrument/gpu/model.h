// A rank of somebody else's model whose kernels are ours: engine, proxy threads, lane and clock.
#pragma once

#include "../engine/peers.h"
#include "../gda/queue_pair.h"
#include "../proxy/loop.h"
#include "../workload/lane.h"
#include "../workload/options.h"
#include "clock.h"
#include "lane.h"
#include "records.h"

namespace efaprof::dispatch {

class GpuModel {
public:
    // All of these may fail() and are called guarded by `stop`.
    void open(const Options &options, uint32_t rank, uint32_t device);
    void contact(void *bytes) const;
    void connect(const void *contacts);
    void begin_step(uint32_t step, uint32_t kind, void *stream);
    void end_step(void *stream);
    void dispatch(const gpu::DispatchCall &call, void *stream);
    void combine(const gpu::CombineCall &call, void *stream);
    // Lets the peers come to their end too, after everything that was launched.
    void part();
    // Not guarded, last: ends the threads and gives everything back.
    void close();

    Stop &stop() { return stop_; }
    const Options &options() const { return options_; }
    const Engine &engine() const { return engine_; }
    bool is_connected() const { return lane_.is_open(); }
    LaneCounts counts() const { return lane_.counts(); }

private:
    bool is_posting() const { return options_.path == Path::Gdaki; }
    void look();
    void write_records();
    bool is_quiet();

    Options options_;
    uint32_t device_ = 0;
    double ticks_per_ns_ = 0;
    uint32_t thread_count_ = 0;
    Stop stop_ = {};
    Engine engine_ = {};
    GdaQueuePair pair_; // where the kernels post by themselves
    Threads threads_;
    bool has_threads_ = false;
    PeerWatch watch_;
    GpuLane lane_;
    uint64_t stamps_read_ = 0, ended_ = 0; // steps whose end was launched
    uint32_t step_ = 0;
};

} // namespace efaprof::dispatch
