// Arrival: what an operation does at its receiver, and what goes back to the sender.
#include <string.h>

#include "nic_wire.h"

namespace softefa {
namespace {

constexpr uint32_t kGrhBytes = 40; // a datagram lands behind room for a header that is not there

int flip_of(Nic &nic, Op &op, uint32_t part) {
    if (nic.model.corrupt <= 0 || op.length == 0 || op.number < nic.model.corrupt_after) return -1;
    const Place place = place_of(op, part);
    if (draw_unit(nic.model, place, Draw::Corrupt) >= nic.model.corrupt) return -1;
    op.corrupted = true;
    ++nic.corrupted;
    return static_cast<int>(draw_bits(nic.model, place, Draw::CorruptWhere) & 7);
}

bool target_is_up(const Op &op) {
    return op.target != nullptr && op.target->alive;
}

void delivered(Op &op, double at) {
    op.due = later(op.due, at);
    op.delivered_ns = now_ns();
}

// ---- arrival: sends -----------------------------------------------------------------------------
Qp *receiver_of(Nic &nic, const Op &op) {
    Qp *qp = nic.qps[op.dst_qpn];
    const bool fits = qp != nullptr && !qp->gone && qp->device == op.target && qp->type == op.qp->type &&
                      qp->qkey == op.qkey && (qp->state == SOFTEFA_QP_RTR || qp->state == SOFTEFA_QP_RTS);
    return fits ? qp : nullptr;
}

uint16_t handle_for(const Device &at, const Device &peer) {
    return peer.instance < at.ah_of_count ? at.ah_of[peer.instance] : kNowhere;
}

void receive_cqe(Nic &nic, Op &op, Qp &receiver, uint16_t req_id, uint8_t status, uint32_t length) {
    softefa_cqe entry = {};
    entry.req_id = req_id;
    entry.status = status;
    entry.flags =
        static_cast<uint8_t>(SOFTEFA_RQ << SOFTEFA_CQE_QUEUE_SHIFT | op.kind << SOFTEFA_CQE_OP_SHIFT |
                             (op.has_imm ? SOFTEFA_CQE_IMM : 0) | (op.unsolicited ? SOFTEFA_CQE_UNSOLICITED : 0));
    entry.qpn = receiver.qpn;
    entry.u.rx.length_lo = static_cast<uint16_t>(length);
    entry.u.rx.ah = handle_for(*receiver.device, *op.qp->device);
    entry.u.rx.src_qpn = op.qp->qpn;
    entry.imm = op.imm;
    if (op.kind == SOFTEFA_WRITE)
        entry.ex.rdma.length_hi = static_cast<uint16_t>(length >> 16);
    else if (entry.u.rx.ah == SOFTEFA_AH_UNKNOWN)
        memcpy(entry.ex.src_gid, op.qp->device->gid, sizeof entry.ex.src_gid);
    if (op.kind == SOFTEFA_SEND) counter_count(receiver, SOFTEFA_COUNTS_RECV, status, length);
    cqe_write(nic, *receiver.recv_cq, entry);
    op.rx_cqe_ns = now_ns();
}

// The receiver had no entry in its queue.
void not_ready(Nic &nic, Op *op, double at) {
    ++op->target->counters.rx_drops;
    if (op->qp->type == SOFTEFA_QP_UD) return answer(nic, op, at, SOFTEFA_OK);
    ++op->rnr;
    if (op->qp->rnr_retry != SOFTEFA_RNR_FOREVER && op->rnr > op->qp->rnr_retry)
        return answer(nic, op, at, SOFTEFA_REMOTE_RNR);
    event_push(nic, at + nic.model.rnr_ns, op, 0, Happens::Retry);
}

// Copies are made together, at the end of the turn: a system call for each would cost more than the copy.
Copy &move_later(Nic &nic, Op *op, uint32_t part, uint64_t bytes, double at) {
    if (nic.move_count == kMoves || nic.move_bytes + bytes > kMoveBytes) deliver_moves(nic);
    Copy &copy = nic.moves[nic.move_count++];
    nic.move_bytes += bytes;
    copy = Copy{};
    copy.op = op;
    copy.part = part;
    copy.at = at;
    copy.bytes = bytes;
    copy.flip = flip_of(nic, *op, part);
    ++op->holds;
    return copy;
}

void deliver_send(Nic &nic, Op *op, double at) {
    Qp *receiver = receiver_of(nic, *op);
    if (receiver == nullptr) return answer(nic, op, at, SOFTEFA_REMOTE_BAD_QPN);
    Span spans[kSpans];
    uint32_t space = 0;
    uint16_t req_id = 0;
    const int n = receive_take(nic, *receiver, spans, kSpans, space, req_id);
    if (n == 0) return not_ready(nic, op, at);
    const uint32_t skip = op->qp->type == SOFTEFA_QP_UD ? kGrhBytes : 0;
    if (space < op->length + skip) {
        receive_cqe(nic, *op, *receiver, req_id, SOFTEFA_BAD_LENGTH, 0);
        return answer(nic, op, at, SOFTEFA_REMOTE_BAD_LENGTH);
    }
    Copy &copy = move_later(nic, op, 0, op->length, at);
    copy.from = op->qp->device->pid;
    copy.to = op->target->pid;
    copy.sources = span_slice(op->local, op->locals, 0, op->length, copy.source);
    copy.targets = span_slice(spans, static_cast<uint32_t>(n), skip, op->length, copy.target);
    copy.inline_data = op->is_inline ? op->inline_data : nullptr;
    copy.receiver = receiver;
    copy.skip = skip;
    copy.req_id = req_id;
}

void send_moved(Nic &nic, const Copy &copy) {
    Op *op = copy.op;
    switch (copy.result) {
    case Copied::Yes: break;
    case Copied::SourceGone:
    case Copied::SourceFault: // the receive is spent: say so
        receive_cqe(nic, *op, *copy.receiver, copy.req_id, SOFTEFA_REMOTE_ABORT, 0);
        return answer(nic, op, copy.at, SOFTEFA_INVALID_LKEY);
    case Copied::TargetGone: return no_answer(nic, op, copy.at);
    case Copied::TargetFault:
        receive_cqe(nic, *op, *copy.receiver, copy.req_id, SOFTEFA_INVALID_LKEY, 0);
        return answer(nic, op, copy.at, SOFTEFA_REMOTE_ABORT);
    }
    delivered(*op, copy.at);
    ++op->target->counters.recv_wrs;
    op->target->counters.recv_bytes += op->length;
    receive_cqe(nic, *op, *copy.receiver, copy.req_id, SOFTEFA_OK, op->length + copy.skip);
    answer(nic, op, copy.at, SOFTEFA_OK);
}

// ---- arrival: RDMA ------------------------------------------------------------------------------
uint8_t check_remote(Nic &nic, const Op &op, uint32_t access, Span &out) {
    if (receiver_of(nic, op) == nullptr) return SOFTEFA_REMOTE_BAD_QPN;
    if (handle_for(*op.target, *op.qp->device) == kNowhere) return SOFTEFA_UNKNOWN_PEER;
    out = {};
    if (op.length == 0) return SOFTEFA_OK;
    const Mr *mr = mr_find(nic, op.rkey);
    const bool fits = mr != nullptr && mr->device == op.target && (mr->access & access) && op.raddr >= mr->iova &&
                      op.length <= mr->length && op.raddr - mr->iova <= mr->length - op.length;
    if (!fits) return SOFTEFA_REMOTE_BAD_ADDRESS;
    const uint64_t offset = op.raddr - mr->iova;
    out = {mr->addr + offset, op.length, mr->here != nullptr ? mr->here + offset : nullptr};
    return SOFTEFA_OK;
}

void finish_write(Nic &nic, Op *op, double at) {
    Qp *receiver = receiver_of(nic, *op);
    if (receiver == nullptr) return answer(nic, op, at, SOFTEFA_REMOTE_BAD_QPN);
    if (op->has_imm) {
        uint16_t req_id = 0;
        op->unsolicited = receiver->flags & SOFTEFA_QP_UNSOLICITED;
        if (!op->unsolicited) {
            Span spans[kSpans];
            uint32_t space = 0;
            if (receive_take(nic, *receiver, spans, kSpans, space, req_id) == 0) return not_ready(nic, op, at);
        }
        op->due = later(op->due, at);
        receive_cqe(nic, *op, *receiver, req_id, SOFTEFA_OK, op->length);
    }
    counter_count(*receiver, SOFTEFA_COUNTS_REMOTE_WRITE, SOFTEFA_OK, op->length);
    answer(nic, op, at, SOFTEFA_OK);
}

// One part of a write (towards the target) or of a read (towards the initiator).
void deliver_part(Nic &nic, Op *op, uint32_t part, double at) {
    const bool reads = op->kind == SOFTEFA_READ;
    Span remote;
    const uint8_t status =
        check_remote(nic, *op, reads ? SOFTEFA_ACCESS_REMOTE_READ : SOFTEFA_ACCESS_REMOTE_WRITE, remote);
    if (status != SOFTEFA_OK) return answer(nic, op, at, status);
    const uint64_t bytes = part_bytes(nic, *op, part);
    const uint64_t from = static_cast<uint64_t>(part) * kPartPackets * nic.model.mtu;
    Copy &copy = move_later(nic, op, part, bytes, at);
    Span *near = reads ? copy.target : copy.source, *far = reads ? copy.source : copy.target;
    const uint32_t nears = span_slice(op->local, op->locals, from, bytes, near);
    const uint32_t fars = span_slice(&remote, 1, from, bytes, far);
    copy.sources = reads ? fars : nears;
    copy.targets = reads ? nears : fars;
    const pid_t own = op->qp->device->pid, peer = op->target->pid;
    copy.from = reads ? peer : own;
    copy.to = reads ? own : peer;
}

void part_moved(Nic &nic, const Copy &copy) {
    Op *op = copy.op;
    const bool reads = op->kind == SOFTEFA_READ;
    if (copy.result == (reads ? Copied::SourceGone : Copied::TargetGone)) return no_answer(nic, op, copy.at);
    if (copy.result == (reads ? Copied::SourceFault : Copied::TargetFault))
        return answer(nic, op, copy.at, SOFTEFA_REMOTE_BAD_ADDRESS);
    if (copy.result != Copied::Yes) return answer(nic, op, copy.at, SOFTEFA_INVALID_LKEY);
    if (!reads) op->target->counters.rdma_write_recv_bytes += copy.bytes;
    op->due = later(op->due, copy.at);
    if (++op->parts_done < op->parts) return;
    delivered(*op, copy.at);
    if (!reads) return finish_write(nic, op, copy.at);
    if (const Qp *asked = receiver_of(nic, *op))
        counter_count(*asked, SOFTEFA_COUNTS_REMOTE_READ, SOFTEFA_OK, op->length);
    op->answering = true;
    event_push(nic, copy.at, op, 0, Happens::Finish);
}

uint32_t size_class(uint64_t bytes) {
    return bytes < 2 ? 0 : static_cast<uint32_t>(63 - __builtin_clzll(bytes));
}

} // namespace

void answer(Nic &nic, Op *op, double at, uint8_t status) {
    if (op->answering) return;
    op->answering = true;
    op->status = status;
    event_push(nic, at + nic.model.latency_ns, op, 0, Happens::Finish);
}

void give_up(Nic &nic, Op *op, double at) {
    if (op->answering) return;
    op->answering = true;
    event_push(nic, at, op, 0, Happens::GiveUp);
}

void no_answer(Nic &nic, Op *op, double at) {
    give_up(nic, op, at + nic.model.timeout_ns);
}

void deliver_moves(Nic &nic) {
    if (nic.move_count == 0) return;
    const int count = nic.move_count;
    const double began = model_now(nic);
    memory_move(nic.moves, count);
    if (count == 1) { // what one copy takes, smoothed; alone, or it would not be the cost of one
        double &lead = nic.lead_ns[size_class(nic.moves[0].bytes)];
        const double took = model_now(nic) - began, most = 2 * lead + 500; // a copy that was preempted says nothing
        lead += ((took < most ? took : most) - lead) / 16;
    }
    nic.move_count = 0;
    nic.move_bytes = 0;
    for (int i = 0; i < count; ++i) {
        const Copy &copy = nic.moves[i];
        if (!copy.op->answering) copy.op->kind == SOFTEFA_SEND ? send_moved(nic, copy) : part_moved(nic, copy);
        op_let_go(nic, copy.op);
    }
}

double lead_of(const Nic &nic, uint64_t bytes) {
    return nic.lead_ns[size_class(bytes)];
}

void deliver(Nic &nic, Op *op, uint32_t part, double at) {
    if (!target_is_up(*op)) return no_answer(nic, op, at);
    Device &to = op->kind == SOFTEFA_READ ? *op->qp->device : *op->target;
    const uint64_t bytes = part_bytes(nic, *op, part);
    to.counters.rx_bytes += bytes;
    to.counters.rx_pkts += packets_of(nic.model, bytes);
    if (op->kind == SOFTEFA_SEND) return deliver_send(nic, op, at);
    deliver_part(nic, op, part, at);
}

// The receiving side's wire takes one part after the other, at its own rate.
void arrive(Nic &nic, Op *op, uint32_t part, double at, double now) {
    if (!target_is_up(*op)) return no_answer(nic, op, at);
    Device &to = op->kind == SOFTEFA_READ ? *op->qp->device : *op->target;
    const uint64_t bytes = part_bytes(nic, *op, part);
    const double held = wire_ns(nic.model, bytes, packets_of(nic.model, bytes));
    const double when = held > 0 ? later(at, to.rx_free + held) : at;
    if (held > 0) to.rx_free = when;
    const double early_ns = lead_of(nic, bytes);
    if (when - early_ns <= now) return deliver(nic, op, part, when);
    event_push(nic, when, op, part, Happens::Deliver, early_ns);
}

void read_request(Nic &nic, Op *op, double at) {
    if (!target_is_up(*op)) return no_answer(nic, op, at);
    Span remote;
    const uint8_t status = check_remote(nic, *op, SOFTEFA_ACCESS_REMOTE_READ, remote);
    if (status != SOFTEFA_OK) return answer(nic, op, at, status);
    Device &target = *op->target;
    op->ready = at;
    op->next = nullptr;
    ++op->holds;
    (target.read_last != nullptr ? target.read_last->next : target.read_first) = op;
    target.read_last = op;
}

void retry(Nic &nic, Op *op, double at) {
    if (!target_is_up(*op)) return no_answer(nic, op, at);
    return op->kind == SOFTEFA_SEND ? deliver_send(nic, op, at) : finish_write(nic, op, at);
}

} // namespace softefa
