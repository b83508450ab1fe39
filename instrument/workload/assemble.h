// Putting an engine together from the options of a run, and taking it apart.
#pragma once

#include "../proxy/state.h"
#include "options.h"

namespace efaprof::dispatch {

// Of a rank, the lane's included: what the options say, else by the number of cores.
uint32_t thread_count(const Options &options);

// Everything but the fabric. The engine was zeroed.
void set_up(Engine &engine, const Options &options, double ticks_per_ns, uint32_t rank);
// Memory for tokens and what goes with them, not registered yet.
void map_memory(Engine &engine);
// Endpoint and registered memory; from then on the engine's contact is there for the peers.
void open_fabric(Engine &engine, const Options &options, uint32_t threads);
// Says in the records who this is and what is not the real thing.
void record_identity(const Engine &engine, const Options &options);
// Gives back what `set_up` and `open_fabric` took, as far as they came. No thread uses the engine any more.
void take_down(Engine &engine);

} // namespace efaprof::dispatch
