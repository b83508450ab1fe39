// The hot path, inline. Libraries that compile the core in include this; others use the C functions of trace.h.
//
// One thread writes one ring. Its state is thread-local (initial-exec), so no step needs a lock; what guards it
// is `busy`, against signal handlers of the same thread: a record begun while another one is open on this thread is not
// written but counted (nested). Everything is ordered so that a signal may arrive between any two instructions.
#pragma once

#include <efaprof/trace.h>

#include "clock.h"
#include "process.h"
#include "ring.h"

namespace efaprof {

struct State {
    uint32_t busy;       // between reserve and publish, and in every slow path
    uint32_t generation; // of the process page when the ring was taken; 0 = never
    uint64_t head;       // next slot; ahead of header->head only while a pad waits for its record
    uint64_t edge;       // slots before this one may be written without asking: end of the lap, or of free room
    uint64_t mask;       // capacity - 1
    unsigned char *slots;
    efaprof_header *header; // of the ring; NULL = this thread has none
    Ring *ring;
    uint64_t limit;    // last known tail + capacity
    uint64_t nested;   // not yet in any header
    uint64_t failed;   // not yet in any header
    uint32_t announce; // the THREAD record of this claim is still to be written
    uint32_t waits;    // records to lose before trying for a ring again
};

extern __thread State t_state __attribute__((tls_model("initial-exec")));

void *reserve_slow(State &s, uint32_t slots); // busy is set; clears it when it returns NULL
void *reserve_nested(State &s);
void publish_lost(State &s);

// Atomic stores, so that the compiler keeps the moment between two records in which a handler may write.
inline void enter(State &s) {
    __atomic_store_n(&s.busy, 1u, __ATOMIC_RELAXED);
    __atomic_signal_fence(__ATOMIC_SEQ_CST);
}

inline void leave(State &s) {
    __atomic_signal_fence(__ATOMIC_SEQ_CST);
    __atomic_store_n(&s.busy, 0u, __ATOMIC_RELAXED);
}

inline void *reserve(uint32_t slots) {
    State &s = t_state;
    if (EFAPROF_UNLIKELY(__atomic_load_n(&s.busy, __ATOMIC_RELAXED) != 0)) return reserve_nested(s);
    enter(s);
    const Process *process = process_now();
    const bool ready = s.head + slots <= s.edge && process->generation == s.generation && slots != 0;
    if (EFAPROF_UNLIKELY(!ready)) return reserve_slow(s, slots);
    return s.slots + (s.head & s.mask) * EFAPROF_SLOT_BYTES;
}

inline void publish(void *, uint32_t slots) {
    State &s = t_state;
    __atomic_signal_fence(__ATOMIC_SEQ_CST);
    const Process *process = process_now();
    if (EFAPROF_UNLIKELY(process->generation != s.generation)) return publish_lost(s);
    s.head += slots;
    __atomic_store_n(&s.header->head, s.head, __ATOMIC_RELEASE);
    leave(s);
}

// Are records wanted? Objects and names are written while paused too: later records refer to them.
inline bool recording() {
    const Process *process = process_now();
    if (EFAPROF_UNLIKELY(process->generation == 0)) {
        process = process_find();
        if (process == nullptr) return false;
    }
    return process->recording != 0 && __atomic_load_n(process->paused, __ATOMIC_RELAXED) == 0 &&
           __atomic_load_n(&efaprof_here.stopped, __ATOMIC_RELAXED) == 0;
}

inline uint64_t *paused_at(const Process &process) {
    return reinterpret_cast<uint64_t *>(process.paused + 2);
}

// Was what happened at this time wanted? For what is told late: recording may have ended since.
inline bool wanted_at(uint64_t ticks) {
    const Process *process = process_now();
    if (process->recording == 0) return false;
    const uint32_t paused = __atomic_load_n(process->paused, __ATOMIC_ACQUIRE);
    if (paused == EFAPROF_PAUSE_WARM_UP) return false;
    if (paused != EFAPROF_PAUSE_NONE && ticks >= __atomic_load_n(paused_at(*process), __ATOMIC_RELAXED)) return false;
    return __atomic_load_n(&efaprof_here.stopped, __ATOMIC_ACQUIRE) == 0 ||
           ticks < __atomic_load_n(&efaprof_here.stopped_at, __ATOMIC_RELAXED);
}

uint64_t name(const char *text, uint64_t bytes);

} // namespace efaprof
