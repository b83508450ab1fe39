// One call a record, in the words of efaprof/format.h. Nothing is written while no run is being recorded.
#pragma once

#include <efaprof/trace.h>

#include <string.h>

#include "../protocol/command.h"

namespace efaprof::dispatch {

inline uint32_t clip32(uint64_t value) {
    return value > UINT32_MAX ? UINT32_MAX : static_cast<uint32_t>(value);
}
// Ticks from `begin` to `end`, 0 when they are the other way round.
inline uint32_t ticks_between(uint64_t begin, uint64_t end) {
    return end > begin ? clip32(end - begin) : 0;
}

inline efaprof_head head_of(uint64_t t_end, uint32_t dur, unsigned shape, unsigned what, uint16_t x) {
    return {t_end, dur, static_cast<uint16_t>(shape << 8 | what), x};
}

inline void put48(uint8_t *bytes, uint64_t value) {
    memcpy(bytes, &value, 6);
}

// What the stages of one operation have in common.
struct OpWords {
    uint64_t op; // ring:16 | seq:48
    uint32_t bytes;
    uint16_t peer;
    uint16_t x;
};

inline OpWords words_of(uint64_t op, const protocol::Command &command) {
    uint32_t flags = ((command.flags & protocol::FLAG_IMM) != 0 ? EFAPROF_X_IMM : 0) |
                     ((command.flags & protocol::FLAG_FENCE) != 0 ? EFAPROF_X_FENCE : 0);
    return {op, command.bytes, command.peer, EFAPROF_X(command.kind, flags, command.channel)};
}

inline void record_stage(efaprof_stage_what what, uint64_t begin, uint64_t end, const OpWords &words,
                         uint32_t status = 0, uint8_t depth = 0) {
    auto *record = static_cast<efaprof_stage *>(efaprof_reserve(1));
    if (record == nullptr) return;
    *record = {head_of(end, ticks_between(begin, end), EFAPROF_SHAPE_STAGE, what, words.x),
               words.op,
               words.bytes,
               words.peer,
               static_cast<uint8_t>(status > 255 ? 255 : status),
               depth};
    efaprof_publish(record, 1);
}

// When a kernel that posts by itself was where; see efaprof/format.h.
struct Post {
    OpWords words;
    uint8_t depth;
    uint64_t t_enter, t_ordered, t_slot, t_space, t_built, t_turn, t_fenced, t_rung;
    uint32_t batch;
};

inline void record_post(const Post &post) {
    auto *record = static_cast<efaprof_post *>(efaprof_reserve(2));
    if (record == nullptr) return;
    auto x = static_cast<uint16_t>(post.words.x | EFAPROF_X_POSTED);
    *record = {head_of(post.t_rung, ticks_between(post.t_enter, post.t_rung), EFAPROF_SHAPE_POST, 1, x),
               post.words.op,
               post.words.bytes,
               post.words.peer,
               0,
               post.depth,
               ticks_between(post.t_enter, post.t_ordered),
               ticks_between(post.t_ordered, post.t_slot),
               ticks_between(post.t_slot, post.t_space),
               ticks_between(post.t_space, post.t_built),
               ticks_between(post.t_built, post.t_turn),
               ticks_between(post.t_turn, post.t_fenced),
               ticks_between(post.t_fenced, post.t_rung),
               post.batch};
    efaprof_publish(record, 2);
}

inline uint8_t log2_depth(uint64_t depth) {
    return depth == 0 ? 0 : static_cast<uint8_t>(64 - __builtin_clzll(depth));
}

struct Place {
    uint32_t step;
    uint16_t layer;
    efaprof_phase phase;
};

inline void record_mark(uint64_t now, const Place &place, uint16_t step_kind, uint16_t ring, uint64_t first_seq) {
    auto *record = static_cast<efaprof_mark *>(efaprof_reserve(1));
    if (record == nullptr) return;
    *record = {head_of(now, 0, EFAPROF_SHAPE_MARK, 1, step_kind),
               place.step,
               place.layer,
               static_cast<uint16_t>(place.phase),
               ring,
               {}};
    put48(record->first_seq, first_seq);
    efaprof_publish(record, 1);
}

enum WaitKind : uint8_t { WAIT_POLL = 1, WAIT_FLUSH = 2, WAIT_BARRIER = 3 };

// Who let a gate go: the operation that was ready last.
struct Release {
    uint16_t src;
    uint16_t channel;
    uint64_t seq;
    uint64_t t_sig;
};

inline void record_wait(WaitKind kind, uint64_t begin, uint64_t end, const Place &place, uint16_t ring,
                        const Release &release, uint32_t polls) {
    auto *record = static_cast<efaprof_wait *>(efaprof_reserve(2));
    if (record == nullptr) return;
    *record = {head_of(end, ticks_between(begin, end), EFAPROF_SHAPE_WAIT, kind, static_cast<uint16_t>(place.phase)),
               place.step,
               place.layer,
               release.src,
               release.channel,
               ring,
               polls,
               release.seq,
               release.t_sig,
               {}};
    efaprof_publish(record, 2);
}

constexpr uint16_t RX_HELD = 1, RX_SIGNAL = 2;

inline void record_rx(uint64_t seen, uint64_t end, uint16_t x, uint16_t src, uint16_t channel, uint64_t seq,
                      uint32_t imm) {
    auto *record = static_cast<efaprof_rx *>(efaprof_reserve(1));
    if (record == nullptr) return;
    *record = {head_of(end, ticks_between(seen, end), EFAPROF_SHAPE_RX, 1, x), src, channel, {}, 0, imm};
    put48(record->seq, seq);
    efaprof_publish(record, 1);
}

struct Turn {
    uint32_t commands, tests, done, backlog;
};

inline void record_tick(uint64_t begin, uint64_t end, uint16_t ring, const Turn &turn) {
    auto *record = static_cast<efaprof_tick *>(efaprof_reserve(1));
    if (record == nullptr) return;
    *record = {head_of(end, ticks_between(begin, end), EFAPROF_SHAPE_TICK, 1, ring), turn.commands, turn.tests,
               turn.done, turn.backlog};
    efaprof_publish(record, 1);
}

enum CounterKind : uint32_t { COUNT = 1, GAUGE = 2 };

inline void record_counter(const char *name, int64_t value, CounterKind kind) {
    efaprof_counter(name, strlen(name), value, kind);
}

inline void record_note(const char *text, uint64_t value) {
    uint64_t name = efaprof_name(text, strlen(text));
    auto *record = static_cast<efaprof_note *>(efaprof_reserve(1));
    if (record == nullptr) return;
    *record = {head_of(efaprof_now(), 0, EFAPROF_SHAPE_NOTE, 1, 0), name, value};
    efaprof_publish(record, 1);
}

} // namespace efaprof::dispatch
