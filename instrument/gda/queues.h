// What a lane that posts by itself needs of a queue pair, wherever it was made: plain addresses and numbers.
#pragma once

#include "../protocol/wqe.h"

namespace efaprof::dispatch {

struct GdaQueues {
    protocol::SendQueue send;
    protocol::CqWatch completions;
    protocol::CounterWatch counter;  // `done` is null: the device has no counters, or nobody asked
    const protocol::Target *targets; // [rank]
    uint64_t base;                   // address of the registered memory, as the device knows it
    uint32_t lkey;
    uint16_t qpn;
    bool is_unsolicited; // an arrival with an immediate takes no receive
};

// What the device says of an operation that it did not carry out.
const char *status_name(uint8_t status);

} // namespace efaprof::dispatch
