// What the calls of the C interfaces have in common: a failure inside becomes a result and a line of text.
#pragma once

#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <sys/mman.h>

#include <new>

#include "../proxy/stop.h"
#include "../workload/lane.h"
#include "options.h"

namespace efaprof::dispatch {

// One rank behind a C interface: `Rank` has stop() and the engine's number.
template <typename Rank> struct Handle {
    Rank rank;
    char provider[PROVIDER_BYTES];
    char error[640];

    [[gnu::format(printf, 2, 3)]] int refuse(const char *format, ...) {
        va_list arguments;
        va_start(arguments, format);
        vsnprintf(error, sizeof error, format, arguments);
        va_end(arguments);
        return EFAPROF_MOE_REFUSED;
    }

    template <typename Body> int call(Body body) {
        Stop &stop = rank.stop();
        error[0] = 0;
        if (__atomic_load_n(&stop.stopped, __ATOMIC_ACQUIRE) != 0) return stopped();
        return guarded(&stop, rank.engine().rank, body) ? EFAPROF_MOE_OK : stopped();
    }

    // What stopped the rank, as the caller reads it.
    int stopped() {
        const Stop &stop = rank.stop();
        while (__atomic_load_n(&stop.taken, __ATOMIC_ACQUIRE) != 0 &&
               __atomic_load_n(&stop.written, __ATOMIC_ACQUIRE) == 0)
            sched_yield();
        snprintf(error, sizeof error, "rank %u: %s%s", stop.rank,
                 stop.cause == Cause::Mismatch ? "data does not verify: " : "", stop.message);
        return stop.cause == Cause::Refused ? EFAPROF_MOE_REFUSED : EFAPROF_MOE_FAILED;
    }
};

// Opens a handle of type `Made`; null when it cannot be had: then `error` says why.
template <typename Made, typename Open>
Made *open_handle(const efaprof_moe_options *asked, const char *fault, int *result, char *error, size_t error_bytes,
                  Open open, void (*close)(Made *)) {
    *result = EFAPROF_MOE_REFUSED;
    if (fault != nullptr) {
        snprintf(error, error_bytes, "%s", fault);
        return nullptr;
    }
    // Zeroed, and aligned as the engine's words want it.
    void *memory = mmap(nullptr, sizeof(Made), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) {
        *result = EFAPROF_MOE_FAILED;
        snprintf(error, error_bytes, "out of memory");
        return nullptr;
    }
    auto *made = new (memory) Made();
    snprintf(made->provider, sizeof made->provider, "%s", asked->provider);
    Options options = options_of(*asked, made->provider);
    *result = made->call([&] { open(made->rank, options); });
    if (*result == EFAPROF_MOE_OK) return made;
    snprintf(error, error_bytes, "%s", made->error);
    close(made);
    return nullptr;
}

template <typename Made> void close_handle(Made *made) {
    if (made == nullptr) return;
    if (made->rank.is_connected()) made->call([&] { made->rank.part(); }); // a failure changes nothing any more
    made->rank.close();
    made->~Made();
    munmap(made, sizeof *made);
}

inline void write_counts(const LaneCounts &all, uint64_t counts[4]) {
    counts[0] = all.puts;
    counts[1] = all.notifies;
    counts[2] = all.signals;
    counts[3] = all.barriers;
}

} // namespace efaprof::dispatch
