// Putting an engine together from the options of a run, and taking it apart.
#pragma once

#include "../proxy/state.h"
#include "options.h"

namespace efaprof::dispatch {

// Of a lane and one proxy: what the options say, else by the number of cores.
uint32_t thread_count(const Options &options);

// Everything but the fabric, of as many engines as the options have proxies. They were zeroed.
void set_up(Engine *engines, const Options &options, double ticks_per_ns, uint32_t rank);
// Memory for tokens and what goes with them, not registered yet.
void map_memory(Engine &engine);
// The rank's endpoints, one a proxy, and its registered memory; from then on each engine's contact is there for the
// peers.
void open_fabric(const Engine &engine, const Options &options, uint32_t threads);
// Says in the records who this is and what is not the real thing.
void record_identity(const Engine &engine, const Options &options);
// Gives back what `set_up` and `open_fabric` took, as far as they came. No thread uses the engines any more.
void take_down(const Engine &engine);

} // namespace efaprof::dispatch
