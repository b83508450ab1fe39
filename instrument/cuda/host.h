// Small things of the host side: errors as text, memory that goes away with its owner.
#pragma once

#include <cuda_runtime.h>

#include <stdarg.h>
#include <stdio.h>

namespace efaprof::gpu {

// Text of the last failure of this thread.
inline char *last_error() {
    static thread_local char text[240];
    return text;
}

[[gnu::format(printf, 1, 2)]] inline const char *failed(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(last_error(), 240, format, arguments);
    va_end(arguments);
    return last_error();
}

inline const char *check(cudaError_t result, const char *call) {
    return result == cudaSuccess ? nullptr : failed("%s: %s", call, cudaGetErrorString(result));
}

#define EFAPROF_TRY(expression)                                                                                        \
    do {                                                                                                               \
        if (const char *why = (expression)) return why;                                                                \
    } while (0)
#define EFAPROF_CUDA(call) EFAPROF_TRY(check(call, #call))

} // namespace efaprof::gpu
