// Our libefa.so.1: the EFA direct verbs. Programs pass their struct's length; what they know of it is filled.
#include <errno.h>
#include <string.h>

#include "ibv_client.h"

using namespace softefa;

namespace {

template <typename T> void hand_out(T full, void *to, uint32_t length) {
    memcpy(to, &full, length < sizeof full ? length : sizeof full);
}

template <typename T> T take_in(const void *from, uint32_t length) {
    T full = {};
    memcpy(&full, from, length < sizeof full ? length : sizeof full);
    return full;
}

constexpr uint64_t kWcFlags = 3; // source gid, is unsolicited
constexpr uint64_t kWrFlags = 1; // processing hints

} // namespace

SOFTEFA_EXPORT int efadv_query_device(ibv_context *, void *attr, uint32_t length) {
    softefa_efadv_device_attr full = {};
    full.max_sq_wr = SOFTEFA_MAX_SQ;
    full.max_rq_wr = SOFTEFA_MAX_RQ;
    full.max_sq_sge = SOFTEFA_SEND_SGES;
    full.max_rq_sge = 1;
    full.inline_buf_size = full.inline_buf_size_ex = SOFTEFA_INLINE_MAX;
    full.device_caps = SOFTEFA_CAP_RDMA_READ | SOFTEFA_CAP_RNR_RETRY | SOFTEFA_CAP_CQ_WITH_SGID |
                       SOFTEFA_CAP_RDMA_WRITE | SOFTEFA_CAP_UNSOLICITED_WRITE_RECV | SOFTEFA_CAP_CQ_WITH_EXT_MEM;
    if (softefa_has_counters()) full.device_caps |= SOFTEFA_CAP_COMP_CNTR;
    full.max_rdma_size = SOFTEFA_MAX_RDMA;
    hand_out(full, attr, length);
    return 0;
}

SOFTEFA_EXPORT int efadv_query_ah(ibv_ah *ah, void *attr, uint32_t length) {
    softefa_efadv_ah_attr full = {};
    full.ahn = reinterpret_cast<AhObject *>(ah)->ahn;
    hand_out(full, attr, length);
    return 0;
}

SOFTEFA_EXPORT ibv_qp *efadv_create_qp_ex(ibv_context *context, ibv_qp_init_attr_ex *attr, const void *efa_attr,
                                          uint32_t length) {
    const auto efa = take_in<softefa_efadv_qp_init_attr>(efa_attr, length);
    const bool is_srd = attr->qp_type == IBV_QPT_DRIVER && efa.driver_qp_type == 0;
    if (efa.comp_mask != 0 || (efa.flags & ~1u) != 0 || (efa.wr_flags & ~kWrFlags) != 0 ||
        !(is_srd || attr->qp_type == IBV_QPT_UD)) {
        errno = EOPNOTSUPP;
        return nullptr;
    }
    return softefa_create_qp(context, attr, is_srd ? SOFTEFA_QP_SRD : SOFTEFA_QP_UD,
                             efa.flags & 1u ? SOFTEFA_QP_UNSOLICITED : 0);
}

SOFTEFA_EXPORT ibv_qp *efadv_create_driver_qp(ibv_pd *pd, ibv_qp_init_attr *attr, uint32_t type) {
    ibv_qp_init_attr_ex ex = {};
    memcpy(&ex, attr, sizeof *attr);
    ex.pd = pd;
    if (type == 0) return softefa_create_qp(pd->context, &ex, SOFTEFA_QP_SRD, 0);
    errno = EINVAL;
    return nullptr;
}

SOFTEFA_EXPORT ibv_cq_ex *efadv_create_cq(ibv_context *context, ibv_cq_init_attr_ex *attr, const void *efa_attr,
                                          uint32_t length) {
    const auto efa = take_in<softefa_efadv_cq_init_attr>(efa_attr, length);
    const bool is_external = (efa.flags & 1u) != 0;
    if (efa.comp_mask != 0 || (efa.wc_flags & ~kWcFlags) != 0 || (efa.flags & ~uint64_t{1}) != 0 ||
        (is_external && (efa.external.buffer == nullptr || length < sizeof efa))) {
        errno = EOPNOTSUPP;
        return nullptr;
    }
    softefa_cq_memory memory = {nullptr, 0, 0, -1};
    if (is_external) memory = {efa.external.buffer, efa.external.length, efa.external.offset, efa.external.fd};
    return softefa_create_cq(context, attr->cqe, attr->cq_context, attr->channel, memory);
}

