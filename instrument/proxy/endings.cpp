#include "endings.h"

#include "record.h"
#include "stop.h"

namespace efaprof::dispatch {

namespace {

constexpr uint64_t QUEUE = 8192;

} // namespace

Endings::Endings(Engine &engine, uint64_t most, bool is_told)
    : engine_(engine), receiver_(engine),
      // One look without immediates can find a signal of every (source, channel) as well.
      most_(most + (engine.has_imm ? 0 : engine.word_index(engine.ranks, 0))), is_told_(is_told),
      events_(protocol::power_of_two(QUEUE + most_)) {}

void Endings::scan(uint64_t now) {
    receiver_.scan([&](uint32_t imm) { note({nullptr, imm, now}); });
}

uint32_t Endings::turn() {
    for (uint64_t now = events_.is_empty() ? 0 : efaprof_now(); events_.is_due(now); events_.pop()) {
        if (!handle(events_.front(), engine_.delays.nic != 0 ? now : events_.front().t_read)) break;
    }
    tell();
    uint32_t done = done_;
    done_ = 0;
    return done + receiver_.turn();
}

void Endings::note(const Event &event) {
    if (engine_.delays.nic == 0 && events_.is_empty() && handle(event, event.t_read)) return;
    events_.push(event.t_read + engine_.delays.nic, event);
}

// False: not yet (the thread that posted the operation has not come back from the call, or the receiver is full).
bool Endings::handle(const Event &event, uint64_t t_seen) {
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
    last_seen_ = t_seen;
    last_seq_ = slot.op & EFAPROF_SEQ_MASK;
    last_channel_ = EFAPROF_X_CHANNEL(slot.x);
    record_stage(EFAPROF_STAGE_NIC, t_returned, t_seen, {slot.op, slot.bytes, slot.peer, slot.x}, 0, slot.depth);
    protocol::store_release(&engine_.completed[slot.peer], engine_.completed[slot.peer] + 1);
    protocol::store_relaxed(&engine_.completions.total, engine_.completions.total + 1);
    done_++;
    return true;
}

// Moves the prefix over what has completed. Slots below it may be used again at once, so what the records need
// is copied first.
void Endings::tell() {
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
        uint64_t now = is_told_ ? efaprof_now() : last_seen_; // who reads for itself knows at once
        shared.t_told = now;
        shared.last_seq = last_seq_;
        shared.last_channel = last_channel_;
        if (engine_.journal != nullptr)
            engine_.journal->note_move({shared.prefix + count, now, last_seq_, last_channel_});
        protocol::store_release(&shared.prefix, shared.prefix + count);
        for (size_t i = 0; is_told_ && i < count; i++)
            record_stage(EFAPROF_STAGE_TOLD, finished[i].t_seen, now, finished[i].words);
    }
}

} // namespace efaprof::dispatch
