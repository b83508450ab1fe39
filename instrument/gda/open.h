// Opening a lane's own queue pair for an engine.
#pragma once

#include "../proxy/state.h"
#include "../workload/options.h"
#include "queue_pair.h"

namespace efaprof::dispatch {

// Memory, and the queue pair that the options ask for; from then on its contact is there for the peers.
void open_queues(Engine &engine, const Options &options, GdaQueuePair &pair);

} // namespace efaprof::dispatch
