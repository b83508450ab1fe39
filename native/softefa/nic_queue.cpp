// Reading what the driver wrote (send and receive queue entries) and writing what it reads (completions). Everything
// read here may be garbage: an entry is copied out once, checked, and turned into an operation or an error.
#include "nic.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

namespace softefa {
namespace {

constexpr uint8_t kMustBeSet = SOFTEFA_CTRL2_FIRST | SOFTEFA_CTRL2_LAST;

uint64_t join(uint32_t lo, uint32_t hi) {
    return static_cast<uint64_t>(hi) << 32 | lo;
}

uint16_t doorbell_of(const uint8_t *map, size_t at) {
    return static_cast<uint16_t>(__atomic_load_n(reinterpret_cast<const uint32_t *>(map + at), __ATOMIC_ACQUIRE));
}

bool span_of(Nic &nic, const Device &device, uint32_t key, uint64_t addr, uint64_t length, Span &out) {
    const Mr *mr = mr_find(nic, key);
    if (mr == nullptr || mr->device != &device) return false;
    if (addr < mr->iova || length > mr->length || addr - mr->iova > mr->length - length) return false;
    const uint64_t offset = addr - mr->iova;
    out = {mr->addr + offset, length, mr->here != nullptr ? mr->here + offset : nullptr};
    return true;
}

uint8_t take_inline(const softefa_wqe &wqe, Op &op) {
    if (op.kind != SOFTEFA_SEND || wqe.meta.length > SOFTEFA_INLINE_MAX) return SOFTEFA_BAD_LENGTH;
    op.is_inline = true;
    op.length = wqe.meta.length;
    memcpy(op.inline_data, wqe.u.inline_data, op.length);
    return SOFTEFA_OK;
}

uint8_t take_send(Nic &nic, const softefa_wqe &wqe, Op &op) {
    if (wqe.meta.length > SOFTEFA_SEND_SGES) return SOFTEFA_BAD_LENGTH;
    uint64_t total = 0;
    for (uint32_t i = 0; i < wqe.meta.length; ++i) {
        const softefa_sge &sge = wqe.u.sge[i];
        if (!span_of(nic, *op.qp->device, sge.lkey & SOFTEFA_LKEY_MASK, join(sge.addr_lo, sge.addr_hi), sge.length,
                     op.local[i]))
            return SOFTEFA_INVALID_LKEY;
        total += sge.length;
    }
    op.locals = wqe.meta.length;
    if (total > nic.model.mtu) return SOFTEFA_BAD_LENGTH;
    op.length = static_cast<uint32_t>(total);
    return SOFTEFA_OK;
}

uint8_t take_rdma(Nic &nic, const softefa_wqe &wqe, Op &op) {
    const softefa_sge &local = wqe.u.rdma.local;
    const softefa_remote &remote = wqe.u.rdma.remote;
    if (wqe.meta.length > 1) return SOFTEFA_BAD_LENGTH;
    const uint32_t length = wqe.meta.length == 0 ? 0 : local.length;
    if (length > SOFTEFA_MAX_RDMA || remote.length != length) return SOFTEFA_BAD_LENGTH;
    if (length > 0 && !span_of(nic, *op.qp->device, local.lkey & SOFTEFA_LKEY_MASK, join(local.addr_lo, local.addr_hi),
                               length, op.local[0]))
        return SOFTEFA_INVALID_LKEY;
    op.locals = length > 0;
    op.length = length;
    op.raddr = join(remote.addr_lo, remote.addr_hi);
    op.rkey = remote.rkey;
    return SOFTEFA_OK;
}

uint8_t take_body(Nic &nic, const softefa_wqe &wqe, Op &op) {
    if (wqe.meta.ctrl1 & SOFTEFA_CTRL1_EXTENSION || op.kind > SOFTEFA_WRITE) return SOFTEFA_UNSUPPORTED_OP;
    if (op.kind != SOFTEFA_SEND && op.qp->type == SOFTEFA_QP_UD) return SOFTEFA_UNSUPPORTED_OP;
    if (op.kind == SOFTEFA_READ && op.has_imm) return SOFTEFA_UNSUPPORTED_OP;
    const uint8_t status = wqe.meta.ctrl1 & SOFTEFA_CTRL1_INLINE ? take_inline(wqe, op)
                           : op.kind == SOFTEFA_SEND             ? take_send(nic, wqe, op)
                                                                 : take_rdma(nic, wqe, op);
    if (status != SOFTEFA_OK) return status;
    const Device &device = *op.qp->device;
    if (op.ah >= device.ah_count || device.ahs[op.ah].refs == 0) return SOFTEFA_INVALID_AH;
    uint32_t instance;
    memcpy(&instance, device.ahs[op.ah].gid + 12, sizeof instance);
    Device *target = instance < nic.device_count ? nic.devices[instance] : nullptr;
    op.target = target != nullptr && memcmp(target->gid, device.ahs[op.ah].gid, 16) == 0 ? target : nullptr;
    return SOFTEFA_OK;
}

Op *new_op(Nic &nic, Qp &qp, const softefa_wqe &wqe, int64_t seen_ns) {
    Op *op = op_take(nic);
    op->qp = &qp;
    ++qp.refs;
    op->seq = qp.device->seq++;
    op->number = qp.operations++;
    op->kind = wqe.meta.ctrl1 & SOFTEFA_CTRL1_OP;
    op->has_imm = wqe.meta.ctrl1 & SOFTEFA_CTRL1_IMM;
    op->wants_cqe = wqe.meta.ctrl2 & SOFTEFA_CTRL2_COMPLETE;
    op->req_id = wqe.meta.req_id;
    memcpy(op->req_id_ex, wqe.meta.req_id_ex, sizeof op->req_id_ex);
    op->ah = wqe.meta.ah;
    op->dst_qpn = wqe.meta.dest_qpn;
    op->qkey = wqe.meta.qkey;
    op->imm = wqe.meta.imm;
    op->doorbell_ns = seen_ns;
    op->ready = op->start = op->due = static_cast<double>(seen_ns - nic.epoch_ns);
    return op;
}

void enqueue(Nic &nic, Qp &qp, Op *op) {
    op->packets = op->kind == SOFTEFA_SEND ? 1 : packets_of(nic.model, op->length);
    op->parts = (op->packets + kPartPackets - 1) / kPartPackets;
    op->in_queue = true;
    (qp.last != nullptr ? qp.last->next : qp.first) = op;
    qp.last = op;
}

void take_entry(Nic &nic, Qp &qp, int64_t seen_ns) {
    softefa_wqe wqe;
    const uint32_t at = qp.sq_count % qp.sq_entries;
    memcpy(&wqe, qp.map + SOFTEFA_PAGE + at * sizeof wqe, sizeof wqe);
    const uint8_t phase = (qp.sq_count / qp.sq_entries) & 1;
    ++qp.sq_count;
    Op *op = new_op(nic, qp, wqe, seen_ns);

    // A wrong phase or missing marks mean that the doorbell ran ahead of the entry: nothing in it can be trusted,
    // so the queue pair fails, with the completion that the poster would otherwise wait for.
    const bool whole = (wqe.meta.ctrl1 & SOFTEFA_CTRL1_META) && (wqe.meta.ctrl2 & kMustBeSet) == kMustBeSet &&
                       (wqe.meta.ctrl2 & SOFTEFA_CTRL2_PHASE) == phase;
    op->status = SOFTEFA_FLUSHED;
    if (qp.state == SOFTEFA_QP_RTS) op->status = whole ? take_body(nic, wqe, *op) : uint8_t{SOFTEFA_QP_INTERNAL};
    if (op->status == SOFTEFA_OK) return enqueue(nic, qp, op);
    const bool fatal = !whole && qp.state == SOFTEFA_QP_RTS;
    if (!whole) op->wants_cqe = true;
    if (op->status != SOFTEFA_FLUSHED) ++nic.bad_entries;
    ++qp.refs; // wire_done drops the operation's own
    wire_done(nic, op, model_now(nic));
    if (fatal) qp_fail(nic, qp);
    qp_release(nic, &qp);
}

} // namespace

bool queue_poll(Nic &nic, Qp &qp) {
    if (qp.gone || (qp.state != SOFTEFA_QP_RTS && qp.state != SOFTEFA_QP_ERR)) return false;
    const uint16_t announced = static_cast<uint16_t>(doorbell_of(qp.map, offsetof(softefa_qp_page, sq_doorbell)) -
                                                     static_cast<uint16_t>(qp.sq_count));
    if (announced == 0) return false;
    if (announced > qp.sq_entries) { // more than the queue holds: the counter is garbage
        if (qp.state != SOFTEFA_QP_ERR) {
            ++nic.bad_entries;
            qp_fail(nic, qp);
        }
        return false;
    }
    if (announced > SOFTEFA_MAX_BATCH) ++nic.batch_overruns;
    const int64_t seen_ns = now_ns();
    for (uint16_t i = 0; i < announced && !qp.gone; ++i)
        take_entry(nic, qp, seen_ns);
    return true;
}

int receive_take(Nic &nic, Qp &qp, Span spans[], int most, uint32_t &length, uint16_t &req_id) {
    const uint16_t ready = static_cast<uint16_t>(doorbell_of(qp.map, offsetof(softefa_qp_page, rq_doorbell)) -
                                                 static_cast<uint16_t>(qp.rq_count));
    if (ready == 0) return 0;
    if (ready > qp.rq_entries) {
        ++nic.bad_entries;
        qp_fail(nic, qp);
        return 0;
    }
    const uint8_t *rq = qp.map + softefa_rq_offset(qp.sq_entries);
    int n = 0;
    length = 0;
    for (uint16_t i = 0; i < ready && n < most; ++i) {
        softefa_rx_desc desc;
        memcpy(&desc, rq + ((qp.rq_count + i) % qp.rq_entries) * sizeof desc, sizeof desc);
        if ((n == 0) != ((desc.lkey_ctrl & SOFTEFA_RX_FIRST) != 0)) break;
        req_id = desc.req_id;
        if (!span_of(nic, *qp.device, desc.lkey_ctrl & SOFTEFA_LKEY_MASK, join(desc.addr_lo, desc.addr_hi), desc.length,
                     spans[n]))
            break;
        length += desc.length;
        ++n;
        if (desc.lkey_ctrl & SOFTEFA_RX_LAST) {
            qp.rq_count += static_cast<uint32_t>(n);
            return n;
        }
    }
    ++nic.bad_entries; // no first, no last, or a buffer that is not registered
    qp_fail(nic, qp);
    return 0;
}

void cqe_write(Nic &nic, Cq &cq, softefa_cqe entry) {
    auto *page = reinterpret_cast<softefa_cq_page *>(cq.map);
    uint8_t *slot = cq.ring + cq.produced % cq.entries * sizeof entry;
    entry.flags = static_cast<uint8_t>((entry.flags & ~SOFTEFA_CQE_PHASE) | (((cq.produced / cq.entries) & 1) ^ 1));
    uint64_t head;
    memcpy(&head, &entry, sizeof head);
    memcpy(slot + sizeof head, reinterpret_cast<uint8_t *>(&entry) + sizeof head, sizeof entry - sizeof head);
    __atomic_store_n(reinterpret_cast<uint64_t *>(slot), head, __ATOMIC_RELEASE);
    ++cq.produced;

    __atomic_thread_fence(__ATOMIC_SEQ_CST); // the consumer arms, then looks; we write, then look whether it armed
    const uint32_t bell = __atomic_load_n(&page->doorbell, __ATOMIC_ACQUIRE);
    cq.counts |= bell != 0;
    if (cq.counts && static_cast<uint16_t>(cq.produced - (bell & SOFTEFA_CQ_DB_COUNT)) > cq.entries) {
        ++nic.cq_overruns;
        __atomic_store_n(&page->overruns, page->overruns + 1, __ATOMIC_RELAXED);
    }
    const uint32_t sn = (bell & SOFTEFA_CQ_DB_SN) >> SOFTEFA_CQ_DB_SN_SHIFT;
    if (!(bell & SOFTEFA_CQ_DB_ARM) || (cq.has_fired && sn == cq.fired_sn)) return;
    cq.fired_sn = sn;
    cq.has_fired = true;
    if (cq.channel >= 0 && write(cq.channel, &cq.cookie, sizeof cq.cookie) != sizeof cq.cookie) ++nic.channel_overruns;
}

void cqe_send(Nic &nic, Op &op) {
    if (!op.wants_cqe || op.qp->gone) return;
    softefa_cqe entry = {};
    entry.req_id = op.req_id;
    entry.status = op.status;
    entry.flags = static_cast<uint8_t>(SOFTEFA_SQ << SOFTEFA_CQE_QUEUE_SHIFT | (op.kind & 7) << SOFTEFA_CQE_OP_SHIFT);
    entry.qpn = op.qp->qpn;
    memcpy(entry.u.tx.req_id_ex, op.req_id_ex, sizeof op.req_id_ex);
    cqe_write(nic, *op.qp->send_cq, entry);
}

Op *op_take(Nic &nic) {
    if (nic.op_pool == nullptr) {
        constexpr int kBatch = 256;
        Op *batch = static_cast<Op *>(calloc(kBatch, sizeof(Op)));
        if (batch == nullptr) abort(); // a device without memory cannot go on, and must not answer wrongly
        for (int i = 0; i < kBatch; ++i) {
            batch[i].next = nic.op_pool;
            nic.op_pool = &batch[i];
        }
    }
    Op *op = nic.op_pool;
    nic.op_pool = op->next;
    *op = Op{};
    ++nic.op_count;
    return op;
}

void op_free(Nic &nic, Op *op) {
    op->next = nic.op_pool;
    nic.op_pool = op;
    --nic.op_count;
}

} // namespace softefa
