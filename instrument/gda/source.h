#pragma once

#include <stdint.h>

namespace efaprof::dispatch {

// Where a lane that posts by itself has its queues from. Auto: libfabric where it hands them out, else EFA's verbs.
enum class QueueSource : uint8_t { Auto, Libfabric, Verbs };

} // namespace efaprof::dispatch
