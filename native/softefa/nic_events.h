// The planned events, earliest first; ties in the order in which they were planned.
#pragma once

#include "nic.h"

namespace softefa {

void event_push(Nic &nic, double at, Op *op, uint32_t part, Happens what); // holds the operation
bool event_pop(Nic &nic, double now, Event &out); // false: nothing is due; the caller lets go of the operation
void op_let_go(Nic &nic, Op *op);                 // frees it when it is finished and nothing points at it

} // namespace softefa
