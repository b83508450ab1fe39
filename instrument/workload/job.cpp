#include "job.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#include "../proxy/wait.h"

namespace efaprof::dispatch {

namespace {

struct ClockPair {
    uint64_t ticks;
    int64_t ns;
};

// The two clocks read together: of several tries the one whose reading took least.
ClockPair read_clocks() {
    ClockPair best = {};
    uint64_t least = UINT64_MAX;
    for (int i = 0; i < 16; i++) {
        timespec time;
        uint64_t before = efaprof_now();
        clock_gettime(CLOCK_MONOTONIC, &time);
        uint64_t after = efaprof_now();
        if (after - before < least) {
            least = after - before;
            best = {before + least / 2, time.tv_sec * 1000000000 + time.tv_nsec};
        }
    }
    return best;
}

} // namespace

double measure_ticks() {
    if (efaprof_clock_id() == EFAPROF_CLOCK_MONOTONIC) return 1.0;
    ClockPair first = read_clocks();
    timespec nap = {0, 20000000};
    nanosleep(&nap, nullptr);
    ClockPair second = read_clocks();
    return static_cast<double>(second.ticks - first.ticks) / static_cast<double>(second.ns - first.ns);
}

Job *make_job(const Options &options) {
    void *memory = mmap(nullptr, sizeof(Job), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) {
        perror("efaprof-dispatch: mmap");
        exit(EXIT_FAILED);
    }
    auto *job = static_cast<Job *>(memory);
    job->options = options;
    job->ticks_per_ns = measure_ticks();
    return job;
}

void meet(Job &job) {
    Barrier &barrier = job.barrier;
    uint32_t round = __atomic_load_n(&barrier.round, __ATOMIC_ACQUIRE);
    if (__atomic_add_fetch(&barrier.arrived, 1, __ATOMIC_ACQ_REL) == job.options.shape.ranks) {
        __atomic_store_n(&barrier.arrived, 0, __ATOMIC_RELAXED);
        __atomic_store_n(&barrier.round, round + 1, __ATOMIC_RELEASE);
        return;
    }
    for (Idle idle; __atomic_load_n(&barrier.round, __ATOMIC_ACQUIRE) == round;)
        idle.nothing();
}

} // namespace efaprof::dispatch
