// The clock of every record: raw TSC where the kernel itself keeps time with it, else CLOCK_MONOTONIC.
#pragma once

#include <efaprof/format.h>

#define EFAPROF_LIKELY(x) __builtin_expect(!!(x), 1)
#define EFAPROF_UNLIKELY(x) __builtin_expect(!!(x), 0)

namespace efaprof {

extern uint32_t g_clock; // enum efaprof_clock, 0 until first asked

uint32_t clock_find();        // asks the kernel once; async-signal-safe
uint64_t clock_now_by_call(); // CLOCK_MONOTONIC ns, or the TSC when that is the clock after all

// Ticks now. No fence: a record's stamps order events of one thread to within the reordering window, some ns.
inline uint64_t now() {
#if defined(__x86_64__)
    if (EFAPROF_LIKELY(__atomic_load_n(&g_clock, __ATOMIC_RELAXED) == EFAPROF_CLOCK_TSC)) return __builtin_ia32_rdtsc();
#endif
    return clock_now_by_call();
}

} // namespace efaprof
