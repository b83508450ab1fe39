#include "records.h"

namespace efaprof::dispatch {

GpuRecords::GpuRecords(const Engine &engine, uint32_t warmup, bool is_model)
    : engine_(engine), warmup_(warmup), is_model_(is_model) {}

void GpuRecords::write(const gpu::Stamp *stamps, uint64_t mask, uint64_t first, uint64_t end) {
    for (uint64_t number = first; number != end; number++)
        take(stamps[number & mask]);
    step_++;
}

void GpuRecords::write_end(uint32_t steps, uint64_t now) {
    step_ = steps;
    layer_ = 0;
    mark(now, EFAPROF_PHASE_STEP);
}

uint64_t GpuRecords::whole(uint32_t low, uint32_t proxy) const {
    uint64_t head = heads_[proxy];
    return head + static_cast<uint32_t>(low - static_cast<uint32_t>(head));
}

void GpuRecords::mark(uint64_t time, efaprof_phase phase) {
    constexpr uint16_t DECODE = 0, WARM_UP = 3;
    uint16_t kind = is_model_ ? kind_ : step_ < warmup_ ? WARM_UP : DECODE;
    for (const Engine &one : engine_.all())
        record_mark(time, {step_, static_cast<uint16_t>(layer_), phase}, kind, one.ring, heads_[one.proxy]);
}

void GpuRecords::compute(efaprof_compute what, uint64_t end) {
    record_stage(EFAPROF_STAGE_COMPUTE, begin_, end, {engine_.op_of(heads_[0]), 0, engine_.rank, what});
}

// Dispatch or combine; before it, a model did what is its own.
void GpuRecords::begin_phase(const gpu::Stamp &stamp, uint64_t time) {
    is_combine_ = stamp.kind == gpu::STAMP_COMBINE_BEGIN;
    wait_ = 0;
    phases_++;
    heads_[0] = whole(stamp.value);
    if (is_model_) {
        layer_ = stamp.layer;
        begin_ = since_;
        compute(is_combine_ ? EFAPROF_COMPUTE_EXPERT : EFAPROF_COMPUTE_STANDIN, time);
    }
    mark(time, is_combine_ ? EFAPROF_PHASE_COMBINE : EFAPROF_PHASE_DISPATCH);
}

void GpuRecords::take(const gpu::Stamp &stamp) {
    uint64_t time = ticks(stamp.time);
    switch (stamp.kind) {
    case gpu::STAMP_FILL_BEGIN:
        layer_ = stamp.value;
        if (layer_ == 0) mark(time, EFAPROF_PHASE_STEP);
        mark(time, EFAPROF_PHASE_COMPUTE);
        begin_ = time;
        break;
    case gpu::STAMP_STEP_BEGIN:
        step_ = stamp.value;
        kind_ = stamp.layer;
        layer_ = 0;
        mark(time, EFAPROF_PHASE_STEP);
        mark(time, EFAPROF_PHASE_COMPUTE);
        since_ = time;
        break;
    case gpu::STAMP_STEP_END:
        begin_ = since_;
        compute(EFAPROF_COMPUTE_STANDIN, time);
        break;
    case gpu::STAMP_LAYOUT_END:
        if (!is_model_) compute(EFAPROF_COMPUTE_STANDIN, time);
        break;
    case gpu::STAMP_DISPATCH_BEGIN:
    case gpu::STAMP_COMBINE_BEGIN: begin_phase(stamp, time); break;
    case gpu::STAMP_HEAD:
        if (stamp.layer < engine_.proxies) heads_[stamp.layer] = whole(stamp.value, stamp.layer);
        break;
    case gpu::STAMP_WAIT_BEGIN:
        heads_[0] = whole(stamp.value);
        begin_ = time;
        break;
    case gpu::STAMP_WAIT_END: wait(time, stamp.value); break;
    case gpu::STAMP_DISPATCH_END:
        heads_[0] = whole(stamp.value);
        since_ = time;
        mark(time, EFAPROF_PHASE_COMPUTE);
        break;
    case gpu::STAMP_COMBINE_END: heads_[0] = whole(stamp.value); break;
    case gpu::STAMP_EXPERTS_BEGIN:
    case gpu::STAMP_REDUCE_BEGIN:
    case gpu::STAMP_VERIFY_BEGIN: begin_ = time; break;
    case gpu::STAMP_EXPERTS_END: compute(EFAPROF_COMPUTE_EXPERT, time); break;
    case gpu::STAMP_REDUCE_END:
        compute(EFAPROF_COMPUTE_REDUCE, time);
        since_ = time;
        mark(time, EFAPROF_PHASE_COMPUTE);
        break;
    case gpu::STAMP_VERIFY_END: compute(EFAPROF_COMPUTE_VERIFY, time); break;
    default: break;
    }
}

// Dispatch waits at its barrier and for the tails, combine for its completions in between.
void GpuRecords::wait(uint64_t end, uint32_t polls) {
    WaitKind kind = wait_ == 0 ? WAIT_BARRIER : is_combine_ && wait_ == 1 ? WAIT_FLUSH : WAIT_POLL;
    uint16_t ring = engine_.ring;
    Release let = kind == WAIT_BARRIER ? release(engine_.channels, engine_.channels + 1u)
                  : kind == WAIT_FLUSH ? flushed(ring)
                                       : release(0, engine_.channels);
    wait_++;
    if (end < let.t_sig) {
        violations_++;
        end = let.t_sig;
    }
    Place place = {step_, static_cast<uint16_t>(layer_), is_combine_ ? EFAPROF_PHASE_COMBINE : EFAPROF_PHASE_DISPATCH};
    record_wait(kind, begin_, end, place, ring, let, polls);
}

// Of the signals of this phase on these channels, the one that was handed over last.
Release GpuRecords::release(uint32_t first, uint32_t end) const {
    Release last = {};
    for (uint32_t src = 0; src < engine_.ranks; src++) {
        for (uint32_t channel = first; src != engine_.rank && channel < end; channel++) {
            const Journal &journal = *engine_.of(channel).journal;
            const Handover &one = journal.handover(engine_.word_index(src, channel), phases_);
            if (one.t_sig >= last.t_sig)
                last = {static_cast<uint16_t>(src), static_cast<uint16_t>(channel), one.wire_seq, one.t_sig};
        }
    }
    return last;
}

// Of the completions that took a ring's prefix to where the flush wanted it, the last one.
Release GpuRecords::flushed(uint16_t &ring) {
    Release last = {engine_.rank, 0, 0, 0};
    for (const Engine &one : engine_.all()) {
        const Journal &journal = *one.journal;
        uint64_t made = __atomic_load_n(&journal.move_count, __ATOMIC_ACQUIRE), &next = moves_[one.proxy];
        while (next < made && journal.moves[next & journal.move_mask].prefix < heads_[one.proxy])
            next++;
        const Move &move = journal.moves[next & journal.move_mask];
        if (next == made || move.t_told < last.t_sig) continue;
        last = {engine_.rank, static_cast<uint16_t>(move.last_channel), move.last_seq, move.t_told};
        ring = one.ring;
    }
    return last;
}

} // namespace efaprof::dispatch
