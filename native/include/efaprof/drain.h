// Moving rings to disk: the recording parent's side. One drain per run, used by one thread.
#pragma once

#include <efaprof/trace.h>

#ifdef __cplusplus
extern "C" {
#endif

struct efaprof_drain;

struct efaprof_drain_stats {
    uint64_t rings;        // rings ever seen
    uint64_t live_rings;   // rings whose process still runs
    uint64_t slots;        // slots written to raw files
    uint64_t dropped;      // records that producers could not write (full ring, nested, failed)
    uint64_t discarded;    // slots given up: --max-size reached (oldest first)
    uint64_t write_errors; // pwrite failures; the slots stay in the ring and are tried again
    uint64_t bad_rings;    // files in the ring directory whose header cannot be trusted
    uint64_t fullest;      // per mille: fill of the fullest ring at this poll, before copying
    int32_t last_errno;    // of the last write error
    int32_t reserved;
};

// Rings are looked for in ring_dir and spill_dir; raw files go to raw_dir. max_bytes bounds the raw files
// together (0: no bound). NULL on failure, errno set.
EFAPROF_API struct efaprof_drain *efaprof_drain_open(const char *ring_dir, const char *spill_dir, const char *raw_dir,
                                                     uint64_t max_bytes);
// Copies what is there. all = 0: only rings over a quarter full (call this every few ms); all = 1: everything.
// Looks for new rings each time. 0, or -1 when something could not be written (see stats).
EFAPROF_API int efaprof_drain_poll(struct efaprof_drain *drain, int all, struct efaprof_drain_stats *stats);
// Copies everything, then removes the rings of ended processes, and both directories when they are empty.
EFAPROF_API int efaprof_drain_close(struct efaprof_drain *drain, struct efaprof_drain_stats *stats);

// Nanoseconds that one record of a call costs here (two stamps, 64 bytes): median over a millisecond. By one thread of
// the process at a time; records that a signal handler of that thread would write meanwhile are lost.
EFAPROF_API double efaprof_event_cost_ns(void);

// ---- reading ----------------------------------------------------------------------------------
struct efaprof_index_result {
    uint64_t records;   // starts written
    uint64_t next;      // slot where to go on
    uint64_t bad_slots; // slots that belong to no record (first bad slot to the end of what was given)
    uint64_t pads;      // slots in PAD records
};
// Walks records from slot 0 of `slots` (n slots), at most `max` of them: starts[i] = slot index. Stops before a
// record that is not whole. Never reads outside the n slots.
EFAPROF_API void efaprof_index(const void *slots, uint64_t n, uint32_t *starts, uint64_t max,
                               struct efaprof_index_result *result);

struct efaprof_heads_result {
    int64_t least_step;             // smallest difference between consecutive times; INT64_MAX with fewer than two
    int64_t first, last;            // smallest and largest time
    int64_t begin, before_end, end; // times of the first record, of the last but one, and of the last
    uint64_t shapes[256];           // records of each
};
// The same walk, and of each record where it begins, its kind and its time; there is room for n of each, or all three
// are NULL.
EFAPROF_API void efaprof_heads(const void *slots, uint64_t n, int64_t *places, uint16_t *kinds, int64_t *t_end,
                               struct efaprof_index_result *index, struct efaprof_heads_result *result);

#ifdef __cplusplus
}
#endif