SOFTEFA_EXPORT softefa_efadv_cq *efadv_cq_from_ibv_cq_ex(ibv_cq_ex *cq) {
    return &reinterpret_cast<CqObject *>(cq)->dv;
}

SOFTEFA_EXPORT int efadv_query_qp_wqs(ibv_qp *qp, void *sq, void *rq, uint32_t length) {
    QpObject &object = *reinterpret_cast<QpObject *>(qp);
    auto *page = reinterpret_cast<softefa_qp_page *>(object.map);
    softefa_efadv_wq_attr send = {}, receive = {};
    send.buffer = object.map + SOFTEFA_PAGE;
    send.entry_size = sizeof(softefa_wqe);
    send.num_entries = object.sq_entries;
    send.doorbell = &page->sq_doorbell;
    send.max_batch = SOFTEFA_MAX_BATCH;
    receive.buffer = object.map + softefa_rq_offset(object.sq_entries);
    receive.entry_size = sizeof(softefa_rx_desc);
    receive.num_entries = object.rq_entries;
    receive.doorbell = &page->rq_doorbell;
    receive.max_batch = object.rq_entries;
    hand_out(send, sq, length);
    hand_out(receive, rq, length);
    return 0;
}

SOFTEFA_EXPORT int efadv_query_cq(ibv_cq *cq, void *attr, uint32_t length) {
    CqObject &object = *reinterpret_cast<CqObject *>(cq);
    softefa_efadv_cq_attr full = {};
    full.buffer = object.ring;
    full.entry_size = sizeof(softefa_cqe);
    full.num_entries = object.entries;
    full.doorbell = &reinterpret_cast<softefa_cq_page *>(object.map)->doorbell;
    hand_out(full, attr, length);
    return 0;
}

SOFTEFA_EXPORT int efadv_query_mr(ibv_mr *, void *attr, uint32_t length) {
    hand_out(softefa_efadv_mr_attr{}, attr, length); // no interconnects to tell apart
    return 0;
}

SOFTEFA_EXPORT softefa_efadv_qp *efadv_qp_from_ibv_qp_ex(ibv_qp_ex *qp) {
    return &reinterpret_cast<QpObject *>(qp)->dv;
}

SOFTEFA_EXPORT int efadv_get_max_sq_depth(ibv_context *, const void *attr, uint32_t length) {
    const auto wanted = take_in<softefa_efadv_sq_depth_attr>(attr, length);
    const bool fits = wanted.comp_mask == 0 && wanted.flags == 0 && wanted.max_send_sge <= SOFTEFA_SEND_SGES &&
                      wanted.max_rdma_sge <= 1 && wanted.max_inline_data <= SOFTEFA_INLINE_MAX;
    return fits ? static_cast<int>(SOFTEFA_MAX_SQ) : -EINVAL;
}

SOFTEFA_EXPORT int efadv_get_max_rq_depth(ibv_context *, const void *, uint32_t) {
    return static_cast<int>(SOFTEFA_MAX_RQ);
}

SOFTEFA_EXPORT softefa_comp_cntr *efadv_create_comp_cntr(ibv_context *context, const softefa_comp_cntr_init_attr *attr,
                                                         const void *efa_attr, uint32_t length) {
    const auto efa = take_in<softefa_efadv_comp_cntr_init_attr>(efa_attr, length);
    const bool has_done = efa.flags & SOFTEFA_CNTR_DONE, has_failed = efa.flags & SOFTEFA_CNTR_FAILED;
    const bool is_known = efa.comp_mask == 0 && (efa.flags & ~(SOFTEFA_CNTR_DONE | SOFTEFA_CNTR_FAILED)) == 0 &&
                          efa.reserved == 0 && length >= sizeof efa;
    const bool is_reachable = (!has_done || (efa.done.type == 0 && efa.done.ptr != nullptr)) &&
                              (!has_failed || (efa.failed.type == 0 && efa.failed.ptr != nullptr));
    if (!is_known || !is_reachable) {
        errno = is_known ? EOPNOTSUPP : EINVAL;
        return nullptr;
    }
    return softefa_create_cntr(context, attr, has_done ? reinterpret_cast<uint64_t *>(efa.done.ptr) : nullptr,
                               has_failed ? reinterpret_cast<uint64_t *>(efa.failed.ptr) : nullptr);
}
