// The CUDA half of the path, opened when a GPU is asked for.
#pragma once

#include "../cuda/gpu.h"

namespace efaprof::dispatch {

// Finds it, without touching CUDA. False, with the reason in `why`, when it is missing.
bool open_gpu_library(char *why, size_t bytes);
// Its calls, here and in processes forked afterwards.
const gpu::Api &gpu_library();

// Fails the rank when a call of the library says why it did not work.
void check_gpu(const char *why);

} // namespace efaprof::dispatch
