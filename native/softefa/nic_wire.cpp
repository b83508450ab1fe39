// The wire: which part goes out next, when it arrives, what it does there. Times are the model's plan; an event runs
// when its time has come, or later when the machine is busy, and what follows is planned from the plan, so that
// lateness does not add up.
#include "nic.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "nic_events.h"

namespace softefa {
namespace {

constexpr int kTurnParts = 64; // parts that one call puts on the wire, so that events are not starved
constexpr uint32_t kGrhBytes = 40;

double later(double a, double b) {
    return a > b ? a : b;
}

uint64_t part_bytes(const Nic &nic, const Op &op, uint32_t part) {
    const uint64_t size = static_cast<uint64_t>(kPartPackets) * nic.model.mtu;
    const uint64_t from = part * size;
    return op.length > from ? (op.length - from < size ? op.length - from : size) : 0;
}

Place place_of(const Op &op, uint32_t part) {
    return {op.qp->device->index, op.qp->ordinal, op.number, part};
}

int flip_of(Nic &nic, Op &op, uint32_t part) {
    if (nic.model.corrupt <= 0 || op.length == 0) return -1;
    const Place place = place_of(op, part);
    if (draw_unit(nic.model, place, Draw::Corrupt) >= nic.model.corrupt) return -1;
    op.corrupted = true;
    ++nic.corrupted;
    return static_cast<int>(draw_bits(nic.model, place, Draw::CorruptWhere) & 7);
}

// ---- how an operation ends ----------------------------------------------------------------------
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

Copied copy_send(Nic &nic, Op &op, const Span *spans, uint32_t count, uint32_t skip) {
    const int flip = flip_of(nic, op, 0);
    if (op.is_inline) return memory_put(op.inline_data, op.length, op.target->pid, spans, count, skip, flip);
    return memory_copy(op.qp->device->pid, op.local, op.locals, 0, op.target->pid, spans, count, skip, op.length, flip);
}

void deliver_send(Nic &nic, Op *op, double at) {
    Qp *receiver = receiver_of(nic, *op);
    if (receiver == nullptr) return answer(nic, op, at, SOFTEFA_REMOTE_BAD_QPN);
    Span spans[4];
    uint32_t space = 0;
    uint16_t req_id = 0;
    const int n = receive_take(nic, *receiver, spans, 4, space, req_id);
    if (n == 0) return not_ready(nic, op, at);
    const uint32_t skip = op->qp->type == SOFTEFA_QP_UD ? kGrhBytes : 0;
    if (space < op->length + skip) {
        receive_cqe(nic, *op, *receiver, req_id, SOFTEFA_BAD_LENGTH, 0);
        return answer(nic, op, at, SOFTEFA_REMOTE_BAD_LENGTH);
    }
    switch (copy_send(nic, *op, spans, static_cast<uint32_t>(n), skip)) {
    case Copied::Yes: break;
    case Copied::SourceGone:
    case Copied::SourceFault: // nothing was placed: the receive is as before
        receiver->rq_count -= static_cast<uint32_t>(n);
        return answer(nic, op, at, SOFTEFA_INVALID_LKEY);
    case Copied::TargetGone: return no_answer(nic, op, at);
    case Copied::TargetFault:
        receive_cqe(nic, *op, *receiver, req_id, SOFTEFA_INVALID_LKEY, 0);
        return answer(nic, op, at, SOFTEFA_REMOTE_ABORT);
    }
    delivered(*op, at);
    ++op->target->counters.recv_wrs;
    op->target->counters.recv_bytes += op->length;
    receive_cqe(nic, *op, *receiver, req_id, SOFTEFA_OK, op->length + skip);
    answer(nic, op, at, SOFTEFA_OK);
}

// ---- arrival: RDMA ------------------------------------------------------------------------------
uint8_t check_remote(Nic &nic, const Op &op, uint32_t access, uint64_t &addr) {
    if (receiver_of(nic, op) == nullptr) return SOFTEFA_REMOTE_BAD_QPN;
    if (handle_for(*op.target, *op.qp->device) == kNowhere) return SOFTEFA_UNKNOWN_PEER;
    addr = 0;
    if (op.length == 0) return SOFTEFA_OK;
    const Mr *mr = mr_find(nic, op.rkey);
    const bool fits = mr != nullptr && mr->device == op.target && (mr->access & access) && op.raddr >= mr->iova &&
                      op.length <= mr->length && op.raddr - mr->iova <= mr->length - op.length;
    if (!fits) return SOFTEFA_REMOTE_BAD_ADDRESS;
    addr = mr->addr + (op.raddr - mr->iova);
    return SOFTEFA_OK;
}

void finish_write(Nic &nic, Op *op, double at) {
    if (op->has_imm) {
        Qp *receiver = receiver_of(nic, *op);
        if (receiver == nullptr) return answer(nic, op, at, SOFTEFA_REMOTE_BAD_QPN);
        uint16_t req_id = 0;
        op->unsolicited = receiver->flags & SOFTEFA_QP_UNSOLICITED;
        if (!op->unsolicited) {
            Span spans[4];
            uint32_t space = 0;
            if (receive_take(nic, *receiver, spans, 4, space, req_id) == 0) return not_ready(nic, op, at);
        }
        op->due = later(op->due, at);
        receive_cqe(nic, *op, *receiver, req_id, SOFTEFA_OK, op->length);
    }
    answer(nic, op, at, SOFTEFA_OK);
}

// One part of a write (towards the target) or of a read (towards the initiator).
void deliver_part(Nic &nic, Op *op, uint32_t part, double at) {
    const bool reads = op->kind == SOFTEFA_READ;
    uint64_t addr = 0;
    const uint8_t status =
        check_remote(nic, *op, reads ? SOFTEFA_ACCESS_REMOTE_READ : SOFTEFA_ACCESS_REMOTE_WRITE, addr);
    if (status != SOFTEFA_OK) return answer(nic, op, at, status);
    const uint64_t bytes = part_bytes(nic, *op, part);
    const uint64_t from = static_cast<uint64_t>(part) * kPartPackets * nic.model.mtu;
    const Span remote = {addr, op->length};
    const int flip = flip_of(nic, *op, part);
    const pid_t own = op->qp->device->pid, peer = op->target->pid;
    const Copied copied = reads ? memory_copy(peer, &remote, 1, from, own, op->local, op->locals, from, bytes, flip)
                                : memory_copy(own, op->local, op->locals, from, peer, &remote, 1, from, bytes, flip);
    if (copied == (reads ? Copied::SourceGone : Copied::TargetGone)) return no_answer(nic, op, at);
    if (copied == (reads ? Copied::SourceFault : Copied::TargetFault))
        return answer(nic, op, at, SOFTEFA_REMOTE_BAD_ADDRESS);
    if (copied != Copied::Yes) return answer(nic, op, at, SOFTEFA_INVALID_LKEY);
    if (!reads) op->target->counters.rdma_write_recv_bytes += bytes;
    op->due = later(op->due, at);
    if (++op->parts_done < op->parts) return;
    delivered(*op, at);
    if (!reads) return finish_write(nic, op, at);
    op->answering = true;
    event_push(nic, at, op, 0, Happens::Finish);
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
    if (when <= now) return deliver(nic, op, part, when);
    event_push(nic, when, op, part, Happens::Deliver);
}

void read_request(Nic &nic, Op *op, double at) {
    if (!target_is_up(*op)) return no_answer(nic, op, at);
    uint64_t addr = 0;
    const uint8_t status = check_remote(nic, *op, SOFTEFA_ACCESS_REMOTE_READ, addr);
    if (status != SOFTEFA_OK) return answer(nic, op, at, status);
    Device &target = *op->target;
    op->ready = at;
    op->next = nullptr;
    ++op->holds;
    (target.read_last != nullptr ? target.read_last->next : target.read_first) = op;
    target.read_last = op;
}

// ---- sending ------------------------------------------------------------------------------------
void put_on_wire(Nic &nic, Device &device, Op *op, uint32_t part, uint64_t bytes, double start, Happens what) {
    const uint32_t packets = packets_of(nic.model, bytes);
    device.wire_free = start + wire_ns(nic.model, bytes, packets);
    const Flight flight = flight_of(nic.model, place_of(*op, what == Happens::ReadRequest ? ~0u : part), packets);
    op->detour |= flight.detour;
    op->retransmits += flight.retransmits;
    device.counters.tx_bytes += bytes;
    device.counters.tx_pkts += packets + flight.retransmits;
    device.counters.retrans_pkts += flight.retransmits;
    device.counters.retrans_bytes += flight.retransmits * (bytes < nic.model.mtu ? bytes : nic.model.mtu);
    const double at = device.wire_free + flight.delay_ns;
    if (flight.lost && op->qp->type == SOFTEFA_QP_UD) return answer(nic, op, at, SOFTEFA_OK);
    if (flight.lost) return give_up(nic, op, at);
    event_push(nic, at, op, part, what);
}

void count_start(Nic &nic, Device &device, const Op &op) {
    ++nic.operations;
    nic.bytes += op.length;
    Counters &c = device.counters;
    if (op.kind == SOFTEFA_SEND) {
        ++c.send_wrs;
        c.send_bytes += op.length;
    } else if (op.kind == SOFTEFA_WRITE) {
        ++c.rdma_write_wrs;
        c.rdma_write_bytes += op.length;
    } else {
        ++c.rdma_read_wrs;
        c.rdma_read_bytes += op.length;
    }
}

void unlink_first(Qp &qp) {
    Op *op = qp.first;
    qp.first = op->next;
    if (qp.first == nullptr) qp.last = nullptr;
    op->next = nullptr;
    op->in_queue = false;
}

bool may_send(const Nic &nic, const Device &device, const Qp &qp, double now) {
    if (qp.first == nullptr) return false;
    if (qp.first->started) return true;
    return device.engine_free <= now && (nic.model.window == 0 || qp.in_flight < nic.model.window);
}

void send_part(Nic &nic, Device &device, Qp &qp) {
    Op *op = qp.first;
    double start = later(device.wire_free, op->ready);
    if (!op->started) {
        start = later(start, device.engine_free);
        if (nic.model.window > 0) start = later(start, qp.window_free);
        device.engine_free = start + (nic.model.ops_s > 0 ? 1e9 / nic.model.ops_s : 0);
        op->started = true;
        op->start = op->due = start;
        ++qp.in_flight;
        count_start(nic, device, *op);
    }
    if (op->kind == SOFTEFA_READ) {
        unlink_first(qp);
        return put_on_wire(nic, device, op, 0, 0, start, Happens::ReadRequest);
    }
    const uint32_t part = op->next_part++;
    if (op->next_part == op->parts) unlink_first(qp);
    put_on_wire(nic, device, op, part, part_bytes(nic, *op, part), start, Happens::Arrive);
}

void answer_part(Nic &nic, Device &device) {
    Op *op = device.read_first;
    if (!op->finished && !op->answering) {
        const uint32_t part = op->next_part++;
        const uint64_t bytes = part_bytes(nic, *op, part);
        device.counters.rdma_read_resp_bytes += bytes;
        put_on_wire(nic, device, op, part, bytes, later(device.wire_free, op->ready), Happens::Arrive);
        if (op->next_part < op->parts) return;
    }
    device.read_first = op->next;
    if (device.read_first == nullptr) device.read_last = nullptr;
    op->next = nullptr;
    op_let_go(nic, op);
}

void happen(Nic &nic, const Event &event, double now) {
    Op *op = event.op;
    if (event.what == Happens::Finish || event.what == Happens::GiveUp) {
        Device &own = *op->qp->device;
        Ah *ah = op->ah < own.ah_count ? &own.ahs[op->ah] : nullptr;
        if (event.what == Happens::Finish) {
            if (ah != nullptr) ah->answered = true;
        } else {
            op->status = ah != nullptr && ah->answered ? SOFTEFA_UNRESPONSIVE : SOFTEFA_UNREACHABLE;
            ++own.counters.retrans_timeout_events;
            ++own.counters.unresponsive_remote_events;
        }
        return wire_done(nic, op, event.at);
    }
    if (op->answering) return;
    switch (event.what) {
    case Happens::Arrive: return arrive(nic, op, event.part, event.at, now);
    case Happens::Deliver: return deliver(nic, op, event.part, event.at);
    case Happens::ReadRequest: return read_request(nic, op, event.at);
    default: // Retry
        if (!target_is_up(*op)) return no_answer(nic, op, event.at);
        return op->kind == SOFTEFA_SEND ? deliver_send(nic, op, event.at) : finish_write(nic, op, event.at);
    }
}

} // namespace

bool wire_schedule(Nic &nic, Device &device, double now) {
    bool did = false;
    for (int sent = 0; sent < kTurnParts && device.wire_free <= now; ++sent) {
        const uint32_t sources = device.qp_count + 1; // the last one: reads that we answer
        uint32_t tried = 0;
        for (; tried < sources; ++tried) {
            const uint32_t turn = device.qp_turn++ % sources;
            if (turn == device.qp_count) {
                if (device.read_first == nullptr) continue;
                answer_part(nic, device);
                break;
            }
            if (!may_send(nic, device, *device.qps[turn], now)) continue;
            send_part(nic, device, *device.qps[turn]);
            break;
        }
        if (tried == sources) break;
        did = true;
    }
    return did;
}

bool wire_run(Nic &nic, double now) {
    bool did = false;
    Event event;
    for (int i = 0; i < kTurnParts && event_pop(nic, now, event); ++i) {
        did = true;
        if (!event.op->finished) happen(nic, event, now);
        op_let_go(nic, event.op);
    }
    return did;
}

double wire_next(const Nic &nic) {
    return nic.heap_count > 0 ? nic.heap[0].at : HUGE_VAL;
}

void wire_done(Nic &nic, Op *op, double at) {
    Qp *qp = op->qp;
    Counters &c = qp->device->counters;
    if (op->in_queue) { // ended before it was wholly sent
        Op **link = &qp->first;
        Op *before = nullptr;
        while (*link != op) {
            before = *link;
            link = &(*link)->next;
        }
        *link = op->next;
        if (qp->last == op) qp->last = before;
        op->in_queue = false;
    }
    if (op->started) {
        --qp->in_flight;
        qp->window_free = later(qp->window_free, at);
    }
    if (op->status != SOFTEFA_OK) {
        ++nic.errors;
        if (op->kind == SOFTEFA_READ) ++c.rdma_read_wr_err;
        if (op->kind == SOFTEFA_WRITE) ++c.rdma_write_wr_err;
    }
    cqe_send(nic, *op);
    const int64_t cqe_ns = op->wants_cqe && !qp->gone ? now_ns() : 0;
    late_count(nic, *op);
    truth_write(nic, *op, cqe_ns);
    op->finished = true;
    if (op->holds == 0) op_free(nic, op);
    qp_release(nic, qp);
}

void wire_lost(Nic &nic, Device &device) {
    for (Op *op = device.read_first; op != nullptr;) {
        Op *next = op->next;
        op->next = nullptr;
        if (!op->finished) no_answer(nic, op, model_now(nic));
        op_let_go(nic, op);
        op = next;
    }
    device.read_first = device.read_last = nullptr;
}

} // namespace softefa
