#include "carrier.h"

#include <stdlib.h>

#include "../proxy/record.h"

// Of libstdc++, which is not linked. Nothing calls a function of an object whose construction is not over.
extern "C" [[noreturn]] void __cxa_pure_virtual() {
    abort();
}

namespace efaprof::dispatch {

RingCarrier::RingCarrier(const Engine &engine) : engine_(engine), rings_{} {
    for (const Engine &one : engine.all())
        rings_[one.proxy] = {one.commands, one.ring_tail, one.ring_capacity, 0, 0};
}

const char *RingCarrier::take(protocol::Command &command, uint64_t t_enter) {
    const Engine &engine = engine_.of(command.channel);
    protocol::Producer &ring = rings_[engine.proxy];
    if (!protocol::has_room(ring)) return "room in the ring";
    uint64_t op = engine.op_of(ring.head);
    command.t_push = efaprof_now();
    protocol::publish(ring, command);
    record_stage(EFAPROF_STAGE_KERNEL, t_enter, command.t_push, words_of(op, command));
    return nullptr;
}

} // namespace efaprof::dispatch
