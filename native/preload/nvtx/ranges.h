// Open ranges: those of a thread, which nest in each domain, and those of the process, which have an id.
#pragma once

#include "abi.h"

namespace efaprof::nvtx {

// What an event says of itself, with its name's id.
struct Said {
    uint64_t name;
    uint64_t payload;
    uint32_t category;
    uint8_t payload_type;
    bool is_step;
};

void mark(Handle domain, const Said &said);

// The nesting level in its domain of the range that begins or ended, as NVTX numbers it; -1: none was open.
int push(Handle domain, const Said &said);
int pop(Handle domain);

// Begins a range of the process. id 0: no other tool gave one, so it is ours.
RangeId start(RangeId id, Handle domain, const Said &said);
void end(RangeId id);
inline bool is_own(RangeId id) {
    return id >> 48 == 0xefa0;
}

} // namespace efaprof::nvtx
