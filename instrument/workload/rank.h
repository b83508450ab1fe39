// One rank: its engine, its threads, its steps.
#pragma once

#include "job.h"

namespace efaprof::dispatch {

// Runs rank `rank` of the job in this process. Ends the process when anything fails.
void run_rank(Job &job, uint32_t rank);

} // namespace efaprof::dispatch
