// What lets one source compile for the host and, in a .cu file, for a kernel. Headers of this folder use no
// standard container, no libfabric and nothing of libc beyond stdint.
#pragma once

#include <stdint.h>

#ifdef __CUDACC__
#define EFAPROF_HD __host__ __device__ inline
#else
#define EFAPROF_HD inline
#endif

namespace efaprof::protocol {

// Words that the host and a kernel share. Device code orders them for the whole system: the other side is a CPU.
EFAPROF_HD uint64_t load_acquire(const uint64_t *word) {
#ifdef __CUDA_ARCH__
    uint64_t value;
    asm volatile("ld.acquire.sys.u64 %0, [%1];" : "=l"(value) : "l"(word) : "memory");
    return value;
#else
    return __atomic_load_n(word, __ATOMIC_ACQUIRE);
#endif
}

EFAPROF_HD void store_release(uint64_t *word, uint64_t value) {
#ifdef __CUDA_ARCH__
    asm volatile("st.release.sys.u64 [%0], %1;" : : "l"(word), "l"(value) : "memory");
#else
    __atomic_store_n(word, value, __ATOMIC_RELEASE);
#endif
}

EFAPROF_HD uint64_t load_relaxed(const uint64_t *word) {
#ifdef __CUDA_ARCH__
    uint64_t value;
    asm volatile("ld.relaxed.sys.u64 %0, [%1];" : "=l"(value) : "l"(word) : "memory");
    return value;
#else
    return __atomic_load_n(word, __ATOMIC_RELAXED);
#endif
}

EFAPROF_HD void store_relaxed(uint64_t *word, uint64_t value) {
#ifdef __CUDA_ARCH__
    asm volatile("st.relaxed.sys.u64 [%0], %1;" : : "l"(word), "l"(value) : "memory");
#else
    __atomic_store_n(word, value, __ATOMIC_RELAXED);
#endif
}

EFAPROF_HD uint64_t round_up(uint64_t value, uint64_t unit) {
    return (value + unit - 1) / unit * unit;
}

} // namespace efaprof::protocol
