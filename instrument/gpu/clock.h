// The line from a GPU's clock to ours: fitted before a run, between its steps and after it.
#pragma once

#include "../cuda/gpu.h"
#include "../proxy/journal.h"

namespace efaprof::dispatch {

class GpuClock {
public:
    explicit GpuClock(double ticks_per_ns = 1.0);

    // Two exchanges far enough apart to know the rate.
    void start(gpu::Lane *lane, ClockLine &line);
    // One more exchange; the line goes on from it. Only while nothing runs and nothing is on its way.
    void sample(ClockLine &line);
    // The last exchange was so long ago that the clocks should be compared again.
    bool is_due(uint64_t now) const { return now - last_.ticks > period_; }

    // Bound on the error of a translated time: half of what an exchange leaves open, and how far the line had gone
    // astray when the next exchange came. The largest of the run.
    uint64_t error_ns() const { return static_cast<uint64_t>(error_ns_ + 0.999); }
    double drift_ppm() const; // of the GPU's clock against the rate that was assumed at first
    uint32_t samples() const { return count_; }

private:
    struct Pair {
        uint64_t gpu_ns, ticks;
        double half_ns; // the host's clock lay within this of `ticks`
    };
    Pair exchange();

    gpu::Lane *lane_ = nullptr;
    double nominal_, rate_; // ticks per ns of the GPU's clock
    uint64_t period_;       // ticks
    Pair first_ = {}, last_ = {};
    double error_ns_ = 0;
    uint32_t count_ = 0;
};

} // namespace efaprof::dispatch
