#include "loop.h"

#include <stdio.h>
#include <string.h>

#include "complete.h"
#include "issue.h"
#include "record.h"
#include "wait.h"

namespace efaprof::dispatch {

namespace {

bool is_over(const Engine &engine) {
    return __atomic_load_n(&engine.is_over, __ATOMIC_ACQUIRE) != 0;
}

void name_thread(const char *role, const Engine &engine) {
    char name[16], which[8] = "";
    if (engine.proxies > 1) snprintf(which, sizeof which, ".%u", engine.proxy & 0xFFu);
    snprintf(name, sizeof name, "%s%u%s", role, engine.rank & 0xFFu, which);
    pthread_setname_np(pthread_self(), name);
}

// Ring depth and operations in flight, when they changed, and at most every GAUGE_TICKS.
class Gauges {
public:
    explicit Gauges(const Engine &engine) {
        // Names of a process's counters: each of several rings has its own.
        char which[8] = "";
        if (engine.proxies > 1) snprintf(which, sizeof which, ".%u", engine.proxy & 0xFFu);
        snprintf(depth_name_, sizeof depth_name_, "ring.depth%s", which);
        snprintf(flight_name_, sizeof flight_name_, "ops.in_flight%s", which);
    }
    void sample(uint64_t now, int64_t depth, int64_t in_flight) {
        constexpr uint64_t GAUGE_TICKS = 200000; // 100 to 200 µs
        if (now - last_ < GAUGE_TICKS) return;
        last_ = now;
        if (depth != depth_) record_counter(depth_name_, depth_ = depth, GAUGE);
        if (in_flight != in_flight_) record_counter(flight_name_, in_flight_ = in_flight, GAUGE);
    }

private:
    char depth_name_[24], flight_name_[24];
    uint64_t last_ = 0;
    int64_t depth_ = -1, in_flight_ = -1;
};

template <typename Body> void within_stop(const Engine &engine, Body body) {
    if (engine.stop == nullptr)
        body();
    else
        guarded(engine.stop, engine.rank, body);
}

void rest(const Engine &engine) {
    constexpr timespec NAP = {0, 1000000};
    if (__atomic_load_n(&engine.is_resting, __ATOMIC_RELAXED) != 0) nanosleep(&NAP, nullptr);
}

// One thread's loop: `turn` returns what it did; an empty turn counts towards giving the core away.
template <typename DoTurn> void loop(const Engine &engine, uint32_t looks, DoTurn turn) {
    within_stop(engine, [&] {
        for (Idle idle(looks); !is_over(engine);) {
            uint64_t begin = efaprof_now();
            Turn did = turn(begin);
            if (did.commands + did.done == 0) {
                idle.nothing();
                rest(engine);
                continue;
            }
            idle.found();
            record_tick(begin, efaprof_now(), engine.ring, did);
        }
    });
}

int64_t in_flight(const Engine &engine, const Issuer &issuer) {
    return static_cast<int64_t>(issuer.posted() - protocol::load_relaxed(&engine.completions.total));
}

void *progress(void *argument) {
    auto &engine = *static_cast<Engine *>(argument);
    name_thread("proxy", engine);
    within_stop(engine, [&] {
        Issuer issuer(engine);
        Completer completer(engine);
        Gauges gauges(engine);
        loop(engine, LIBRARY_LOOKS, [&](uint64_t now) {
            uint32_t commands = issuer.turn(), done = completer.turn();
            Turn turn = {commands, 0, done, 0};
            if (commands + done != 0) {
                turn.tests = completer.take_tests();
                turn.backlog = issuer.backlog();
                gauges.sample(now, turn.backlog, in_flight(engine, issuer));
            }
            return turn;
        });
    });
    return nullptr;
}

void *issue(void *argument) {
    auto &engine = *static_cast<Engine *>(argument);
    name_thread("proxy", engine);
    within_stop(engine, [&] {
        Issuer issuer(engine);
        Gauges gauges(engine);
        loop(engine, WORD_LOOKS, [&](uint64_t now) {
            Turn turn = {issuer.turn(), 0, 0, 0};
            if (turn.commands != 0) {
                turn.backlog = issuer.backlog();
                gauges.sample(now, turn.backlog, in_flight(engine, issuer));
            }
            return turn;
        });
    });
    return nullptr;
}

void *complete(void *argument) {
    auto &engine = *static_cast<Engine *>(argument);
    name_thread("rx", engine);
    within_stop(engine, [&] {
        Completer completer(engine);
        loop(engine, LIBRARY_LOOKS, [&](uint64_t) {
            uint32_t done = completer.turn();
            return Turn{0, done != 0 ? completer.take_tests() : 0, done, 0};
        });
    });
    return nullptr;
}

} // namespace

void Threads::start(const Engine &engine, unsigned count) {
    void *(*const apart[])(void *) = {issue, complete};
    void *(*const together[])(void *) = {progress};
    unsigned of_ring = count - 1;
    for (Engine &one : engine.all()) {
        for (unsigned i = 0; i < of_ring; i++) {
            int result = pthread_create(&threads_[count_], nullptr, of_ring == 1 ? together[i] : apart[i], &one);
            if (result != 0) fail(Cause::Failed, "pthread_create: %s", strerror(result));
            count_++;
        }
    }
}

void Threads::join() {
    for (unsigned i = 0; i < count_; i++)
        pthread_join(threads_[i], nullptr);
}

} // namespace efaprof::dispatch
