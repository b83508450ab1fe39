// Named stretches of host time, and the steps among them.
#pragma once

#include <efaprof/format.h>

namespace efaprof {

// A step begins that no other of its source encloses: counts it, ends the warm-up when it was long enough, says that it
// began, and ends recording when enough steps have been recorded. Of a program whose steps are named in two ways, those
// count that came first: they enclose the others.
void step_began(uint64_t name, efaprof_source source);

// Says once in each process which rank of its job it is, when its launcher says so.
void note_rank();

// Writes a RANGE record, if records are wanted. t_end, t_begin and what else is known of it are set; dur follows.
void write_range(efaprof_range range, uint8_t what);

} // namespace efaprof
