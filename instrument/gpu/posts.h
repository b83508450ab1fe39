// What a kernel that posts by itself stamped, as records: operations from their begin to their end, and arrivals. What
// the proxies' threads note for waits (proxy/journal.h) is noted from these stamps.
#pragma once

#include "../cuda/gpu.h"
#include "../gda/queues.h"
#include "../proxy/state.h"
#include "../workload/options.h"

namespace efaprof::dispatch {

// `commands`: most whose stamps are kept at once.
gpu::Posting posting_for(const GdaQueues &queues, const Options &options, uint64_t commands);

// Ends the rank for what a kernel found wrong with what the device wrote; comes back when it is none of that.
void fail_posting(const gpu::Fault &fault);

class GpuPosts {
public:
    // `capacity` of both rings of stamps.
    GpuPosts(const Engine &engine, const gpu::PostStamp *posts, const gpu::ArrivalStamp *arrivals, uint64_t capacity);
    ~GpuPosts();
    GpuPosts(const GpuPosts &) = delete;
    GpuPosts &operator=(const GpuPosts &) = delete;

    // Commands below `head` and the first `arrivals` arrivals, as far as they have not been written; of the commands
    // below, ends that were seen by now.
    void write(uint64_t head, uint64_t arrivals);

private:
    void write_post(uint64_t number);
    bool write_end(uint64_t number);
    void write_arrival(const gpu::ArrivalStamp &stamp);
    const gpu::PostStamp &post(uint64_t number) const { return posts_[number & mask_]; }
    uint64_t ticks(uint64_t gpu_ns) const { return engine_.journal->clock.ticks_at(gpu_ns); }

    const Engine &engine_;
    const gpu::PostStamp *posts_;
    const gpu::ArrivalStamp *arrivals_;
    uint64_t mask_;
    uint64_t posted_ = 0, ended_ = 0, arrived_ = 0;         // written
    uint64_t t_last_ = 0, last_seq_ = 0, last_channel_ = 0; // of those written, the end that was seen last
    uint64_t *next_;                                        // [source][channel] sequence
    uint64_t *count_;                                       // [source][channel] signals
};

} // namespace efaprof::dispatch
