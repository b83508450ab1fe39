// libibverbs: queue pairs and posting. The verbs path writes the same entries and rings the same doorbells as a
// program that drives the rings itself.
#include "ibv_client.h"

#include <endian.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

namespace softefa {
namespace {

QpObject *by_number[65536];

QpObject &object_of(ibv_qp_ex *qp) {
    return *reinterpret_cast<QpObject *>(qp);
}
softefa_meta &meta(QpObject &qp) {
    return qp.current->meta;
}

void announce(QpObject &qp) {
    if (qp.pending == 0) return;
    qp.sq_count += qp.pending;
    qp.pending = 0;
    auto *page = reinterpret_cast<softefa_qp_page *>(qp.map);
    __atomic_store_n(&page->sq_doorbell, qp.sq_count & 0xffff, __ATOMIC_RELEASE);
    wake_nic();
}

// Opens the next entry. After an error the rest of the batch is built into a scratch entry and thrown away.
void begin(QpObject &qp, uint8_t op) {
    uint16_t id = 0;
    if (qp.error == 0 && !pool_take(qp.send_pool, qp.ex.wr_id, id)) qp.error = ENOMEM;
    if (qp.pending == SOFTEFA_MAX_BATCH) announce(qp);
    const uint32_t count = qp.sq_count + qp.pending;
    qp.current =
        qp.error != 0 ? &qp.scratch : reinterpret_cast<softefa_wqe *>(qp.map + SOFTEFA_PAGE) + count % qp.sq_entries;
    *qp.current = {};
    meta(qp).req_id = id;
    meta(qp).ctrl1 = op | SOFTEFA_CTRL1_META;
    meta(qp).ctrl2 = static_cast<uint8_t>(SOFTEFA_CTRL2_FIRST | SOFTEFA_CTRL2_LAST | SOFTEFA_CTRL2_COMPLETE |
                                          ((count / qp.sq_entries) & 1));
    if (qp.error == 0) ++qp.pending;
}

void set_imm(QpObject &qp, __be32 imm) {
    meta(qp).ctrl1 |= SOFTEFA_CTRL1_IMM;
    meta(qp).imm = be32toh(imm);
}

void set_remote(QpObject &qp, uint32_t rkey, uint64_t addr) {
    softefa_remote &remote = qp.current->u.rdma.remote;
    remote.rkey = rkey;
    remote.addr_lo = static_cast<uint32_t>(addr);
    remote.addr_hi = static_cast<uint32_t>(addr >> 32);
}

void wr_start(ibv_qp_ex *ex) {
    QpObject &qp = object_of(ex);
    qp.send_lock.take();
    qp.error = 0;
}

// The entries of a batch that failed were never announced: their numbers go back.
void drop_pending(QpObject &qp) {
    for (; qp.pending > 0; --qp.pending) {
        const uint32_t at = (qp.sq_count + qp.pending - 1) % qp.sq_entries;
        pool_give(qp.send_pool, (reinterpret_cast<softefa_wqe *>(qp.map + SOFTEFA_PAGE) + at)->meta.req_id,
                  qp.sq_entries);
    }
}

int wr_complete(ibv_qp_ex *ex) {
    QpObject &qp = object_of(ex);
    const int error = qp.error;
    if (error == 0)
        announce(qp);
    else
        drop_pending(qp);
    qp.send_lock.give();
    return error;
}

void wr_abort(ibv_qp_ex *ex) {
    QpObject &qp = object_of(ex);
    drop_pending(qp);
    qp.send_lock.give();
}

void wr_send(ibv_qp_ex *ex) {
    begin(object_of(ex), SOFTEFA_SEND);
}
void wr_send_imm(ibv_qp_ex *ex, __be32 imm) {
    begin(object_of(ex), SOFTEFA_SEND);
    set_imm(object_of(ex), imm);
}
void wr_rdma_read(ibv_qp_ex *ex, uint32_t rkey, uint64_t addr) {
    begin(object_of(ex), SOFTEFA_READ);
    set_remote(object_of(ex), rkey, addr);
}
void wr_rdma_write(ibv_qp_ex *ex, uint32_t rkey, uint64_t addr) {
    begin(object_of(ex), SOFTEFA_WRITE);
    set_remote(object_of(ex), rkey, addr);
}
void wr_rdma_write_imm(ibv_qp_ex *ex, uint32_t rkey, uint64_t addr, __be32 imm) {
    wr_rdma_write(ex, rkey, addr);
    set_imm(object_of(ex), imm);
}

softefa_sge sge_of(const ibv_sge &sge) {
    return {sge.length, sge.lkey & SOFTEFA_LKEY_MASK, static_cast<uint32_t>(sge.addr),
            static_cast<uint32_t>(sge.addr >> 32)};
}

void wr_set_sge_list(ibv_qp_ex *ex, size_t count, const ibv_sge *list) {
    QpObject &qp = object_of(ex);
    const bool is_send = (meta(qp).ctrl1 & SOFTEFA_CTRL1_OP) == SOFTEFA_SEND;
    if (count > (is_send ? SOFTEFA_SEND_SGES : 1)) {
        qp.error = EINVAL;
        return;
    }
    meta(qp).length = static_cast<uint16_t>(count);
    if (is_send) {
        for (size_t i = 0; i < count; ++i)
            qp.current->u.sge[i] = sge_of(list[i]);
    } else if (count == 1) {
        qp.current->u.rdma.local = sge_of(list[0]);
        qp.current->u.rdma.remote.length = list[0].length;
    }
}

void wr_set_sge(ibv_qp_ex *ex, uint32_t lkey, uint64_t addr, uint32_t length) {
    const ibv_sge sge = {addr, length, lkey};
    wr_set_sge_list(ex, 1, &sge);
}

void wr_set_inline_data_list(ibv_qp_ex *ex, size_t count, const ibv_data_buf *list) {
    QpObject &qp = object_of(ex);
    size_t at = 0;
    for (size_t i = 0; i < count; ++i) {
        if (at + list[i].length > SOFTEFA_INLINE_MAX) {
            qp.error = EINVAL;
            return;
        }
        memcpy(qp.current->u.inline_data + at, list[i].addr, list[i].length);
        at += list[i].length;
    }
    meta(qp).ctrl1 |= SOFTEFA_CTRL1_INLINE;
    meta(qp).length = static_cast<uint16_t>(at);
}

void wr_set_inline_data(ibv_qp_ex *ex, void *addr, size_t length) {
    const ibv_data_buf buffer = {addr, length};
    wr_set_inline_data_list(ex, 1, &buffer);
}

void wr_set_ud_addr(ibv_qp_ex *ex, ibv_ah *ah, uint32_t qpn, uint32_t qkey) {
    QpObject &qp = object_of(ex);
    meta(qp).dest_qpn = static_cast<uint16_t>(qpn);
    meta(qp).ah = reinterpret_cast<AhObject *>(ah)->ahn;
    meta(qp).qkey = qkey;
}

void set_hints(softefa_efadv_qp *dv, uint32_t hints) {
    QpObject &qp = *reinterpret_cast<QpObject *>(reinterpret_cast<uint8_t *>(dv) - offsetof(QpObject, dv));
    meta(qp).hints = static_cast<uint8_t>(hints & 3);
}

void build(ibv_qp_ex *ex, const ibv_send_wr &wr) {
    QpObject &qp = object_of(ex);
    ex->wr_id = wr.wr_id;
    switch (wr.opcode) {
    case IBV_WR_SEND: wr_send(ex); break;
    case IBV_WR_SEND_WITH_IMM: wr_send_imm(ex, wr.imm_data); break;
    default: // RDMA carries its own address, which the union gives either to it or to the peer
        wr_send(ex);
        qp.error = EINVAL;
        return;
    }
    if (wr.send_flags & IBV_SEND_INLINE) {
        ibv_data_buf buffers[SOFTEFA_SEND_SGES];
        const size_t count = static_cast<size_t>(wr.num_sge);
        if (count > SOFTEFA_SEND_SGES) {
            qp.error = EINVAL;
            return;
        }
        for (size_t i = 0; i < count; ++i)
            buffers[i] = {reinterpret_cast<void *>(wr.sg_list[i].addr), wr.sg_list[i].length};
        wr_set_inline_data_list(ex, count, buffers);
    } else {
        wr_set_sge_list(ex, static_cast<size_t>(wr.num_sge), wr.sg_list);
    }
    wr_set_ud_addr(ex, wr.wr.ud.ah, wr.wr.ud.remote_qpn, wr.wr.ud.remote_qkey);
}

int post_one_receive(QpObject &qp, const ibv_recv_wr &wr) {
    uint16_t id = 0;
    if (wr.num_sge < 1 || wr.num_sge > 4) return EINVAL;
    if (!pool_take(qp.recv_pool, wr.wr_id, id)) return ENOMEM;
    auto *rq = reinterpret_cast<softefa_rx_desc *>(qp.map + softefa_rq_offset(qp.sq_entries));
    for (int i = 0; i < wr.num_sge; ++i) {
        const ibv_sge &sge = wr.sg_list[i];
        softefa_rx_desc &desc = rq[(qp.rq_count + static_cast<uint32_t>(i)) % qp.rq_entries];
        desc.addr_lo = static_cast<uint32_t>(sge.addr);
        desc.addr_hi = static_cast<uint32_t>(sge.addr >> 32);
        desc.req_id = id;
        desc.length = static_cast<uint16_t>(sge.length < 0xffff ? sge.length : 0xffff);
        desc.lkey_ctrl = (sge.lkey & SOFTEFA_LKEY_MASK) | (i == 0 ? SOFTEFA_RX_FIRST : 0) |
                         (i == wr.num_sge - 1 ? SOFTEFA_RX_LAST : 0);
    }
    qp.rq_count += static_cast<uint32_t>(wr.num_sge);
    return 0;
}

} // namespace

QpObject *qp_by_number(uint32_t qpn) {
    return __atomic_load_n(&by_number[qpn & 0xffff], __ATOMIC_ACQUIRE);
}

void qp_set_writers(QpObject &qp) {
    ibv_qp_ex &ex = qp.ex;
    ex.wr_start = wr_start;
    ex.wr_complete = wr_complete;
    ex.wr_abort = wr_abort;
    ex.wr_send = wr_send;
    ex.wr_send_imm = wr_send_imm;
    ex.wr_rdma_read = wr_rdma_read;
    ex.wr_rdma_write = wr_rdma_write;
    ex.wr_rdma_write_imm = wr_rdma_write_imm;
    ex.wr_set_sge = wr_set_sge;
    ex.wr_set_sge_list = wr_set_sge_list;
    ex.wr_set_inline_data = wr_set_inline_data;
    ex.wr_set_inline_data_list = wr_set_inline_data_list;
    ex.wr_set_ud_addr = wr_set_ud_addr;
    qp.dv.wr_set_processing_hints = set_hints;
}

int qp_post_send(ibv_qp *public_qp, ibv_send_wr *wr, ibv_send_wr **bad) {
    ibv_qp_ex *ex = reinterpret_cast<ibv_qp_ex *>(public_qp);
    for (; wr != nullptr; wr = wr->next) {
        wr_start(ex);
        build(ex, *wr);
        const int error = wr_complete(ex);
        if (error == 0) continue;
        *bad = wr;
        return error;
    }
    return 0;
}

int qp_post_recv(ibv_qp *public_qp, ibv_recv_wr *wr, ibv_recv_wr **bad) {
    QpObject &qp = *reinterpret_cast<QpObject *>(public_qp);
    int error = 0;
    qp.recv_lock.take();
    for (; wr != nullptr && error == 0; wr = wr->next) {
        error = post_one_receive(qp, *wr);
        if (error != 0) *bad = wr;
    }
    auto *page = reinterpret_cast<softefa_qp_page *>(qp.map);
    __atomic_store_n(&page->rq_doorbell, qp.rq_count & 0xffff, __ATOMIC_RELEASE);
    qp.recv_lock.give();
    return error;
}

} // namespace softefa

