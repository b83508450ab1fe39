#include "complete.h"

#include "record.h"
#include "stop.h"

namespace efaprof::dispatch {

namespace {

constexpr uint64_t QUEUE = 8192;
constexpr size_t BATCH = 16;
constexpr uint64_t SEQ_MASK = 0xFFFFFFFFFFFFu;

uint64_t power_of_two(uint64_t least) {
    uint64_t value = 1;
    while (value < least)
        value *= 2;
    return value;
}

} // namespace

Completer::Completer(Engine &engine)
    : engine_(engine), receiver_(engine),
      // One look can find a full batch and, without immediates, a signal of every (source, channel).
      most_found_(BATCH + (engine.has_imm ? 0 : engine.word_index(engine.ranks, 0))),
      events_(power_of_two(QUEUE + most_found_)) {}

uint32_t Completer::take_tests() {
    uint32_t tests = tests_;
    tests_ = 0;
    return tests;
}

uint32_t Completer::turn() {
    done_ = 0;
    read();
    for (uint64_t now = events_.is_empty() ? 0 : efaprof_now(); events_.is_due(now); events_.pop()) {
        if (!handle(events_.front(), engine_.delays.nic != 0 ? now : events_.front().t_read)) break;
    }
    tell();
    return done_ + receiver_.turn();
}

void Completer::read() {
    if (events_.room() < most_found_) return; // the delays hold too much back already
    fi_cq_data_entry entries[BATCH];
    size_t found = engine_.fabric.poll(entries, BATCH);
    tests_++;
    if (found == Fabric::PollError) fail_entry();
    uint64_t now = found != 0 || !engine_.has_imm ? efaprof_now() : 0;
    for (size_t i = 0; i < found; i++) {
        bool is_arrival = (entries[i].flags & FI_REMOTE_CQ_DATA) != 0;
        note({is_arrival ? nullptr : static_cast<Slot *>(entries[i].op_context), static_cast<uint32_t>(entries[i].data),
              now});
    }
    if (!engine_.has_imm) receiver_.scan([&](uint32_t imm) { note({nullptr, imm, now}); });
}

// Deals with an event at once, or queues it when a delay or an earlier one holds it back.
void Completer::note(const Event &event) {
    if (engine_.delays.nic == 0 && events_.is_empty() && handle(event, event.t_read)) return;
    events_.push(event.t_read + engine_.delays.nic, event);
}

// False: not yet (the thread that posted the operation has not come back from the call, or the receiver is full).
bool Completer::handle(const Event &event, uint64_t t_seen) {
    if (event.slot == nullptr) {
        if (receiver_.room() == 0) return false;
        receiver_.accept(event.imm, t_seen);
        done_++;
        return true;
    }
    Slot &slot = *event.slot;
    uint64_t t_returned = protocol::load_acquire(&slot.t_returned);
    if (t_returned == 0) return false;
    slot.t_seen = t_seen;
    slot.is_done = true;
    last_seq_ = slot.op & SEQ_MASK;
    last_channel_ = EFAPROF_X_CHANNEL(slot.x);
    record_stage(EFAPROF_STAGE_NIC, t_returned, t_seen, {slot.op, slot.bytes, slot.peer, slot.x}, 0, slot.depth);
    protocol::store_release(&engine_.completed[slot.peer], engine_.completed[slot.peer] + 1);
    protocol::store_relaxed(&engine_.completions.total, engine_.completions.total + 1);
    done_++;
    return true;
}

// Moves the prefix over what has completed. Slots below it may be used again at once, so what the records need
// is copied first.
void Completer::tell() {
    struct Finished {
        OpWords words;
        uint64_t t_seen;
    };
    Completions &shared = engine_.completions;
    while (engine_.slot_of(shared.prefix).is_done) {
        Finished finished[64];
        size_t count = 0;
        for (; count < 64 && engine_.slot_of(shared.prefix + count).is_done; count++) {
            Slot &slot = engine_.slot_of(shared.prefix + count);
            slot.is_done = false;
            finished[count] = {{slot.op, slot.bytes, slot.peer, slot.x}, slot.t_seen};
        }
        uint64_t now = efaprof_now();
        shared.t_told = now;
        shared.last_seq = last_seq_;
        shared.last_channel = last_channel_;
        protocol::store_release(&shared.prefix, shared.prefix + count);
        for (size_t i = 0; i < count; i++)
            record_stage(EFAPROF_STAGE_TOLD, finished[i].t_seen, now, finished[i].words);
    }
}

void Completer::fail_entry() {
    EntryError error = engine_.fabric.entry_error();
    if (error.context == nullptr) fail(Cause::Failed, "an arrival failed: %s", error.text);
    const Slot &slot = *static_cast<const Slot *>(error.context);
    fail(Cause::Failed, "a write of %u bytes to rank %u failed: %s", slot.bytes, slot.peer, error.text);
}

} // namespace efaprof::dispatch
