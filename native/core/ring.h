// Rings: making one, taking over one that its thread left behind, giving it back.
#pragma once

#include "process.h"

namespace efaprof {

struct NameSeen {
    uint64_t id;
    uint64_t head; // of the ring when the NAME record was written
};
constexpr uint32_t kNamesSeen = 256;

// This process's side of a ring. Never freed: another thread may be reading it.
struct Ring {
    efaprof_header *header;
    unsigned char *slots;
    uint64_t capacity; // slots; 0 = only counts
    uint64_t bytes;    // of the mapping
    uint32_t generation;
    uint32_t owner; // tid of the thread that writes it, 0 = free
    Ring *next;
    NameSeen seen[kNamesSeen];
};

// A ring for the calling thread: a free one, one of a thread that died without a word, or a new one.
// NULL with errno when there is none. Blocks signals while it makes one; costs some system calls.
Ring *ring_take(Process &process, uint32_t tid);

// The calling thread will not write it any more.
void ring_release(Ring &ring);

// The header where threads without a ring count; NULL when not even that could be made.
efaprof_header *ring_overflow(Process &process, uint32_t tid);

// Lets go of the memory of all rings but those of generation `kept`; those of generation `closed` are marked as
// never written again. After a fork the rest are the parent's, which must not be touched. The addresses stay
// readable and writable, so a record that is just being written harms nobody.
void rings_forget(uint32_t kept, uint32_t closed);

void ring_set_producer(const char *producer);

} // namespace efaprof
