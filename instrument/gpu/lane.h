// A lane on a GPU as its rank's process sees it: opened over an engine's memory, its clock fitted, its stamps read.
#pragma once

#include "../cuda/gpu.h"
#include "../proxy/state.h"
#include "../workload/lane.h"
#include "../workload/options.h"
#include "clock.h"
#include "library.h"
#include "posts.h"
#include "records.h"

namespace efaprof::dispatch {

class GpuLane {
public:
    // What the records must be able to look back at: phases, and commands, of what has not been written down yet.
    struct Reach {
        uint64_t phases, commands;
    };
    // What follows from engine and options; the caller fills in the rest.
    static gpu::Setup setup_for(const Engine &engine, const Options &options, uint32_t device);
    void open(Engine &engine, const gpu::Setup &setup, double ticks_per_ns, const Reach &reach, uint32_t warmup);
    void close();
    bool is_open() const { return lane_ != nullptr; }

    gpu::Lane *lane() const { return lane_; }
    const gpu::StepDone &done() const { return *gpu_library().done(lane_); }
    LaneCounts counts() const;

    void start_clock() {
        clock_.start(lane_, journals_[0].clock);
        share_clock();
    }
    bool is_clock_due(uint64_t now) const { return clock_.is_due(now); }
    // Only once everything has completed: a command on its way would have its stages on two lines.
    bool has_completed() const {
        return completed() == done().head; // where kernels post: as of their last look
    }
    uint64_t completed() const;
    // Kernels that post by themselves look until everything has ended; what they saw is written down.
    void settle();
    void compare_clocks() {
        clock_.sample(journals_[0].clock);
        share_clock();
    }

    // Writes down the stamps that have not been read yet, up to this number.
    void write_records(uint64_t end);
    uint64_t stamps_read() const { return stamps_read_; }
    void write_end(uint32_t steps, uint64_t now) { records_->write_end(steps, now); }
    // What the clocks were found to do, after everything else.
    void note_clock() const;
    const GpuClock &clock() const { return clock_; }
    uint64_t violations() const;

    // Ends the kernels and waits for a while.
    void stop() const;

private:
    void make_journal(Engine &engine, const Reach &reach, double ticks_per_ns);
    void share_clock();
    void describe(uint32_t device) const;

    Engine *engine_ = nullptr;
    gpu::Lane *lane_ = nullptr;
    Journal journals_[protocol::MAX_PROXIES] = {}; // of each ring
    GpuRecords *records_ = nullptr;
    GpuPosts *posts_ = nullptr; // where kernels post by themselves
    bool is_posting_ = false;
    GpuClock clock_;
    uint64_t stamp_mask_ = 0, stamps_read_ = 0;
    bool has_stamps_ = false;
};

} // namespace efaprof::dispatch
