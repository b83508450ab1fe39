// Several posters to one queue pair, on this CPU or in warps of a GPU, with random pauses between a poster's stages.
#pragma once

namespace efaprof::dispatch {

// `efaprof-dispatch posters …`; returns the exit code: 0 when every entry arrived whole and once.
int bench_posters(int count, char **words);

} // namespace efaprof::dispatch
