// Waiting. A thread that finds nothing to do gives its core away after a few looks: with more threads than cores
// a spinning one costs the others milliseconds a hop.
#pragma once

#include <efaprof/trace.h>

#include <sched.h>
#include <time.h>

#include "stop.h"

namespace efaprof::dispatch {

// Empty looks before a yield. A look at a word costs nanoseconds, one that asks libfabric a microsecond or more.
constexpr uint32_t WORD_LOOKS = 64, LIBRARY_LOOKS = 2;

class Idle {
public:
    explicit Idle(uint32_t looks = WORD_LOOKS) : looks_(looks) {}
    void found() { empty_ = 0; }
    void nothing() {
        polls_++;
        if (++empty_ < looks_) return;
        empty_ = 0;
        leave_if_stopped();
        sched_yield();
    }
    uint32_t polls() const { return polls_; }

private:
    uint32_t looks_;
    uint32_t empty_ = 0;
    uint32_t polls_ = 0;
};

// Returns at `due` or soon after. Sleeps through all but the last stretch, which the timer could overshoot.
inline void wait_until(uint64_t due, double ticks_per_ns) {
    constexpr double YIELD_NS = 150e3;
    for (Idle idle;; idle.nothing()) {
        uint64_t now = efaprof_now();
        if (now >= due) return;
        double left_ns = static_cast<double>(due - now) / ticks_per_ns;
        if (left_ns <= YIELD_NS) continue;
        leave_if_stopped();
        double nap_ns = left_ns - YIELD_NS < 50e6 ? left_ns - YIELD_NS : 50e6; // look at the stop flag now and then
        timespec nap = {0, static_cast<long>(nap_ns)};
        nanosleep(&nap, nullptr);
    }
}

} // namespace efaprof::dispatch
