// What a poster that was written for other fabrics does, and EFA does not, shown failing on the device at hand.
#pragma once

namespace efaprof::dispatch {

// `efaprof-dispatch limits [--queues SOURCE] [--json]`; returns the exit code: 0 when each was seen to fail.
int show_limits(int count, char **words);

} // namespace efaprof::dispatch
