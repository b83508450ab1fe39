#include "carrier.h"

#include <stdio.h>
#include <string.h>

#include "../protocol/routing.h"
#include "../proxy/make.h"

namespace efaprof::dispatch {

namespace {

using protocol::CounterWatch;
using protocol::CqWatch;

CqWatch &watch_of(GdaQueues &queues, const CqWatch *) {
    return queues.completions;
}
CounterWatch &watch_of(GdaQueues &queues, const CounterWatch *) {
    return queues.counter;
}

template <typename Watch> constexpr bool NAMES_OPERATIONS = false;
template <> constexpr bool NAMES_OPERATIONS<CqWatch> = true;

constexpr uint64_t LOOK_ENTRIES = 64; // more than one look at a queue takes

} // namespace

template <typename Watch>
GdaCarrier<Watch>::GdaCarrier(Engine &engine, GdaQueues &queues, const GdaCarrierOptions &options)
    : engine_(engine), queues_(queues), watch_(watch_of(queues, static_cast<Watch *>(nullptr))), options_(options),
      endings_(engine, NAMES_OPERATIONS<Watch> ? LOOK_ENTRIES : engine.slot_count, false),
      posted_(make<uint64_t>(engine.ranks)), is_flying_(make<uint8_t>(engine.slot_count)), random_(options.seed) {
    const protocol::SendQueue &send = queues.send;
    if (options_.batch > MOST_BATCH) options_.batch = MOST_BATCH;
    if (options_.batch > send.max_batch) options_.batch = send.max_batch;
    if (options_.batch > send.count) options_.batch = send.count;
}

template <typename Watch> GdaCarrier<Watch>::~GdaCarrier() {
    free(posted_);
    free(is_flying_);
}

// Everything that was posted to the peer has ended; with a counter, everything that was posted at all.
template <typename Watch> bool GdaCarrier<Watch>::is_ordered(uint16_t peer) const {
    if (NAMES_OPERATIONS<Watch>) return engine_.completed[peer] == posted_[peer];
    return engine_.completions.total == head_;
}

template <typename Watch> const char *GdaCarrier<Watch>::take(protocol::Command &command, uint64_t t_enter) {
    if (!is_begun_) {
        is_begun_ = true;
        was_ordered_late_ = has_place_ = false;
        now_ = {};
        now_.t_enter = now_.t_ordered = t_enter;
    }
    if (!has_place_) {
        if ((command.flags & protocol::FLAG_FENCE) != 0 && !is_ordered(command.peer)) {
            announce();
            was_ordered_late_ = true;
            return "its earlier writes to that rank";
        }
        if (was_ordered_late_) now_.t_ordered = efaprof_now();
        was_ordered_late_ = false;
        if (head_ - engine_.completions.prefix >= engine_.slot_count) {
            announce();
            return "an operation in flight to end";
        }
        place_ = protocol::reserve(queues_.send, 1);
        has_place_ = true;
        now_.t_slot = efaprof_now();
    }
    if (!protocol::has_space(queues_.send, place_, protocol::ended(watch_))) {
        announce();
        return "space in the send queue";
    }
    now_.t_space = efaprof_now();
    write(command);
    is_begun_ = false;
    if (held_ >= options_.batch) announce();
    return nullptr;
}

template <typename Watch> void GdaCarrier<Watch>::write(const protocol::Command &command) {
    uint64_t slot_number = head_ & (engine_.slot_count - 1);
    OpWords words = words_of(engine_.op_of(head_), command);
    Slot &slot = engine_.slots[slot_number];
    slot.op = words.op;
    slot.bytes = words.bytes;
    slot.peer = words.peer;
    slot.x = words.x;
    slot.depth = now_.depth = log2_depth(head_ - engine_.completions.total);
    protocol::store_relaxed(&slot.t_returned, 0);
    protocol::WriteWork work = {
        queues_.base + uint64_t{command.src_off} * protocol::UNIT_BYTES,
        uint64_t{command.dst_off} * protocol::UNIT_BYTES,
        command.bytes,
        queues_.lkey,
        protocol::pack_imm(engine_.rank, command.channel, command.flags >> protocol::WIRE_SHIFT),
        static_cast<uint16_t>(slot_number),
        (command.flags & protocol::FLAG_IMM) != 0,
    };
    softefa_wqe wqe = protocol::build_write(work, queues_.targets[command.peer]);
    if (options_.fuzz != 0) spoil(wqe);
    protocol::write_entry(queues_.send, place_, wqe);
    is_flying_[slot_number] = 1;
    posted_[command.peer]++;
    now_.words = words;
    now_.t_built = efaprof_now();
    if (held_ == 0) first_ = place_;
    written_[held_++] = now_;
    head_++;
}

template <typename Watch> void GdaCarrier<Watch>::spoil(softefa_wqe &wqe) {
    random_ = protocol::mix(random_);
    if (random_ % 1000 >= options_.fuzz) return;
    uint32_t bit = static_cast<uint32_t>(random_ >> 32) % (sizeof wqe * 8);
    reinterpret_cast<uint8_t *>(&wqe)[bit / 8] ^= static_cast<uint8_t>(1u << bit % 8);
}

// This lane posts alone, so it is always its turn; what it waits for is its own batch.
template <typename Watch> void GdaCarrier<Watch>::announce() {
    if (held_ == 0) return;
    uint64_t t_turn = efaprof_now();
    if (!protocol::is_turn(queues_.send, first_))
        fail(Cause::Failed, "the send queue was announced up to %llu, not %llu: somebody else posts to it",
             static_cast<unsigned long long>(protocol::load_acquire(&queues_.send.announced)),
             static_cast<unsigned long long>(first_));
    protocol::fence_system();
    uint64_t t_fenced = efaprof_now();
    protocol::ring_doorbell(queues_.send, first_ + held_);
    uint64_t t_rung = efaprof_now();
    for (uint32_t i = 0; i < held_; i++) {
        Post &post = written_[i];
        post.t_turn = t_turn;
        post.t_fenced = t_fenced;
        post.t_rung = t_rung;
        post.batch = held_;
        protocol::store_release(&engine_.slot_of(post.words.op & EFAPROF_SEQ_MASK).t_returned, t_rung);
        record_post(post);
    }
    held_ = 0;
}

template <typename Watch> bool GdaCarrier<Watch>::progress() {
    if (endings_.has_room()) {
        uint64_t now = engine_.has_imm ? 0 : efaprof_now();
        protocol::look(
            watch_,
            [&](const protocol::Completion &found) {
                if (now == 0) now = efaprof_now();
                take_in(found, now);
            },
            [&](uint32_t count, const protocol::Completion &found) { fail_entry(count, found); });
        if (!NAMES_OPERATIONS<Watch> && noted_ != head_ && held_ == 0 && protocol::ended(watch_) == head_)
            take_in_all(now);
        if (!engine_.has_imm) endings_.scan(now);
    }
    return endings_.turn() != 0;
}

// What the device wrote may be anything: it is believed only where it fits what was posted.
template <typename Watch> void GdaCarrier<Watch>::take_in(const protocol::Completion &found, uint64_t now) {
    auto number = static_cast<unsigned long long>(found.number);
    if (found.qpn != queues_.qpn)
        fail(Cause::Failed, "completion %llu names queue pair %u, ours is %u", number, found.qpn, queues_.qpn);
    if (found.queue == SOFTEFA_RQ) {
        if (!found.has_imm) fail(Cause::Failed, "completion %llu is an arrival without an immediate", number);
        endings_.note({nullptr, found.imm, now});
        return;
    }
    if (found.queue != SOFTEFA_SQ) fail(Cause::Failed, "completion %llu is of no queue", number);
    if (found.req_id >= engine_.slot_count || is_flying_[found.req_id] == 0)
        fail(Cause::Failed, "completion %llu is of request %u, which is not in flight", number, found.req_id);
    is_flying_[found.req_id] = 0;
    endings_.note({&engine_.slots[found.req_id], 0, now});
}

template <typename Watch> void GdaCarrier<Watch>::take_in_all(uint64_t now) {
    for (; noted_ != head_; noted_++)
        endings_.note({&engine_.slot_of(noted_), 0, now});
}

template <typename Watch> void GdaCarrier<Watch>::fail_entry(uint32_t count, const protocol::Completion &found) const {
    if (!NAMES_OPERATIONS<Watch>)
        fail(Cause::Failed, "the device's counter of errors went up by %u, with %llu writes in flight", count,
             static_cast<unsigned long long>(head_ - noted_));
    if (found.queue == SOFTEFA_RQ)
        fail(Cause::Failed, "an arrival ended with status %u (%s)", found.status, status_name(found.status));
    if (found.queue != SOFTEFA_SQ || found.req_id >= engine_.slot_count || is_flying_[found.req_id] == 0)
        fail(Cause::Failed, "an error completion of request %u, which is not in flight: status %u (%s)", found.req_id,
             found.status, status_name(found.status));
    const Slot &slot = engine_.slots[found.req_id];
    fail(Cause::Failed, "a write of %u bytes to rank %u (operation %llu) ended with status %u (%s)", slot.bytes,
         slot.peer, static_cast<unsigned long long>(slot.op & EFAPROF_SEQ_MASK), found.status,
         status_name(found.status));
}

template <typename Watch> void GdaCarrier<Watch>::describe_oldest(char *text, size_t bytes) const {
    uint64_t oldest = engine_.completions.prefix;
    if (oldest == head_) return;
    const Slot &slot = engine_.slot_of(oldest);
    snprintf(text, bytes, "; the oldest write in flight is operation %llu, %u bytes to rank %u channel %u",
             static_cast<unsigned long long>(oldest), slot.bytes, slot.peer, EFAPROF_X_CHANNEL(slot.x));
}

template class GdaCarrier<CqWatch>;
template class GdaCarrier<CounterWatch>;

} // namespace efaprof::dispatch
