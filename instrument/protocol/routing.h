// Which experts a token goes to, and the arithmetic that makes the answer checkable. Everything follows from
// (seed, step, layer, rank, token), so that sender, receiver, reference and prediction agree without talking.
#pragma once

#include "hd.h"

namespace efaprof::protocol {

constexpr uint32_t MAX_TOPK = 32;
constexpr uint32_t MAX_RANKS = 255;    // source ranks have 8 bits in an immediate
constexpr uint32_t MAX_CHANNELS = 254; // so have channels, and one more carries the barriers

// Finaliser of splitmix64.
EFAPROF_HD uint64_t mix(uint64_t value) {
    value += 0x9E3779B97F4A7C15u;
    value = (value ^ value >> 30) * 0xBF58476D1CE4E5B9u;
    value = (value ^ value >> 27) * 0x94D049BB133111EBu;
    return value ^ value >> 31;
}

struct TokenId {
    uint64_t seed;
    uint32_t step, layer, rank, token;
};

EFAPROF_HD uint64_t token_hash(const TokenId &id) {
    return mix(mix(mix(id.seed) ^ (uint64_t{id.step} << 32 | id.layer)) ^ (uint64_t{id.rank} << 32 | id.token));
}

struct Route {
    uint16_t expert[MAX_TOPK]; // distinct
    uint8_t weight[MAX_TOPK];  // 1..4
};

// The k-th choice is drawn by hash; one that is taken moves on to the next free expert. Needs topk ≤ experts.
EFAPROF_HD void route_token(const TokenId &id, uint32_t topk, uint32_t experts, Route &route) {
    uint64_t hash = token_hash(id);
    for (uint32_t k = 0; k < topk; k++) {
        uint64_t draw = mix(hash + k);
        auto expert = static_cast<uint32_t>(draw % experts);
        for (uint32_t seen = 0; seen < k; seen++) {
            if (route.expert[seen] == expert) {
                expert = expert + 1 == experts ? 0 : expert + 1;
                seen = static_cast<uint32_t>(-1); // compare with all of them again
            }
        }
        route.expert[k] = static_cast<uint16_t>(expert);
        route.weight[k] = static_cast<uint8_t>(1 + (draw >> 60) % 4);
    }
}

EFAPROF_HD bool goes_to(const Route &route, uint32_t topk, uint32_t experts_per_rank, uint32_t rank) {
    for (uint32_t k = 0; k < topk; k++)
        if (route.expert[k] / experts_per_rank == rank) return true;
    return false;
}

// Values are small integers, so that float32 sums are exact in any order (|sum| < 32 · 4 · 48 < 2^24).
struct TokenValues {
    uint32_t start, stride;
};

EFAPROF_HD TokenValues token_values(const TokenId &id) {
    uint64_t hash = mix(token_hash(id) ^ 0x76616C756573u);
    return {static_cast<uint32_t>(hash), static_cast<uint32_t>(hash >> 32) | 1u};
}

// −8 … 7
EFAPROF_HD int32_t token_value(TokenValues values, uint32_t element) {
    return static_cast<int32_t>((values.start + element * values.stride) >> 28) - 8;
}

// An expert maps x to scale·x + shift + (element mod 8).
struct Expert {
    int32_t scale, shift;
};

EFAPROF_HD Expert expert_of(uint64_t seed, uint32_t expert) {
    uint64_t hash = mix(mix(seed) ^ (0x657870657274u + (uint64_t{expert} << 40)));
    return {1 + static_cast<int32_t>(hash & 3), static_cast<int32_t>(hash >> 8 & 15) - 8};
}

} // namespace efaprof::protocol
