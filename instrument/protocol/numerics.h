// Tokens of random reals, as the GPU path moves them, and the arithmetic that its kernels are held to. bfloat16 and
// fp8 (e4m3) are rounded here bit by bit, so that the conversions of the device have something to be compared with.
#pragma once

#include <string.h>

#include "heap.h"
#include "routing.h"

namespace efaprof::protocol {

constexpr uint32_t FP8_GROUP = 128; // elements that share a float32 scale
constexpr float FP8_LARGEST = 448.0f;

EFAPROF_HD uint32_t bits_of(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}
EFAPROF_HD float float_of(uint32_t bits) {
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

EFAPROF_HD float bf16_value(uint16_t half) {
    return float_of(uint32_t{half} << 16);
}
// To the nearest, ties to even. Finite values only.
EFAPROF_HD uint16_t bf16_bits(float value) {
    uint32_t bits = bits_of(value);
    return static_cast<uint16_t>((bits + 0x7FFFu + (bits >> 16 & 1u)) >> 16);
}

//   7 sign │ 6 ─ exponent, bias 7 ─ 3 │ 2 ─ mantissa ─ 0
EFAPROF_HD float fp8_value(uint8_t code) {
    uint32_t exponent = code >> 3 & 15u, mantissa = code & 7u;
    float size =
        exponent == 0 ? static_cast<float>(mantissa) * 0x1p-9f : float_of((exponent + 120u) << 23 | mantissa << 20);
    return (code & 0x80u) != 0 ? -size : size;
}
// To the nearest, ties to even, at most FP8_LARGEST. Finite values only.
EFAPROF_HD uint8_t fp8_bits(float value) {
    uint32_t bits = bits_of(value), size = bits & 0x7FFFFFFFu, code;
    if (size < bits_of(0x1p-6f)) { // below the least normal one: multiples of 2^-9
        uint32_t scaled = bits_of(float_of(size) + 0x1p14f) - bits_of(0x1p14f); // the sum's last bit is worth 2^-9
        code = scaled;
    } else {
        code = ((size + 0x7FFFFu + (size >> 20 & 1u)) >> 20) - (120u << 3);
        if (code > 0x7Eu) code = 0x7Eu;
    }
    return static_cast<uint8_t>((bits >> 24 & 0x80u) | code);
}

// −4 … 4, with all 24 bits of a float in use.
EFAPROF_HD float random_value(uint64_t hash, uint32_t element) {
    uint32_t bits = static_cast<uint32_t>(hash) + element * 0x9E3779B9u;
    bits = (bits ^ bits >> 16) * 0x85EBCA6Bu;
    bits = (bits ^ bits >> 13) * 0xC2B2AE35u ^ static_cast<uint32_t>(hash >> 32);
    return static_cast<float>(static_cast<int32_t>(bits ^ bits >> 16)) * 0x1p-29f;
}

// Element of a token before anything is done to it, as the model would give it.
EFAPROF_HD uint16_t token_element(const TokenId &id, uint32_t element) {
    return bf16_bits(random_value(mix(token_hash(id) ^ 0x7265616C73u), element));
}

// 1/16 … 1
EFAPROF_HD float route_weight(const TokenId &id, uint32_t choice) {
    uint64_t draw = mix(token_hash(id) ^ (0x776569676874u + (uint64_t{choice} << 48)));
    return 0.0625f + static_cast<float>(static_cast<uint32_t>(draw >> 40)) * (0.9375f * 0x1p-24f);
}

struct Fp8Scale {
    float stored;  // a value is its code times this
    float inverse; // what it is multiplied with before it is rounded
};
EFAPROF_HD Fp8Scale fp8_scale(float largest) {
    if (largest == 0.0f) return {1.0f, 1.0f};
    return {largest / FP8_LARGEST, FP8_LARGEST / largest};
}

EFAPROF_HD uint32_t group_count(const Shape &shape) {
    return (shape.hidden + FP8_GROUP - 1) / FP8_GROUP;
}

// Writes what group `group` of a token's payload must be on the wire: elements, and the group's scale where there is
// one.
EFAPROF_HD void reference_group(const Shape &shape, const TokenId &id, uint32_t group, uint8_t *payload) {
    uint32_t first = group * FP8_GROUP, last = first + FP8_GROUP < shape.hidden ? first + FP8_GROUP : shape.hidden;
    uint64_t hash = mix(token_hash(id) ^ 0x7265616C73u);
    if (shape.element_bytes != 1) {
        for (uint32_t element = first; element < last; element++) {
            uint16_t bits = bf16_bits(random_value(hash, element));
            memcpy(payload + element * 2, &bits, sizeof bits);
        }
        return;
    }
    float largest = 0.0f;
    for (uint32_t element = first; element < last; element++) {
        float value = bf16_value(bf16_bits(random_value(hash, element)));
        value = value < 0 ? -value : value;
        largest = value > largest ? value : largest;
    }
    Fp8Scale scale = fp8_scale(largest);
    for (uint32_t element = first; element < last; element++)
        payload[element] = fp8_bits(bf16_value(bf16_bits(random_value(hash, element))) * scale.inverse);
    memcpy(payload + shape.hidden + group * sizeof(float), &scale.stored, sizeof(float));
}

// Element of a payload as the receiver's experts see it.
EFAPROF_HD float payload_value(const Shape &shape, const uint8_t *payload, uint32_t element) {
    if (shape.element_bytes != 1) {
        uint16_t bits;
        memcpy(&bits, payload + element * 2, sizeof bits);
        return bf16_value(bits);
    }
    float scale;
    memcpy(&scale, payload + shape.hidden + element / FP8_GROUP * sizeof(float), sizeof scale);
    return fp8_value(payload[element]) * scale;
}

// What an answer may be off by: each rank's partial sum is rounded to bfloat16 once, their sum once more, and the
// float32 sums before that by next to nothing.
struct Expected {
    double value, tolerance;
};
EFAPROF_HD Expected expected_sum(const Shape &shape, uint64_t seed, const Route &route, const float *weights,
                                 uint32_t element, double value) {
    constexpr double BF16_ROUNDING = 1.0 / 256, FLOAT_ROUNDING = 1.0 / (1 << 20);
    double total = 0, parts = 0, terms = 0;
    uint32_t per_rank = shape.experts / shape.ranks;
    for (uint32_t rank = 0; rank < shape.ranks; rank++) {
        double part = 0;
        for (uint32_t k = 0; k < shape.topk; k++) {
            if (route.expert[k] / per_rank != rank) continue;
            Expert expert = expert_of(seed, route.expert[k]);
            double term = static_cast<double>(weights[k]) * (expert.scale * value + expert.shift + (element & 7));
            part += term;
            terms += term < 0 ? -term : term;
        }
        total += part;
        parts += part < 0 ? -part : part;
    }
    double rounded = (parts + (total < 0 ? -total : total)) * BF16_ROUNDING;
    return {total, rounded * (1 + BF16_ROUNDING) + terms * FLOAT_ROUNDING};
}

} // namespace efaprof::protocol
