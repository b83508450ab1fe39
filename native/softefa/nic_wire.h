// What the files of the wire share: planned events (nic_events.cpp), arrival (nic_deliver.cpp), sending (nic_wire.cpp).
#pragma once

#include "nic.h"

namespace softefa {

// nic_events.cpp: the earliest first; ties in the order in which they were planned
// Holds the operation. early_ns: run it that much before its time.
void event_push(Nic &nic, double at, Op *op, uint32_t part, Happens what, double early_ns = 0);
bool event_pop(Nic &nic, double now, Event &out); // false: nothing is due; the caller lets go of the operation
void op_let_go(Nic &nic, Op *op);                 // frees it when it is finished and nothing points at it

// nic_deliver.cpp: `at` is the model's time of what happens
void arrive(Nic &nic, Op *op, uint32_t part, double at, double now);
void deliver_moves(Nic &nic); // copies what has arrived and ends it
double lead_of(const Nic &nic, uint64_t bytes);
void deliver(Nic &nic, Op *op, uint32_t part, double at);
void read_request(Nic &nic, Op *op, double at);           // a read's request has reached its target
void retry(Nic &nic, Op *op, double at);                  // the receiver was not ready before
void answer(Nic &nic, Op *op, double at, uint8_t status); // the response is on its way back
void give_up(Nic &nic, Op *op, double at);                // no response: the operation ends at that time
void no_answer(Nic &nic, Op *op, double at);              // nobody is there: it ends after the model's timeout

inline double later(double a, double b) {
    return a > b ? a : b;
}

inline uint64_t part_bytes(const Nic &nic, const Op &op, uint32_t part) {
    const uint64_t size = static_cast<uint64_t>(kPartPackets) * nic.model.mtu;
    const uint64_t from = part * size;
    return op.length > from ? (op.length - from < size ? op.length - from : size) : 0;
}

inline Place place_of(const Op &op, uint32_t part) {
    return {op.qp->device->index, op.qp->ordinal, op.number, part};
}

} // namespace softefa
