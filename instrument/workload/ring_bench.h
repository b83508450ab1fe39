// The ring by itself between two threads: commands per second and round trip.
#pragma once

namespace efaprof::dispatch {

// `efaprof-dispatch ring …`, between two threads or between a GPU's kernel and one; returns the exit code.
int bench_ring(int count, char **words);

} // namespace efaprof::dispatch
