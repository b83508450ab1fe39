#include "stop.h"

#include <stdarg.h>
#include <stdio.h>
#include <unistd.h>

namespace efaprof::dispatch {

namespace {
Stop *shared = nullptr;
uint32_t own_rank = 0;
} // namespace

void set_stop(Stop *stop, uint32_t rank) {
    shared = stop;
    own_rank = rank;
}

bool is_stopped() {
    return __atomic_load_n(&shared->stopped, __ATOMIC_RELAXED) != 0;
}

void fail(Cause cause, const char *format, ...) {
    uint32_t free = 0;
    if (__atomic_compare_exchange_n(&shared->taken, &free, 1u, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE)) {
        va_list arguments;
        va_start(arguments, format);
        vsnprintf(shared->message, sizeof shared->message, format, arguments);
        va_end(arguments);
        shared->cause = cause;
        shared->rank = own_rank;
        __atomic_store_n(&shared->written, 1u, __ATOMIC_RELEASE);
    }
    __atomic_store_n(&shared->stopped, 1u, __ATOMIC_RELEASE);
    // Not exit(): other threads of this rank are inside libfabric.
    _exit(cause == Cause::Refused ? EXIT_REFUSED : EXIT_FAILED);
}

void leave_if_stopped() {
    if (is_stopped()) _exit(EXIT_STOPPED);
}

} // namespace efaprof::dispatch
