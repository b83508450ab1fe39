#include "issue.h"

#include <rdma/fi_errno.h>

#include "record.h"
#include "stop.h"

namespace efaprof::dispatch {

namespace {

bool is_due(uint64_t since, uint64_t delay) {
    return delay == 0 || efaprof_now() >= since + delay;
}

} // namespace

Issuer::Issuer(Engine &engine)
    : engine_(engine), ring_{engine.commands, engine.ring_tail, engine.ring_capacity, 0, 0},
      posted_(static_cast<uint64_t *>(calloc(engine.ranks, sizeof(uint64_t)))) {
    if (posted_ == nullptr) fail(Cause::Failed, "out of memory");
}

Issuer::~Issuer() {
    free(posted_);
}

uint32_t Issuer::turn() {
    uint64_t before = posted_total_;
    for (left_ = engine_.drain; left_ != 0 && advance();) {
    }
    if (step_ == Step::Ring) protocol::write_tail(ring_); // the ring is empty, or the batch is over
    return static_cast<uint32_t>(posted_total_ - before);
}

// Takes the next command when there is one that may be seen already.
bool Issuer::see() {
    if (!protocol::peek(ring_, command_)) return false;
    uint64_t now = efaprof_now();
    if (engine_.journal != nullptr) translate(now);
    if (engine_.delays.ring != 0 && now < command_.t_push + engine_.delays.ring) return false;
    seq_ = ring_.next;
    if (command_.seq != static_cast<uint32_t>(seq_))
        fail(Cause::Failed, "the ring is broken: command %llu carries number %u", static_cast<unsigned long long>(seq_),
             command_.seq);
    protocol::take(ring_);
    if (engine_.journal != nullptr && command_.t_push > now) engine_.journal->violations++;
    // A processor may read its clock ahead of the load that found the command: by some nanoseconds, before its push.
    t_seen_ = t_passed_ = now > command_.t_push ? now : command_.t_push;
    depth_ = protocol::waiting_log2(ring_);
    eagain_ = 0;
    is_fenced_ = false;
    return true;
}

// A kernel's clock is not ours. Without stamps it gives no time: then the command counts as pushed when it is seen.
void Issuer::translate(uint64_t now) {
    Journal &journal = *engine_.journal;
    t_enter_ = command_.t_push == 0 ? 0 : journal.clock.ticks_at(command_.t_push - protocol::enter_ns(command_.flags));
    command_.t_push = command_.t_push == 0 ? now : journal.clock.ticks_at(command_.t_push);
}

// True once every earlier command to the peer has completed.
bool Issuer::pass_fence() {
    if (protocol::load_acquire(&engine_.completed[command_.peer]) != posted_[command_.peer]) {
        is_fenced_ = true;
        return false;
    }
    t_passed_ = is_fenced_ ? efaprof_now() : t_seen_;
    return true;
}

// Another command will be posted right behind this one, so its doorbell can serve both. Not when something could come
// between: a fence waits for completions, and what has not been announced does not complete.
bool Issuer::has_more() const {
    if (!engine_.has_more || left_ == 1 || engine_.delays.proxy + engine_.delays.libfabric != 0) return false;
    protocol::Consumer ahead = ring_;
    protocol::Command next;
    return protocol::peek(ahead, next) && (next.flags & protocol::FLAG_FENCE) == 0 && engine_.delays.ring == 0 &&
           seq_ + 1 - protocol::load_acquire(&engine_.completions.prefix) < engine_.slot_count;
}

// One move of the command at the head; false when it must wait.
bool Issuer::advance() {
    switch (step_) {
    case Step::Ring:
        if (!see()) return false;
        step_ = (command_.flags & protocol::FLAG_FENCE) != 0 ? Step::Fence : Step::Slot;
        return true;
    case Step::Fence:
        if (!pass_fence()) return false;
        step_ = Step::Slot;
        return true;
    case Step::Slot:
        if (seq_ - protocol::load_acquire(&engine_.completions.prefix) >= engine_.slot_count) return false;
        step_ = Step::Proxy;
        return true;
    case Step::Proxy:
        if (!is_due(t_passed_, engine_.delays.proxy)) return false;
        step_ = Step::Call;
        return true;
    case Step::Call:
        t_call_ = efaprof_now();
        step_ = Step::Library;
        return true;
    case Step::Library:
        if (!is_due(t_call_, engine_.delays.libfabric)) return false;
        step_ = Step::Post;
        return true;
    case Step::Post: return post();
    }
    return false;
}

bool Issuer::post() {
    Slot &slot = engine_.slot_of(seq_);
    uint64_t in_flight = posted_total_ - protocol::load_relaxed(&engine_.completions.total);
    OpWords words = words_of(engine_.op_of(seq_), command_);
    slot.op = words.op;
    slot.bytes = words.bytes;
    slot.peer = words.peer;
    slot.x = words.x;
    slot.depth = log2_depth(in_flight);
    protocol::store_relaxed(&slot.t_returned, 0);
    Write write = {engine_.at(command_.src_off),
                   command_.bytes,
                   command_.peer,
                   uint64_t{command_.dst_off} * protocol::UNIT_BYTES,
                   (command_.flags & protocol::FLAG_IMM) != 0,
                   protocol::pack_imm(engine_.rank, command_.channel, command_.flags >> protocol::WIRE_SHIFT),
                   &slot.context,
                   has_more()};
    if (engine_.fabric.post(write) == -FI_EAGAIN) {
        eagain_++;
        return false;
    }
    uint64_t now = efaprof_now();
    protocol::store_release(&slot.t_returned, now);
    posted_[command_.peer]++;
    posted_total_++;
    left_--;
    record(now);
    step_ = Step::Ring;
    return true;
}

void Issuer::record(uint64_t t_returned) const {
    OpWords words = words_of(engine_.op_of(seq_), command_);
    if (t_enter_ != 0) record_stage(EFAPROF_STAGE_KERNEL, t_enter_, command_.t_push, words);
    record_stage(EFAPROF_STAGE_RING, command_.t_push, t_seen_, words, 0, depth_);
    if ((command_.flags & protocol::FLAG_FENCE) != 0) record_stage(EFAPROF_STAGE_FENCE, t_seen_, t_passed_, words);
    record_stage(EFAPROF_STAGE_PROXY, t_passed_, t_call_, words);
    record_stage(EFAPROF_STAGE_LIBFABRIC, t_call_, t_returned, words, eagain_);
}

} // namespace efaprof::dispatch
