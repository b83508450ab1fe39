#include "nic_wire.h"

#include <stdlib.h>

namespace softefa {
namespace {

bool before(const Event &a, const Event &b) {
    return a.when < b.when || (a.when == b.when && a.order < b.order);
}

} // namespace

void event_push(Nic &nic, double at, Op *op, uint32_t part, Happens what, double early_ns) {
    if (nic.heap_count == nic.heap_space) {
        nic.heap_space = nic.heap_space == 0 ? 1024 : nic.heap_space * 2;
        nic.heap = static_cast<Event *>(realloc(nic.heap, nic.heap_space * sizeof(Event)));
        if (nic.heap == nullptr) abort(); // see op_take
    }
    const Event event = {at - early_ns, at, nic.event_order++, op, part, what};
    ++op->holds;
    uint32_t i = nic.heap_count++;
    for (; i > 0; i = (i - 1) / 2) {
        if (!before(event, nic.heap[(i - 1) / 2])) break;
        nic.heap[i] = nic.heap[(i - 1) / 2];
    }
    nic.heap[i] = event;
}

bool event_pop(Nic &nic, double now, Event &out) {
    if (nic.heap_count == 0 || nic.heap[0].when > now) return false;
    out = nic.heap[0];
    const Event last = nic.heap[--nic.heap_count];
    uint32_t i = 0;
    for (;;) {
        uint32_t child = 2 * i + 1;
        if (child >= nic.heap_count) break;
        if (child + 1 < nic.heap_count && before(nic.heap[child + 1], nic.heap[child])) ++child;
        if (!before(nic.heap[child], last)) break;
        nic.heap[i] = nic.heap[child];
        i = child;
    }
    nic.heap[i] = last;
    return true;
}

void op_let_go(Nic &nic, Op *op) {
    if (--op->holds == 0 && op->finished) op_free(nic, op);
}

} // namespace softefa
