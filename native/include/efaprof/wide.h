// Stage records of our own dispatch paths into wide rows, one an operation: for analysis only, never in a recorded
// process.
//
// Chunks of whole steps are ranges of sequences in each command ring. A chunk's columns hold the operations of its
// first ring in order of sequence, then those of the next; every stage is one store into them.
#pragma once

#include <efaprof/trace.h>

#ifdef __cplusplus
extern "C" {
#endif

// From here on the process keeps the memory that it frees, as far as its allocator can: analyses take and free large
// arrays for every chunk, and pages that come back from the system have to be cleared each time.
EFAPROF_API void efaprof_keep_memory(void);
// What it kept so far goes back to the system.
EFAPROF_API void efaprof_give_back_memory(void);

// Ticks to nanoseconds: segment i holds from ticks[i] on, segment 0 also before it.
struct efaprof_clock_map {
    const int64_t *ticks, *base_ns;
    const double *slope;
    uint64_t n; // 0: ticks are nanoseconds
};

// Columns of a chunk: times of stages (int64), head and tail of the record that says what the operation is (uint64; a
// head of 0: none did), and attempts, error and depth (int16).
enum efaprof_wide_column {
    EFAPROF_WIDE_ENTER,
    EFAPROF_WIDE_PUBLISH,
    EFAPROF_WIDE_SEEN,
    EFAPROF_WIDE_FENCED,
    EFAPROF_WIDE_CALL,
    EFAPROF_WIDE_RETURN,
    EFAPROF_WIDE_DONE,
    EFAPROF_WIDE_TOLD,
    EFAPROF_WIDE_HEAD,
    EFAPROF_WIDE_TAIL,
    EFAPROF_WIDE_EAGAIN,
    EFAPROF_WIDE_ERROR,
    EFAPROF_WIDE_OUTSTANDING,
    EFAPROF_WIDE_COLUMNS
};

struct efaprof_wide {
    uint64_t chunks;
    uint64_t done;             // chunks that were handed out: records of their operations are left out
    const int32_t *ring_row;   // of each of the 65536 rings, -1: left out
    const int64_t *cuts;       // ring_row·(chunks + 1) + chunk: its first sequence
    const uint64_t *first_row; // ring_row·chunks + chunk: row of the ring's first operation in the chunk's columns
    void *const *columns;      // chunk·EFAPROF_WIDE_COLUMNS + column: null until they are there
    uint64_t *completed;       // per chunk: operations whose completion was seen
};

struct efaprof_arrivals { // room for all records of a call
    int64_t *source, *channel, *seq, *seen_ns, *end_ns, *x;
    uint64_t n;
};

struct efaprof_beside { // slots of records that are no operation's; room for as many as a call has
    uint32_t *waits, *computes;
    uint64_t waits_n, computes_n;
};

// Puts records [low, high), which begin at slots starts[i], into columns; arrivals and what stands beside are appended.
// Without starts these are slots, and records follow each other from `low` on. Returns `high` (then: or where the first
// record that is not whole begins), or the record or slot whose chunk, in *chunk, has no columns yet.
EFAPROF_API uint64_t efaprof_wide_take(const struct efaprof_wide *wide, const struct efaprof_clock_map *clock,
                                       const void *slots, const int64_t *starts, uint64_t low, uint64_t high,
                                       struct efaprof_arrivals *arrivals, struct efaprof_beside *beside,
                                       uint64_t *chunk);

// What head and tail say of each operation, -1 where there are none: and the flow that it is numbered in, below 0 for
// none.
struct efaprof_described {
    int32_t *kind, *peer, *channel;
    int64_t *bytes, *flow;
    uint8_t *is_fenced, *is_posted;
};
// `kinds`: numbers from there on name no kind of operation, and are -1 too.
EFAPROF_API void efaprof_wide_describe(const uint64_t *head, const uint64_t *tail, const int64_t *rank, uint64_t n,
                                       int32_t kinds, const struct efaprof_described *result);

// Operations of one flow are numbered in the order of their ring, and arrive under these numbers.
struct efaprof_flows;
EFAPROF_API struct efaprof_flows *efaprof_flows_open(void);
EFAPROF_API void efaprof_flows_close(struct efaprof_flows *flows);
// The next number of each row's flow, -1 where key[i] < 0. 0, -1 when out of memory.
EFAPROF_API int efaprof_flows_number(struct efaprof_flows *flows, const int64_t *key, uint64_t n, int64_t *number);
// Arrivals at the rows numbered last: their times are stored there. is_later[i] says that the row is still to come;
// what belongs to none of before is left out.
EFAPROF_API void efaprof_flows_arrive(const struct efaprof_flows *flows, const int64_t *key,
                                      const struct efaprof_arrivals *arrivals, int64_t *arrival_ns, int64_t *signal_ns,
                                      int8_t *is_held, uint8_t *is_later);

#ifdef __cplusplus
}
#endif
