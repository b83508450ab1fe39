// The parent of the ranks: forks them, waits for them, stops the others when one ends early, says why.
#pragma once

#include "job.h"

namespace efaprof::dispatch {

// Runs every rank to its end. 0 when all came through; else the exit code of the whole, after one line on stderr.
int launch(Job &job);

} // namespace efaprof::dispatch
