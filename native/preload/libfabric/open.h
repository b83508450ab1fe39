// Probes of calls that open objects or change what they are.
#pragma once

#include "record.h"
#include "thread.h"

#include <errno.h>
#include <rdma/fabric.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>

namespace efaprof::ofi {

// A successful call leaves errno as its provider left it.
class ErrnoKept {
public:
    ~ErrnoKept() { errno = saved_; }

private:
    const int saved_ = errno;
};

// What an open call made, when it was and how deep.
struct Opened {
    Thread &thread;
    uint64_t t_begin, t_end;
    uint8_t nest;
    fid *object;
    const fid *parent; // null for a fabric
};

efaprof_object record_of(const Opened &opened, uint8_t what);
bool find_object(uint64_t fid, Object *found); // in the registry

// True: this very object has been recorded by a call inside this one.
bool is_recorded(const Opened &opened);
void record_now(const Opened &opened, const efaprof_object &record);
void opened_other(const Opened &opened, const efaprof_object &record); // of which nothing is remembered

// Stands in *out while an open runs. Some calls succeed without making anything (a shared receive context that the
// caller brings along, FI_PEER) and leave what was there, which may be anything.
extern fid nothing_made;

// Runs real(); when it made *out, tells made(Opened).
template <class Fid, class Real, class Made> int open_object(const fid *parent, Fid **out, Real real, Made made) {
    Call call(parent, Call::Kind::kOpen);
    if (!call || !out) {
        const int ret = real();
        if (call) call.leave();
        return ret;
    }
    auto *const marker = reinterpret_cast<Fid *>(&nothing_made);
    Fid *const before = *out;
    *out = marker;
    call.thread().opened = 0;
    const uint64_t t_begin = now();
    const int ret = real();
    const uint64_t t_end = now();
    call.leave();
    const bool is_made = *out != marker;
    if (!is_made) *out = before;
    if (ret == 0 && is_made && *out) {
        const ErrnoKept kept;
        made(Opened{call.thread(), t_begin, t_end, call.nest(), reinterpret_cast<fid *>(*out), parent});
    }
    return ret;
}

void opened_fabric(const Opened &opened, const char *provider, const char *name);
void opened_cq(const Opened &opened, const fi_cq_attr *attr);
void opened_cntr(const Opened &opened);

// Extensions of a provider that fi_open_ops returned.
void opened_ops(const fid *object, const char *name, const void *ops);
void libfabric_version(uint32_t version); // of a libfabric in this process

struct SetoptProbe {
    static int run(int (*real)(fid *, int, int, const void *, size_t), fid *ep, int level, int name, const void *value,
                   size_t bytes);
};

// Contexts of a scalable endpoint; they inherit from it what their attributes do not say.
void opened_context(const Opened &opened, const fi_tx_attr *attr);
void opened_context(const Opened &opened, const fi_rx_attr *attr);

struct ContextProbe {
    template <class Attr>
    static int run(int (*real)(fid_ep *, int, Attr *, fid_ep **, void *), fid_ep *sep, int index, Attr *attr,
                   fid_ep **context, void *app) {
        return open_object(
            &sep->fid, context, [&] { return real(sep, index, attr, context, app); },
            [&](const Opened &opened) { opened_context(opened, attr); });
    }
};

} // namespace efaprof::ofi
