// Where things lie in the memory that every rank registers: the same layout on each, so an offset names the same
// thing everywhere. Offsets are in units of 16 bytes, as commands carry them.
#pragma once

#include "command.h"
#include "sequence.h"

namespace efaprof::protocol {

// What a run moves. Sources of immediates have 8 bits: ranks ≤ 255, channels ≤ 254.
struct Shape {
    uint32_t ranks, tokens, hidden, topk, experts, channels;
    uint32_t element_bytes = 4; // 4: float32, 2: bfloat16, 1: fp8 (e4m3), with a float32 scale per 128 elements
};

// In front of a token's payload; its routes follow the payload.
struct TokenHead {
    uint32_t step;
    uint16_t layer;
    uint16_t src;
    uint32_t token;
    uint32_t check; // of the three fields above
};
struct TokenRoute {
    uint32_t expert;
    float weight;
};
EFAPROF_HD uint32_t head_check(const TokenHead &head) {
    return (head.step * 0x9E3779B1u ^ (uint32_t{head.layer} << 16 | head.src) * 0x85EBCA77u ^ head.token) + 1u;
}

// First of the two notify puts; the second is one count per expert of the receiver.
struct Notice {
    uint32_t step;
    uint16_t layer;
    uint16_t src;
    uint32_t tokens; // that this source sends to this receiver in this layer
    uint32_t reserved[5];
};
static_assert(sizeof(TokenHead) == 16 && sizeof(TokenRoute) == 8 && sizeof(Notice) == 32, "sizes on the wire");

// Regions, in units from the start. [a][b] = row-major.
struct Heap {
    uint32_t token_units, sum_units, notice_units; // of one token, one partial sum, one pair of notify puts
    uint32_t experts_units;                        // of the second notify put
    uint64_t tokens;                               // [token]            what this rank sends out
    uint64_t arrived;                              // [source][slot]     tokens sent to this rank
    uint64_t sums;                                 // [source][slot]     partial sums for them
    uint64_t returned;                             // [expert rank][slot] partial sums for own tokens
    uint64_t notices, notified;                    // [peer], [source]
    uint64_t signals;                              // [phase][peer][channel] bodies to send
    uint64_t flags;                                // [source][channel]      bodies that arrived
    uint64_t units;                                // all of it
};

EFAPROF_HD uint64_t payload_bytes(const Shape &shape) {
    uint64_t scales = shape.element_bytes == 1 ? round_up(shape.hidden, 128) / 128 * sizeof(float) : 0;
    return round_up(uint64_t{shape.hidden} * shape.element_bytes, 4) + scales;
}
EFAPROF_HD uint64_t token_bytes(const Shape &shape) {
    return round_up(sizeof(TokenHead) + payload_bytes(shape) + shape.topk * sizeof(TokenRoute), 32);
}
// Partial sums go back as what tokens came as; of fp8, as bfloat16.
EFAPROF_HD uint64_t sum_bytes(const Shape &shape) {
    return round_up(uint64_t{shape.hidden} * (shape.element_bytes == 4 ? 4 : 2), 32);
}

EFAPROF_HD uint64_t reserve_units(uint64_t &end, uint64_t units) {
    uint64_t at = round_up(end, 4); // regions start on cache lines
    end = at + units;
    return at;
}

// The caller has checked that sizes fit: token_bytes < 2^32 and `units` < 2^32 afterwards.
EFAPROF_HD Heap heap_of(const Shape &shape) {
    Heap heap = {};
    uint64_t ranks = shape.ranks, tokens = shape.tokens, words = shape.channels + 1;
    heap.token_units = static_cast<uint32_t>(token_bytes(shape) / UNIT_BYTES);
    heap.sum_units = static_cast<uint32_t>(sum_bytes(shape) / UNIT_BYTES);
    heap.experts_units = static_cast<uint32_t>(round_up(shape.experts / shape.ranks * 4, UNIT_BYTES) / UNIT_BYTES);
    heap.notice_units = static_cast<uint32_t>(sizeof(Notice) / UNIT_BYTES) + heap.experts_units;
    uint64_t end = 0;
    heap.tokens = reserve_units(end, tokens * heap.token_units);
    heap.arrived = reserve_units(end, ranks * tokens * heap.token_units);
    heap.sums = reserve_units(end, ranks * tokens * heap.sum_units);
    heap.returned = reserve_units(end, ranks * tokens * heap.sum_units);
    heap.notices = reserve_units(end, ranks * heap.notice_units);
    heap.notified = reserve_units(end, ranks * heap.notice_units);
    heap.signals = reserve_units(end, 2 * ranks * words);
    heap.flags = reserve_units(end, ranks * words);
    heap.units = round_up(end, 4);
    return heap;
}

} // namespace efaprof::protocol
