// The wire: which part goes out next, and the events that follow. Times are the model's plan; an event runs when its
// time has come, or later when the machine is busy, and what follows is planned from the plan, so that lateness does
// not add up.
#include "nic_wire.h"

#include <math.h>
#include <stdlib.h>

namespace softefa {
namespace {

constexpr int kTurnParts = 64; // parts that one call puts on the wire, so that events are not starved

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
    // Where the receiver's own rate cannot hold the part back, its arrival is its delivery.
    const bool is_delivery = what == Happens::Arrive && wire_ns(nic.model, bytes, packets) == 0;
    const double early_ns = is_delivery ? lead_of(nic, bytes) : 0;
    event_push(nic, at, op, part, what, early_ns < flight.delay_ns ? early_ns : flight.delay_ns);
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
    default: return retry(nic, op, event.at);
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
    deliver_moves(nic);
    return did;
}

double wire_next(const Nic &nic) {
    return nic.heap_count > 0 ? nic.heap[0].when : HUGE_VAL;
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
    if (op->status == SOFTEFA_FLUSHED) ++nic.flushed;
    if (op->status != SOFTEFA_OK && op->status != SOFTEFA_FLUSHED) {
        ++nic.errors;
        if (op->kind == SOFTEFA_READ) ++c.rdma_read_wr_err;
        if (op->kind == SOFTEFA_WRITE) ++c.rdma_write_wr_err;
    }
    constexpr softefa_counted kOwn[] = {SOFTEFA_COUNTS_SEND, SOFTEFA_COUNTS_READ, SOFTEFA_COUNTS_WRITE};
    if (op->kind <= SOFTEFA_WRITE) counter_count(*qp, kOwn[op->kind], op->status, op->length);
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
