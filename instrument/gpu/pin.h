// Threads near the GPU whose memory they poll.
#pragma once

#include <sched.h>

#include "../workload/job.h"

namespace efaprof::dispatch {

// Cores of a list such as "0-3,8"; false when it is none.
bool parse_cores(const char *list, cpu_set_t &cores);

// Keeps this thread, and those that it starts, on the NUMA node of the rank's GPU; notes in the records which that is.
void pin_to_gpu(uint32_t rank);

} // namespace efaprof::dispatch
