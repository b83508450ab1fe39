#include "tables.h"

#include "registry.h"

#include <efaprof/format.h>

#include <rdma/fi_eq.h>

namespace efaprof::ofi {
namespace {

void rescan_cqs() {
    for (Object *object = registry_cqs(); object; object = object->next_cq) {
        const auto *cq = reinterpret_cast<const fid_cq *>(object->fid);
        // A queue whose end we would not see may be gone by now. An unchanged pointer is not followed: the library
        // that it pointed into may have been unloaded without closing its queue.
        if (!object->seen_ops || cq->ops == object->seen_ops) continue;
        patch(cq->ops);
        object->seen_ops = cq->ops;
    }
}

} // namespace

uint32_t kind_of(const fid *object) {
    switch (object->fclass) {
    case FI_CLASS_FABRIC: return EFAPROF_OBJ_FABRIC;
    case FI_CLASS_DOMAIN: return EFAPROF_OBJ_DOMAIN;
    case FI_CLASS_EP:
    case FI_CLASS_SEP:
    case FI_CLASS_TX_CTX:
    case FI_CLASS_RX_CTX: return EFAPROF_OBJ_EP;
    case FI_CLASS_SRX_CTX: return EFAPROF_OBJ_SRX;
    case FI_CLASS_STX_CTX: return EFAPROF_OBJ_STX;
    case FI_CLASS_PEP: return EFAPROF_OBJ_PEP;
    case FI_CLASS_AV: return EFAPROF_OBJ_AV;
    case FI_CLASS_MR: return EFAPROF_OBJ_MR;
    case FI_CLASS_EQ: return EFAPROF_OBJ_EQ;
    case FI_CLASS_CQ: return EFAPROF_OBJ_CQ;
    case FI_CLASS_CNTR: return EFAPROF_OBJ_CNTR;
    default: return 0;
    }
}

void adopt_fabric(fid_fabric *fabric) {
    const RegistryLock lock;
    patch(fabric->fid.ops);
    patch(fabric->ops);
}

void adopt_domain(fid_domain *domain) {
    const RegistryLock lock;
    patch(domain->fid.ops);
    patch(domain->ops);
    patch(domain->mr);
}

void adopt_ep(fid_ep *ep) {
    const RegistryLock lock;
    patch(ep->fid.ops);
    patch(ep->ops);
    // A scalable endpoint only makes contexts, a receive context only receives: what else they hold is undefined.
    const size_t fclass = ep->fid.fclass;
    const bool receives = fclass != FI_CLASS_SEP;
    const bool transmits = fclass == FI_CLASS_EP || fclass == FI_CLASS_TX_CTX;
    if (receives) {
        patch(ep->msg);
        patch(ep->tagged);
    }
    if (transmits) {
        patch(ep->rma);
        patch(ep->atomic);
    }
    rescan_cqs();
}

void adopt_cq(fid_cq *cq) {
    const RegistryLock lock;
    patch(cq->fid.ops);
    patch(cq->ops);
    Object *object = registry_find(reinterpret_cast<uint64_t>(cq));
    if (object) object->seen_ops = closes_are_seen(cq->fid.ops) ? cq->ops : nullptr;
    rescan_cqs();
}

void adopt_cntr(fid_cntr *cntr) {
    const RegistryLock lock;
    patch(cntr->fid.ops);
    patch(cntr->ops);
    rescan_cqs();
}

void adopt_av(fid_av *av) {
    const RegistryLock lock;
    patch(av->fid.ops);
    patch(av->ops);
    rescan_cqs();
}

void adopt_other(fid *object) {
    const RegistryLock lock;
    patch(object->ops);
    rescan_cqs();
}

} // namespace efaprof::ofi
