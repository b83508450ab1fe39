#include <efaprof/spread.h>

#include <string.h>

namespace {

constexpr int64_t NO_TIME = INT64_MIN;
constexpr int MANTISSA_BITS = 52;
constexpr uint64_t EXPONENT_OF_ONE = 1023;

uint64_t row_of(int64_t duration) {
    if (duration == 0) return 0;
    const auto wide = static_cast<double>(duration);
    uint64_t bits;
    memcpy(&bits, &wide, sizeof bits);
    return 1 + (bits >> (MANTISSA_BITS - EFAPROF_SPREAD_BITS)) - (EXPONENT_OF_ONE << EFAPROF_SPREAD_BITS);
}

} // namespace

extern "C" void efaprof_spread_add(const struct efaprof_spread *spread, const int64_t *begin, const int64_t *end,
                                   uint64_t n) {
    for (uint64_t i = 0; i < n; i++) {
        if (begin[i] == NO_TIME || end[i] == NO_TIME) continue;
        const int64_t duration = end[i] > begin[i] ? end[i] - begin[i] : 0;
        const uint64_t row = row_of(duration);
        spread->n[row]++;
        spread->sum[row] += duration;
        if (duration > spread->max[row]) spread->max[row] = duration;
    }
}
