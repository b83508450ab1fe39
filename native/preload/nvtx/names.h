// Names: what a handle of a domain or a registered string stands for, and which names are steps.
#pragma once

#include "abi.h"

namespace efaprof::nvtx {

struct Text {
    const char *at;
    uint64_t bytes;
};

// Wide characters as UTF-8, as much as a record can hold.
struct Narrow {
    explicit Narrow(const void *wide);
    Text text() const { return {bytes, size}; }
    char bytes[132];
    uint64_t size;
};

Text text_of(const void *ascii); // null: empty

// Remembers what a handle means. Without a handle (no other tool gave one) it makes one. The text is copied.
Handle remember(Handle handle, Text text);

// What the handle means; empty when it is not known (null: the default domain).
Text text_of_handle(Handle handle);

// Of a domain: its NAME id, 0 for the default one. Writes the NAME record when need be.
uint64_t domain_id(Handle domain);

// EFAPROF_STEP is set, and this name is all of what it matches.
void read_step_pattern();
bool is_step(uint64_t id, Text text);

} // namespace efaprof::nvtx
