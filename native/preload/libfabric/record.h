// Writes the records of format.h. Lost records are counted by the core; what is held back elsewhere stays there then.
#pragma once

#include "thread.h"

#include <efaprof/format.h>

#include <rdma/fi_eq.h>
#include <stdint.h>

namespace efaprof::ofi {

inline efaprof_head head(uint64_t t_begin, uint64_t t_end, uint16_t kind, uint16_t x) {
    const uint64_t dur = t_end - t_begin;
    return {t_end, dur > UINT32_MAX ? UINT32_MAX : static_cast<uint32_t>(dur), kind, x};
}

inline uint32_t saturated32(uint64_t value) {
    return value > UINT32_MAX ? UINT32_MAX : static_cast<uint32_t>(value);
}
inline uint16_t saturated16(uint64_t value) {
    return value > UINT16_MAX ? UINT16_MAX : static_cast<uint16_t>(value);
}

void write_op(Thread &thread, const Op &op, uint64_t t_begin, uint64_t t_end, int64_t ret, uint32_t eagain,
              uint8_t nest);

// Entries that a read returned; empties of `seen` go into the first record and are zero afterwards.
struct CqRead {
    uint64_t t_begin, t_end;
    const void *entries;
    int64_t count;
    const uint64_t *sources; // null: not asked for
    uint8_t what;            // enum efaprof_cq_what
    uint8_t nest;
};
void write_cq(CqSeen &seen, const CqRead &read);
void write_cq_error(CqSeen &seen, const fi_cq_err_entry &entry, uint64_t t_begin, uint64_t t_end, uint8_t nest);
void write_idle(const CqSeen &seen);

void write_cntr(uint64_t cntr, uint8_t what, bool is_error, uint64_t value, uint64_t t_begin, uint64_t t_end);

void write_object(const efaprof_object &object);
void write_bind(uint64_t fid, uint64_t bound, uint8_t what, uint64_t flags, uint64_t t_begin, uint64_t t_end);
void write_av(uint64_t av, uint8_t what, uint64_t fi_addr, const void *address, uint32_t bytes, uint64_t t_end);

uint64_t name_of(const char *text); // NAME id; 0 for null

// NOTE records: text is `what` followed by `which`.
void note_info(const char *what, const char *which, uint64_t value);
void note_degraded(const char *what, const char *which, uint64_t value);

} // namespace efaprof::ofi
