#include "stop.h"

#include <stdarg.h>
#include <stdio.h>
#include <unistd.h>

namespace efaprof::dispatch {

namespace {

Stop *shared = nullptr;
uint32_t own_rank = 0;
thread_local Guard *innermost = nullptr;
void (*before_exit)() = nullptr;

Stop *stop_here() {
    return innermost == nullptr ? shared : innermost->stop;
}

// The first to fail is the one who says why.
void write_cause(Stop &stop, uint32_t rank, Cause cause, const char *format, va_list arguments) {
    uint32_t free = 0;
    if (__atomic_compare_exchange_n(&stop.taken, &free, 1u, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE)) {
        vsnprintf(stop.message, sizeof stop.message, format, arguments);
        stop.cause = cause;
        stop.rank = rank;
        __atomic_store_n(&stop.written, 1u, __ATOMIC_RELEASE);
    }
    __atomic_store_n(&stop.stopped, 1u, __ATOMIC_RELEASE);
}

[[noreturn]] void leave(int code) {
    if (innermost != nullptr) longjmp(innermost->place, 1);
    if (before_exit != nullptr) before_exit();
    _exit(code); // not exit(): other threads of this rank are inside libfabric
}

} // namespace

void set_stop(Stop *stop, uint32_t rank) {
    shared = stop;
    own_rank = rank;
}

void call_before_exit(void (*call)()) {
    before_exit = call;
}

Guard *&guard_of_thread() {
    return innermost;
}

bool is_stopped() {
    return __atomic_load_n(&stop_here()->stopped, __ATOMIC_RELAXED) != 0;
}

void fail(Cause cause, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    write_cause(*stop_here(), innermost == nullptr ? own_rank : innermost->rank, cause, format, arguments);
    va_end(arguments);
    leave(cause == Cause::Refused ? EXIT_REFUSED : EXIT_FAILED);
}

void tell_stop(Stop &stop, uint32_t rank, Cause cause, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    write_cause(stop, rank, cause, format, arguments);
    va_end(arguments);
}

void leave_if_stopped() {
    if (is_stopped()) leave(EXIT_STOPPED);
}

} // namespace efaprof::dispatch
