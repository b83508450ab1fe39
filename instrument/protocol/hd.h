// What lets one source compile for the host and, in a .cu file, for a kernel. Headers of this folder use no
// standard container, no libfabric and nothing of libc beyond stdint and memcpy.
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

// Two words, 16 bytes aligned: a kernel stores them as one. After a release, whoever sees the second sees the first
// too.
EFAPROF_HD void store_pair_relaxed(uint64_t *words, uint64_t first, uint64_t second) {
#ifdef __CUDA_ARCH__
    asm volatile("st.relaxed.sys.v2.u64 [%0], {%1, %2};" : : "l"(words), "l"(first), "l"(second) : "memory");
#else
    store_relaxed(words, first);
    store_relaxed(words + 1, second);
#endif
}

EFAPROF_HD void store_pair_release(uint64_t *words, uint64_t first, uint64_t second) {
#ifdef __CUDA_ARCH__
    asm volatile("st.release.sys.v2.u64 [%0], {%1, %2};" : : "l"(words), "l"(first), "l"(second) : "memory");
#else
    store_relaxed(words, first);
    store_release(words + 1, second);
#endif
}

// Words of a device: 32 bits, in its own memory or in memory that its process reads.
EFAPROF_HD uint32_t load_relaxed(const uint32_t *word) {
#ifdef __CUDA_ARCH__
    uint32_t value;
    asm volatile("ld.relaxed.sys.u32 %0, [%1];" : "=r"(value) : "l"(word) : "memory");
    return value;
#else
    return __atomic_load_n(word, __ATOMIC_RELAXED);
#endif
}

EFAPROF_HD void store_relaxed(uint32_t *word, uint32_t value) {
#ifdef __CUDA_ARCH__
    asm volatile("st.relaxed.sys.u32 [%0], %1;" : : "l"(word), "r"(value) : "memory");
#else
    __atomic_store_n(word, value, __ATOMIC_RELAXED);
#endif
}

// What this thread stored before is there, for a device too, before what it stores afterwards.
EFAPROF_HD void fence_system() {
#ifdef __CUDA_ARCH__
    asm volatile("fence.acq_rel.sys;" : : : "memory");
#else
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
#endif
}

// Adds to a word that other threads of the same poster add to as well; returns what it was.
EFAPROF_HD uint64_t fetch_add(uint64_t *word, uint64_t amount) {
#ifdef __CUDA_ARCH__
    return atomicAdd(reinterpret_cast<unsigned long long *>(word), static_cast<unsigned long long>(amount));
#else
    return __atomic_fetch_add(word, amount, __ATOMIC_ACQ_REL);
#endif
}

// The least that is not below.
EFAPROF_HD uint64_t power_of_two(uint64_t least) {
    uint64_t value = 1;
    while (value < least)
        value *= 2;
    return value;
}

EFAPROF_HD uint64_t round_up(uint64_t value, uint64_t unit) {
    return (value + unit - 1) / unit * unit;
}

} // namespace efaprof::protocol
