// Elements of a token: float32, or bfloat16 (its upper half). Sums are always float32.
#pragma once

#include <stdint.h>
#include <string.h>

#include "../protocol/numerics.h"

namespace efaprof::dispatch {

// To the nearest, ties to even; what is no number stays none.
inline uint16_t to_bf16(float value) {
    uint32_t bits = protocol::bits_of(value);
    bool is_nan = (bits & 0x7FFFFFFFu) > 0x7F800000u;
    return is_nan ? static_cast<uint16_t>(bits >> 16 | 0x40) : protocol::bf16_bits(value);
}

// sum += scale · values
inline void add_values(float *sum, const void *values, uint32_t count, uint32_t element_bytes, float scale = 1.0f) {
    const auto *floats = static_cast<const float *>(values);
    const auto *halves = static_cast<const uint16_t *>(values);
    for (uint32_t i = 0; i < count; i++)
        sum[i] += scale * (element_bytes == sizeof(float) ? floats[i] : protocol::bf16_value(halves[i]));
}

inline void store_values(void *values, const float *sum, uint32_t count, uint32_t element_bytes) {
    if (element_bytes == sizeof(float)) {
        memcpy(values, sum, count * sizeof(float));
        return;
    }
    for (uint32_t i = 0; i < count; i++)
        static_cast<uint16_t *>(values)[i] = to_bf16(sum[i]);
}

} // namespace efaprof::dispatch
