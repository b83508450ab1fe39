// NOTE records: what a probe says of itself, once.
#pragma once

#include <stdint.h>

namespace efaprof {

// The text is `what` followed by `which`. A degraded note says what is not recorded.
void note_info(const char *what, const char *which, uint64_t value);
void note_degraded(const char *what, const char *which, uint64_t value);

} // namespace efaprof
