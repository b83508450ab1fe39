// Durations counted in narrow buckets, from which percentiles follow: for analysis only.
#pragma once

#include <efaprof/trace.h>

#ifdef __cplusplus
extern "C" {
#endif

// A bucket holds durations that agree in their first 11 significant bits. Row 0 is that of 0, the others follow in
// order.
#define EFAPROF_SPREAD_BITS 11
#define EFAPROF_SPREAD_ROWS (1 + (64 << EFAPROF_SPREAD_BITS))

struct efaprof_spread {
    int64_t *n, *sum, *max; // of each row
};
// Adds end[i] − begin[i], or 0 where it is negative; rows in which one of them is INT64_MIN are left out.
EFAPROF_API void efaprof_spread_add(const struct efaprof_spread *spread, const int64_t *begin, const int64_t *end,
                                    uint64_t n);

#ifdef __cplusplus
}
#endif
