// Writing records. One ring per thread, made at the thread's first record; nothing here blocks, and no
// call fails: what cannot be recorded is counted in the ring's header (or nowhere, when there is no ring).
//
// Every call may be made from signal handlers, key destructors, exit handlers and forked children, and leaves errno
// as it was. A record begun by a handler inside another record of its thread is counted as nested, not written. A
// record begun after our own key destructor takes a ring again. A handler that leaves by siglongjmp between reserve
// and publish ends its thread's recording: all later records count as nested.
#pragma once

#include <efaprof/format.h>

#ifdef __cplusplus
extern "C" {
#endif

// A function and a struct may share a name (efaprof_name, efaprof_counter): C++ says so, and that is all.
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wshadow"

// Libraries that compile the core in (efaprof_core sets EFAPROF_STATIC) keep these names to themselves.
#ifdef EFAPROF_STATIC
#define EFAPROF_API __attribute__((visibility("hidden")))
#else
#define EFAPROF_API __attribute__((visibility("default")))
#endif

// High 16 bits: version of this interface; low 16 bits: EFAPROF_FORMAT_VERSION.
#define EFAPROF_ABI_VERSION 2u
EFAPROF_API uint32_t efaprof_abi(void);

// Clock in ticks: raw TSC where the kernel's clocksource is tsc, else CLOCK_MONOTONIC ns.
EFAPROF_API uint64_t efaprof_now(void);
EFAPROF_API uint32_t efaprof_clock_id(void);

// Says which library writes ("fi", "parent", "workload"): at most 15 bytes, before the first record.
EFAPROF_API void efaprof_set_producer(const char *producer);

// Room for one record of `slots` slots in this thread's ring, or NULL when it will not be recorded. Every
// non-NULL result must be given to efaprof_publish with the same count, on the same thread.
EFAPROF_API void *efaprof_reserve(uint32_t slots);
EFAPROF_API void efaprof_publish(void *record, uint32_t slots);

// Id of a name (FNV-1a 64 of at most EFAPROF_NAME_MAX bytes); writes a NAME record when this thread has not
// written it lately. Not between reserve and publish.
EFAPROF_API uint64_t efaprof_name(const char *text, uint64_t bytes);

// 1 while records are wanted (EFAPROF_RING_DIR is set, recording is neither paused nor stopped).
EFAPROF_API int efaprof_recording(void);

// Stops and resumes in every process of the run (efaprof_recording turns 0 and 1), without counting what is not
// recorded meanwhile. Object, name and other control records should be written all the same.
enum efaprof_pause_state {
    EFAPROF_PAUSE_NONE = 0,
    EFAPROF_PAUSE_ASKED = 1,
    EFAPROF_PAUSE_WARM_UP = 2, // until a process of the run has begun more than EFAPROF_WARMUP_STEPS steps
    EFAPROF_PAUSE_OVER = 3,    // EFAPROF_STEPS steps after that have ended
};
EFAPROF_API void efaprof_pause(int paused);
EFAPROF_API uint32_t efaprof_paused(void);      // enum efaprof_pause_state
EFAPROF_API uint32_t efaprof_steps_begun(void); // by one process of the run, the most of any

// Stops and resumes in this process alone, in all our libraries that it has loaded.
EFAPROF_API void efaprof_stop(int stopped);

// Annotations: what a program says of its own time. A stretch begins with the time that its end is given; `what` is
// EFAPROF_SPAN_RANGE or EFAPROF_SPAN_STEP; category and payload are those of a RANGE record. Steps that no other step
// of their thread encloses are counted, for EFAPROF_WARMUP_STEPS and EFAPROF_STEPS.
EFAPROF_API uint64_t efaprof_begin(uint32_t what, const char *text, uint64_t bytes);
EFAPROF_API void efaprof_end(uint64_t t_begin, uint32_t what, const char *text, uint64_t bytes, uint32_t category,
                             uint64_t payload);

// Reads the environment again at the next record and makes new rings; the process's rings so far are never
// written again. For a process that records more than once, or stops (unset EFAPROF_RING_DIR first). Not while
// another thread is writing its first record.
EFAPROF_API void efaprof_restart(void);

// Writes one CLOCK record: (ticks, MONOTONIC, REALTIME) read as close together as possible.
EFAPROF_API void efaprof_sample_clock(void);
// Writes one COUNTER record. what: 1 monotone count, 2 gauge.
EFAPROF_API void efaprof_counter(const char *name, uint64_t bytes, int64_t value, uint32_t what);

#pragma GCC diagnostic pop

#ifdef __cplusplus
}
#endif