using namespace softefa;

SOFTEFA_EXPORT ibv_qp *softefa_create_qp(ibv_context *context, ibv_qp_init_attr_ex *attr, uint32_t type,
                                         uint32_t flags) {
    constexpr uint64_t kOps = IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_SEND_WITH_IMM | IBV_QP_EX_WITH_RDMA_READ |
                              IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM;
    const bool asks_ops = attr->comp_mask & IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
    if (attr->send_cq == nullptr || attr->recv_cq == nullptr || attr->srq != nullptr ||
        attr->cap.max_inline_data > SOFTEFA_INLINE_MAX || attr->cap.max_send_sge > SOFTEFA_SEND_SGES ||
        (asks_ops && (attr->send_ops_flags & ~kOps))) {
        errno = EINVAL;
        return nullptr;
    }
    QpObject *qp = static_cast<QpObject *>(calloc(1, sizeof *qp));
    if (qp == nullptr) return nullptr;
    qp->send_cq = reinterpret_cast<CqObject *>(attr->send_cq);
    qp->recv_cq = reinterpret_cast<CqObject *>(attr->recv_cq);
    softefa_request request = {};
    softefa_reply reply = {};
    request.call = SOFTEFA_CREATE_QP;
    const uint32_t receives = attr->cap.max_recv_wr * (attr->cap.max_recv_sge > 1 ? attr->cap.max_recv_sge : 1);
    request.u.create_qp = {type, flags, attr->cap.max_send_wr, receives, qp->send_cq->id, qp->recv_cq->id};
    int fd = -1;
    int error = call(request, reply, -1, &fd, 1);
    if (error == 0) {
        qp->sq_entries = reply.u.create_qp.sq_entries;
        qp->rq_entries = reply.u.create_qp.rq_entries;
        qp->map = ring_map(fd, softefa_qp_bytes(qp->sq_entries, qp->rq_entries));
        if (qp->map == nullptr || !pool_make(qp->send_pool, qp->sq_entries) ||
            !pool_make(qp->recv_pool, qp->rq_entries))
            error = ENOMEM;
    }
    if (error != 0) {
        free(qp);
        errno = error;
        return nullptr;
    }
    ibv_qp &base = qp->ex.qp_base;
    base.context = context;
    base.qp_context = attr->qp_context;
    base.pd = attr->pd;
    base.send_cq = attr->send_cq;
    base.recv_cq = attr->recv_cq;
    base.handle = base.qp_num = reply.u.create_qp.qpn;
    base.state = IBV_QPS_RESET;
    base.qp_type = attr->qp_type;
    pthread_mutex_init(&base.mutex, nullptr);
    pthread_cond_init(&base.cond, nullptr);
    qp->type = type;
    qp_set_writers(*qp);
    __atomic_store_n(&by_number[base.qp_num & 0xffff], qp, __ATOMIC_RELEASE);
    return &base;
}

