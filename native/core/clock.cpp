#include "clock.h"

#include <cerrno>
#include <cstring>
#include <ctime>

#include "sysfile.h"

namespace efaprof {

uint32_t g_clock;

static bool kernel_keeps_time_by_tsc() {
#if defined(__x86_64__)
    char text[32];
    const size_t got =
        read_whole("/sys/devices/system/clocksource/clocksource0/current_clocksource", text, sizeof text);
    return got >= 3 && memcmp(text, "tsc", 3) == 0 && (got == 3 || text[3] == '\n');
#else
    return false;
#endif
}

uint32_t clock_find() {
    uint32_t clock = __atomic_load_n(&g_clock, __ATOMIC_RELAXED);
    if (clock == 0) {
        const int saved = errno;
        clock = kernel_keeps_time_by_tsc() ? EFAPROF_CLOCK_TSC : EFAPROF_CLOCK_MONOTONIC;
        __atomic_store_n(&g_clock, clock, __ATOMIC_RELAXED); // every thread finds the same
        errno = saved;
    }
    return clock;
}

uint64_t clock_now_by_call() {
#if defined(__x86_64__)
    if (clock_find() == EFAPROF_CLOCK_TSC) return __builtin_ia32_rdtsc();
#endif
    timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    return static_cast<uint64_t>(at.tv_sec) * 1000000000u + static_cast<uint64_t>(at.tv_nsec);
}

} // namespace efaprof
