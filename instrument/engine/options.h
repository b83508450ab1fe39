// The options of the C interfaces, checked, as those of a run.
#pragma once

#include "../workload/options.h"
#include "efaprof_moe.h"

namespace efaprof::dispatch {

constexpr size_t PROVIDER_BYTES = 64; // of its name

// Why these options cannot be, or null.
const char *fault_of(const efaprof_moe_options &asked);
// `provider` outlives them.
Options options_of(const efaprof_moe_options &asked, const char *provider);

} // namespace efaprof::dispatch