SOFTEFA_EXPORT ibv_qp *ibv_create_qp(ibv_pd *pd, ibv_qp_init_attr *attr) {
    ibv_qp_init_attr_ex ex = {};
    memcpy(&ex, attr, sizeof *attr); // the old struct is the beginning of the new one
    ex.pd = pd;
    if (attr->qp_type == IBV_QPT_UD) return softefa_create_qp(pd->context, &ex, SOFTEFA_QP_UD, 0);
    errno = EOPNOTSUPP;
    return nullptr;
}

SOFTEFA_EXPORT ibv_qp_ex *ibv_qp_to_qp_ex(ibv_qp *qp) {
    return reinterpret_cast<ibv_qp_ex *>(qp);
}

SOFTEFA_EXPORT int ibv_modify_qp(ibv_qp *public_qp, ibv_qp_attr *attr, int mask) {
    QpObject &qp = *reinterpret_cast<QpObject *>(public_qp);
    softefa_request request = {};
    softefa_reply reply = {};
    request.call = SOFTEFA_MODIFY_QP;
    auto &in = request.u.modify_qp;
    in.qpn = public_qp->qp_num;
    if (mask & IBV_QP_STATE) {
        in.mask |= SOFTEFA_SET_STATE;
        in.state = attr->qp_state;
    }
    if (mask & IBV_QP_QKEY) {
        in.mask |= SOFTEFA_SET_QKEY;
        in.qkey = attr->qkey;
    }
    if (mask & IBV_QP_RNR_RETRY) {
        in.mask |= SOFTEFA_SET_RNR;
        in.rnr_retry = attr->rnr_retry;
    }
    const int error = call(request, reply, -1, nullptr, 0);
    if (error != 0) return error;
    if (mask & IBV_QP_STATE) public_qp->state = attr->qp_state;
    if (mask & IBV_QP_QKEY) qp.qkey = attr->qkey;
    return 0;
}

