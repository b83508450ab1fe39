// The stamps of a step's kernels as records of the common format.
#pragma once

#include "../cuda/gpu.h"
#include "../proxy/record.h"
#include "../proxy/state.h"

namespace efaprof::dispatch {

class GpuRecords {
public:
    // Steps below `warmup` do not count; those of a model of somebody else's say themselves what they are.
    GpuRecords(const Engine &engine, uint32_t warmup, bool is_model);

    // Of the next step, or of a model's next ones; all in order.
    void write(const gpu::Stamp *stamps, uint64_t mask, uint64_t first, uint64_t end);
    // After the last step, at a time of ours.
    void write_end(uint32_t steps, uint64_t now);
    // Gates that ended before what let them go, by more than nothing: the clocks' error shows.
    uint64_t violations() const { return violations_; }

private:
    void take(const gpu::Stamp &stamp);
    void mark(uint64_t time, efaprof_phase phase);
    void compute(efaprof_compute what, uint64_t end);
    void begin_phase(const gpu::Stamp &stamp, uint64_t time);
    void wait(uint64_t end, uint32_t polls);
    Release release(uint32_t first, uint32_t end) const;
    Release flushed(uint16_t &ring);
    uint64_t ticks(uint64_t gpu_ns) const { return engine_.journal->clock.ticks_at(gpu_ns); }
    // Number of a ring's command whose low half this is, at or after its head.
    uint64_t whole(uint32_t low, uint32_t proxy = 0) const;

    const Engine &engine_;
    uint32_t warmup_;
    bool is_model_;
    uint16_t kind_ = 0;                        // of a model's step
    uint32_t step_ = 0, layer_ = 0, wait_ = 0; // waits of this phase so far
    bool is_combine_ = false;
    uint64_t phases_ = 0, begin_ = 0, since_ = 0, violations_ = 0;
    uint64_t heads_[protocol::MAX_PROXIES] = {}, moves_[protocol::MAX_PROXIES] = {}; // of each ring
};

} // namespace efaprof::dispatch
