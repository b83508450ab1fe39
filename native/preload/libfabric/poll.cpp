// Completion queues and counters. A read that finds nothing is only counted: no clock, no record.
#include "record.h"
#include "table.h"
#include "tables.h"

#include <rdma/fi_eq.h>
#include <rdma/fi_errno.h>

namespace efaprof::ofi {
namespace {

constexpr uint32_t kMostEmpties = 1u << 20; // then the count is written: no more are lost with a killed process

inline void count_empty(Thread &thread, const fid_cq *cq, uint8_t nest) {
    if (__builtin_expect(!recording(), 0)) return;
    CqSeen &seen = cq_seen(thread, address(cq));
    seen.nest = nest;
    if (__builtin_expect(++seen.empties == kMostEmpties, 0)) {
        write_idle(seen);
        seen.empties = 0;
    }
}

__attribute__((noinline)) void got(Thread &thread, const fid_cq *cq, const CqRead &read) {
    if (recording()) write_cq(cq_seen(thread, address(cq)), read);
}

template <uint8_t What> struct Read {
    template <class... From> // fi_addr_t * or nothing
    static ssize_t run(ssize_t (*real)(fid_cq *, void *, size_t, From...), fid_cq *cq, void *buf, size_t count,
                       From... from) {
        Call call(cq);
        if (!call) return real(cq, buf, count, from...);
        const ssize_t ret = real(cq, buf, count, from...);
        call.leave();
        if (__builtin_expect(ret == -FI_EAGAIN, 1)) {
            count_empty(call.thread(), cq, call.nest());
        } else if (ret > 0) {
            const fi_addr_t *sources = nullptr;
            ((sources = from), ...);
            const uint64_t t = now();
            got(call.thread(), cq, {t, t, buf, ret, sources, What, call.nest()});
        }
        return ret;
    }
};

template <uint8_t What, class... From> struct WaitingRead {
    static ssize_t run(ssize_t (*real)(fid_cq *, void *, size_t, From..., const void *, int), fid_cq *cq, void *buf,
                       size_t count, From... from, const void *cond, int timeout) {
        Call call(cq);
        if (!call) return real(cq, buf, count, from..., cond, timeout);
        const uint64_t t_begin = now();
        const ssize_t ret = real(cq, buf, count, from..., cond, timeout);
        call.leave();
        if (ret == -FI_EAGAIN) {
            count_empty(call.thread(), cq, call.nest());
        } else if (ret > 0) {
            const fi_addr_t *sources = nullptr;
            ((sources = from), ...);
            got(call.thread(), cq, {t_begin, now(), buf, ret, sources, What, call.nest()});
        }
        return ret;
    }
};

struct ReadErr {
    static ssize_t run(ssize_t (*real)(fid_cq *, fi_cq_err_entry *, uint64_t), fid_cq *cq, fi_cq_err_entry *entry,
                       uint64_t flags) {
        Call call(cq);
        if (!call) return real(cq, entry, flags);
        const uint64_t t_begin = now();
        const ssize_t ret = real(cq, entry, flags);
        call.leave();
        if (ret > 0 && recording())
            write_cq_error(cq_seen(call.thread(), address(cq)), *entry, t_begin, now(), call.nest());
        return ret;
    }
};

// A value that this thread has not recorded last.
void note_value(Thread &thread, const fid_cntr *cntr, uint8_t what, bool is_error, uint64_t value, uint64_t t_begin) {
    if (!recording()) return;
    CntrSeen &seen = cntr_seen(thread, address(cntr));
    if (__builtin_expect(seen.known[is_error] && seen.value[is_error] == value, 1)) return;
    const uint64_t t_end = now();
    seen.known[is_error] = true;
    seen.value[is_error] = value;
    write_cntr(address(cntr), what, is_error, value, t_begin ? t_begin : t_end, t_end);
}

template <bool IsError> struct CntrRead {
    static uint64_t run(uint64_t (*real)(fid_cntr *), fid_cntr *cntr) {
        Call call(cntr);
        if (!call) return real(cntr);
        const uint64_t value = real(cntr);
        call.leave();
        note_value(call.thread(), cntr, EFAPROF_CNTR_READ, IsError, value, 0);
        return value;
    }
};

// After a wait the counter is at its threshold or beyond; reading it to know would be a call that the program did not
// make.
struct CntrWait {
    static int run(int (*real)(fid_cntr *, uint64_t, int), fid_cntr *cntr, uint64_t threshold, int timeout) {
        Call call(cntr);
        if (!call) return real(cntr, threshold, timeout);
        const uint64_t t_begin = now();
        const int ret = real(cntr, threshold, timeout);
        call.leave();
        if (ret == 0) note_value(call.thread(), cntr, EFAPROF_CNTR_WAIT, false, threshold, t_begin);
        return ret;
    }
};

const Hook cq_hooks[] = {
    EFAPROF_HOOK(fi_ops_cq, read, Read<EFAPROF_CQ_READ>),
    EFAPROF_HOOK(fi_ops_cq, readfrom, Read<EFAPROF_CQ_READFROM>),
    EFAPROF_HOOK(fi_ops_cq, readerr, ReadErr),
    EFAPROF_HOOK(fi_ops_cq, sread, WaitingRead<EFAPROF_CQ_SREAD>),
    EFAPROF_HOOK(fi_ops_cq, sreadfrom, WaitingRead<EFAPROF_CQ_SREADFROM, fi_addr_t *>),
};
const Hook cntr_hooks[] = {
    EFAPROF_HOOK(fi_ops_cntr, read, CntrRead<false>),
    EFAPROF_HOOK(fi_ops_cntr, readerr, CntrRead<true>),
    EFAPROF_HOOK(fi_ops_cntr, wait, CntrWait),
};

TableKind cq_kind = EFAPROF_TABLE_KIND(fi_ops_cq, cq_hooks);
TableKind cntr_kind = EFAPROF_TABLE_KIND(fi_ops_cntr, cntr_hooks);

} // namespace

void patch(const fi_ops_cq *table) {
    patch_table(cq_kind, table);
}
void patch(const fi_ops_cntr *table) {
    patch_table(cntr_kind, table);
}

} // namespace efaprof::ofi