SOFTEFA_EXPORT int ibv_query_qp(ibv_qp *public_qp, ibv_qp_attr *attr, int, ibv_qp_init_attr *init) {
    const QpObject &qp = *reinterpret_cast<QpObject *>(public_qp);
    *attr = {};
    attr->qp_state = attr->cur_qp_state = public_qp->state;
    attr->qkey = qp.qkey;
    attr->port_num = 1;
    attr->cap = {qp.sq_entries, qp.rq_entries, SOFTEFA_SEND_SGES, 1, SOFTEFA_INLINE_MAX};
    *init = {};
    init->qp_context = public_qp->qp_context;
    init->send_cq = public_qp->send_cq;
    init->recv_cq = public_qp->recv_cq;
    init->cap = attr->cap;
    init->qp_type = public_qp->qp_type;
    return 0;
}

SOFTEFA_EXPORT int ibv_query_qp_data_in_order(ibv_qp *, ibv_wr_opcode, uint32_t) {
    return 0;
}

SOFTEFA_EXPORT int ibv_destroy_qp(ibv_qp *public_qp) {
    QpObject *qp = reinterpret_cast<QpObject *>(public_qp);
    softefa_request request = {};
    softefa_reply reply = {};
    request.call = SOFTEFA_DESTROY_QP;
    request.u.destroy_qp.qpn = public_qp->qp_num;
    const int error = call(request, reply, -1, nullptr, 0);
    if (error != 0 && !nic_is_gone()) return error;
    // From here no new entry names it; those that are there are skipped by whoever polls.
    __atomic_store_n(&by_number[public_qp->qp_num & 0xffff], static_cast<QpObject *>(nullptr), __ATOMIC_RELEASE);
    munmap(qp->map, softefa_qp_bytes(qp->sq_entries, qp->rq_entries));
    pool_free(qp->send_pool);
    pool_free(qp->recv_pool);
    free(qp);
    return 0;
}
