// A queue pair that is its own peer: what one poster, or several, do to a device.
#pragma once

#include "queue_pair.h"

namespace efaprof::dispatch {

struct LoopOptions {
    QueueSource source;
    size_t bytes; // of memory, which the device may write and read
    uint32_t send_entries, completion_entries;
};

// One that has seen an error is not used again.
class Loop {
public:
    explicit Loop(const LoopOptions &options);
    ~Loop();
    Loop(const Loop &) = delete;
    Loop &operator=(const Loop &) = delete;

    GdaQueues &queues() { return pair_.queues(); }
    uint8_t *memory() { return memory_; }
    const char *source() const { return pair_.source_name(); }

    // For one poster.
    softefa_wqe write_of(uint32_t from, uint32_t to, uint32_t bytes, uint16_t id);
    void post(const softefa_wqe &wqe);
    // False when nothing comes for so many ticks.
    bool next(protocol::Completion &found, double patience);

private:
    size_t bytes_;
    uint8_t *memory_ = nullptr;
    Fabric fabric_;
    GdaQueuePair pair_;
};

} // namespace efaprof::dispatch
