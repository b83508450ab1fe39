// How a rank ends early: every wait of it looks at one shared flag, and what went wrong first is kept for the
// launcher to print.
#pragma once

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

// Records the cause unless another rank was first, tells the others to stop, ends this process.
[[noreturn, gnu::format(printf, 2, 3)]] void fail(Cause cause, const char *format, ...);
// Ends this process when the others were told to stop.
void leave_if_stopped();

} // namespace efaprof::dispatch
