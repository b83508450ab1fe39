// Sets of time intervals: for analysis only.
#pragma once

#include <efaprof/trace.h>

#ifdef __cplusplus
extern "C" {
#endif

// Union of n intervals [begin, end) in any order as disjoint ones in order, with what they cover before each of them.
// Intervals that are empty or have a begin or end of INT64_MIN add nothing. The results have room for n.
// Returns how many there are, UINT64_MAX when out of memory.
EFAPROF_API uint64_t efaprof_union(const int64_t *begin, const int64_t *end, uint64_t n, int64_t *union_begin,
                                   int64_t *union_end, int64_t *covered_before);

// What such a union of n intervals covers of each [from, until): quick where these are about in order.
EFAPROF_API void efaprof_covered(const int64_t *begin, const int64_t *end, const int64_t *covered_before, uint64_t n,
                                 const int64_t *from, const int64_t *until, uint64_t asked, int64_t *covered);

// How many of n sorted times are no later than each of those asked for: quick where these are about in order.
EFAPROF_API void efaprof_count_until(const int64_t *sorted, uint64_t n, const int64_t *times, uint64_t asked,
                                     int64_t *counts);

#ifdef __cplusplus
}
#endif
