// The functions by which a program hands libfabric's queues to a GPU kernel (fi_open_ops, "efa gda ops"). Afterwards
// the kernel posts by itself: no data call follows that could be recorded, so that they were called is what there is to
// say.
#include "open.h"
#include "table.h"
#include "tables.h"

#include <rdma/fi_eq.h>
#include <string.h>

namespace efaprof::ofi {
namespace {

// Of libfabric 2.x's efa provider; the table has no size, and cntr_open_ext came with 2.6. Older headers have none of
// it, so what is only passed on is void here.
struct GdaOps {
    int (*query_addr)(fid_ep *ep, fi_addr_t addr, uint16_t *handle, uint16_t *queue_pair, uint32_t *key);
    int (*query_qp_wqs)(fid_ep *ep, void *send, void *receive);
    int (*query_cq)(fid_cq *cq, void *attr);
    int (*cq_open_ext)(fid_domain *domain, fi_cq_attr *attr, void *memory, fid_cq **cq, void *context);
    uint64_t (*get_mr_lkey)(fid_mr *mr);
    int (*cntr_open_ext)(fid_domain *domain, fi_cntr_attr *attr, fid_cntr **cntr, void *context, void *memory);
};
constexpr uint32_t kHasCounters = FI_VERSION(2, 6);

uint32_t oldest = ~0u; // of the libfabrics of this process: a table may be any one's

// How many times something happened in this process, counted from one.
struct Count {
    uint64_t seen;
    uint32_t fork; // generation that they were counted in
    uint64_t next() {
        const RegistryLock lock;
        if (fork != *fork_word) *this = {0, *fork_word};
        return ++seen;
    }
};
Count domains, endpoints, queues;

struct QueryQueuesProbe {
    static int run(int (*real)(fid_ep *, void *, void *), fid_ep *ep, void *send, void *receive) {
        const int ret = real(ep, send, receive);
        if (ret == 0 && thread_now()) {
            const ErrnoKept kept;
            note_info("work queues of an endpoint given to a kernel", "", endpoints.next());
        }
        return ret;
    }
};

struct QueryCqProbe {
    static int run(int (*real)(fid_cq *, void *), fid_cq *cq, void *attr) {
        const int ret = real(cq, attr);
        if (ret == 0 && thread_now()) {
            const ErrnoKept kept;
            note_info("completion queue given to a kernel", "", queues.next());
        }
        return ret;
    }
};

struct CqOpenProbe {
    static int run(int (*real)(fid_domain *, fi_cq_attr *, void *, fid_cq **, void *), fid_domain *domain,
                   fi_cq_attr *attr, void *memory, fid_cq **cq, void *context) {
        return open_object(
            &domain->fid, cq, [&] { return real(domain, attr, memory, cq, context); },
            [&](const Opened &opened) { opened_cq(opened, attr); });
    }
};

struct CntrOpenProbe {
    static int run(int (*real)(fid_domain *, fi_cntr_attr *, fid_cntr **, void *, void *), fid_domain *domain,
                   fi_cntr_attr *attr, fid_cntr **cntr, void *context, void *memory) {
        return open_object(
            &domain->fid, cntr, [&] { return real(domain, attr, cntr, context, memory); },
            [&](const Opened &opened) { opened_cntr(opened); });
    }
};

// query_addr and get_mr_lkey say nothing that is not known from elsewhere.
const Hook gda_hooks[] = {
    EFAPROF_HOOK(GdaOps, query_qp_wqs, QueryQueuesProbe),
    EFAPROF_HOOK(GdaOps, query_cq, QueryCqProbe),
    EFAPROF_HOOK(GdaOps, cq_open_ext, CqOpenProbe),
    EFAPROF_HOOK(GdaOps, cntr_open_ext, CntrOpenProbe),
};

TableKind gda_kind = EFAPROF_TABLE_KIND(GdaOps, gda_hooks);

} // namespace

void libfabric_version(uint32_t version) {
    const RegistryLock lock;
    if (version < oldest) oldest = version;
}

void opened_ops(const fid *object, const char *name, const void *ops) {
    if (object->fclass != FI_CLASS_DOMAIN || strcmp(name, "efa gda ops") != 0) return;
    {
        const RegistryLock lock;
        const bool has_counters = oldest != ~0u && oldest >= kHasCounters;
        gda_kind.known_bytes = has_counters ? sizeof(GdaOps) : offsetof(GdaOps, cntr_open_ext);
        patch_table(gda_kind, ops);
    }
    note_info("kernel-posted path opened", "", domains.next());
}

} // namespace efaprof::ofi
