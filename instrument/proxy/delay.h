// Injected delays (`--inject LAYER=DURATION`): by due times. Whoever waits for a due time goes on serving
// everything else meanwhile; nothing burns a core to look slow.
#pragma once

#include <stdint.h>
#include <stdlib.h>

#include "stop.h"

namespace efaprof::dispatch {

// Ticks added to one operation's time in each layer; 0 = none.
struct Delays {
    uint64_t kernel;    // the lane waits before it publishes
    uint64_t ring;      // a command is visible only so long after its push: all of them at once
    uint64_t proxy;     // one operation at a time
    uint64_t libfabric; // one operation at a time, inside the call's stamps
    uint64_t nic;       // completions and arrivals are seen only so much later: all of them at once
    uint64_t rx;        // one arrival at a time
};

// First in, first out, each entry with the time at which it may go on. Capacity: a power of two.
template <typename Entry> class DueQueue {
public:
    explicit DueQueue(uint64_t capacity)
        : entries_(static_cast<Due *>(calloc(capacity, sizeof(Due)))), capacity_(capacity) {
        if (entries_ == nullptr) fail(Cause::Failed, "out of memory");
    }
    ~DueQueue() { free(entries_); }
    DueQueue(const DueQueue &) = delete;
    DueQueue &operator=(const DueQueue &) = delete;

    uint64_t room() const { return capacity_ - (tail_ - head_); }
    bool is_empty() const { return head_ == tail_; }
    void push(uint64_t due, const Entry &entry) { entries_[tail_++ & (capacity_ - 1)] = {due, entry}; }
    bool is_due(uint64_t now) const { return !is_empty() && entries_[head_ & (capacity_ - 1)].due <= now; }
    const Entry &front() const { return entries_[head_ & (capacity_ - 1)].entry; }
    void pop() { head_++; }

private:
    struct Due {
        uint64_t due;
        Entry entry;
    };
    Due *entries_;
    uint64_t capacity_;
    uint64_t head_ = 0, tail_ = 0;
};

} // namespace efaprof::dispatch
