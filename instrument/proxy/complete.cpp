#include "complete.h"

#include <efaprof/trace.h>

#include "stop.h"

namespace efaprof::dispatch {

namespace {

constexpr size_t BATCH = 16;

} // namespace

Completer::Completer(Engine &engine) : engine_(engine), endings_(engine, BATCH, true) {}

uint32_t Completer::take_tests() {
    uint32_t tests = tests_;
    tests_ = 0;
    return tests;
}

uint32_t Completer::turn() {
    read();
    return endings_.turn();
}

void Completer::read() {
    if (!endings_.has_room()) return;
    fi_cq_data_entry entries[BATCH];
    size_t found = engine_.fabric.poll(entries, BATCH);
    tests_++;
    if (found == Fabric::PollError) fail_entry();
    uint64_t now = found != 0 || !engine_.has_imm ? efaprof_now() : 0;
    for (size_t i = 0; i < found; i++) {
        bool is_arrival = (entries[i].flags & FI_REMOTE_CQ_DATA) != 0;
        endings_.note({is_arrival ? nullptr : static_cast<Slot *>(entries[i].op_context),
                       static_cast<uint32_t>(entries[i].data), now});
    }
    if (!engine_.has_imm) endings_.scan(now);
}

void Completer::fail_entry() {
    EntryError error = engine_.fabric.entry_error();
    if (error.context == nullptr) fail(Cause::Failed, "an arrival failed: %s", error.text);
    const Slot &slot = *static_cast<const Slot *>(error.context);
    fail(Cause::Failed, "a write of %u bytes to rank %u failed: %s", slot.bytes, slot.peer, error.text);
}

} // namespace efaprof::dispatch
