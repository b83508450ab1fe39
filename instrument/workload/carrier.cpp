#include "carrier.h"

#include <stdlib.h>

#include "../proxy/record.h"

// Of libstdc++, which is not linked. Nothing calls a function of an object whose construction is not over.
extern "C" [[noreturn]] void __cxa_pure_virtual() {
    abort();
}

namespace efaprof::dispatch {

RingCarrier::RingCarrier(Engine &engine)
    : engine_(engine), ring_{engine.commands, engine.ring_tail, engine.ring_capacity, 0, 0} {}

const char *RingCarrier::take(protocol::Command &command, uint64_t t_enter) {
    if (!protocol::has_room(ring_)) return "room in the ring";
    command.t_push = efaprof_now();
    protocol::publish(ring_, command);
    record_stage(EFAPROF_STAGE_KERNEL, t_enter, command.t_push, words_of(engine_.op_of(head_), command));
    head_ = ring_.head;
    return nullptr;
}

} // namespace efaprof::dispatch
