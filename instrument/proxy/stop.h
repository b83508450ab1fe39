// How a rank ends early: every wait of it looks at one flag, and what went wrong first is kept: for the launcher to
// print where ranks are processes of ours, for the caller of the library where they are not.
#pragma once

#include <setjmp.h>
#include <stdint.h>

namespace efaprof::dispatch {

enum class Cause : uint32_t {
    None = 0,
    Refused = 1,  // the options and the provider do not fit: nothing ran
    Failed = 2,   // a call failed
    Mismatch = 3, // data did not verify
};

constexpr int EXIT_FAILED = 1;
constexpr int EXIT_REFUSED = 2;
constexpr int EXIT_STOPPED = 3; // told to stop: another rank's failure, or a signal

struct Stop {
    uint32_t stopped; // set: every rank ends at its next wait
    uint32_t taken;   // set by the first to fail, who alone writes the rest
    uint32_t written;
    Cause cause;
    uint32_t rank;
    char message[480];
};

// The shared record and this process's rank, before the first of the calls below.
void set_stop(Stop *stop, uint32_t rank);
bool is_stopped();
// For what must not be left running behind this process: called by the thread that ends it early.
void call_before_exit(void (*call)());

// Records the cause unless another rank was first, tells the others to stop, ends this process; inside `guarded` it
// ends only what is guarded.
[[noreturn, gnu::format(printf, 2, 3)]] void fail(Cause cause, const char *format, ...);
// Ends likewise when the others were told to stop.
void leave_if_stopped();
// Records the cause and tells the others, and comes back.
[[gnu::format(printf, 4, 5)]] void tell_stop(Stop &stop, uint32_t rank, Cause cause, const char *format, ...);

// Where fail() and leave_if_stopped() of this thread go, as long as it stands.
struct Guard {
    Stop *stop;
    uint32_t rank;
    Guard *outer;
    jmp_buf place;
};
Guard *&guard_of_thread();

// Calls `body`; false when it was left by fail() or leave_if_stopped(). What `body` has constructed by then is not
// destroyed: what needs that stands outside.
template <typename Body> bool guarded(Stop *stop, uint32_t rank, Body body) {
    Guard guard = {stop, rank, guard_of_thread(), {}};
    guard_of_thread() = &guard;
    bool is_through = setjmp(guard.place) == 0;
    if (is_through) body();
    guard_of_thread() = guard.outer;
    return is_through;
}

} // namespace efaprof::dispatch
