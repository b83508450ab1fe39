// What the kernels of a lane share: their parameters, the clock, stamps, bounded waits.
#pragma once

#include <cuda_bf16.h>

#include <time.h>

#include "../protocol/numerics.h"
#include "gpu.h"

namespace efaprof::gpu {

using protocol::Command;
using protocol::TokenId;

constexpr unsigned WARP = 32, ALL_LANES = 0xFFFFFFFFu;
constexpr uint32_t NO_SLOT = UINT32_MAX;
constexpr uint32_t MOST_LOCAL_EXPERTS = 2048;

struct RingState {
    uint64_t head; // number of the next command
    uint64_t cached_tail;
};

// In device memory, one per lane. One kernel at a time changes it.
struct State {
    uint64_t head;        // commands so far; with one ring, number of the next one
    uint64_t cached_tail; // of the one ring
    uint64_t phases;      // begun: how often each word of this run has been signalled
    uint64_t stamps, stamp_limit;
    uint64_t begin; // of the compute kernel that runs
    uint64_t puts, notifies, signals, barriers, verified;
    uint32_t step;
    uint32_t epoch;  // of the dispatch that was laid out last
    uint32_t last;   // enum efaprof_phase that was begun last
    uint32_t ticket; // thread blocks of a kernel that have finished
    uint32_t taken;  // the first fault writes the rest
    Fault fault;
    RingState rings[protocol::MAX_PROXIES]; // of several
};

// Of a queue pair that kernels post to, one kernel at a time.
struct PostState {
    protocol::SendQueue send;
    protocol::CqWatch completions;
    protocol::CounterWatch counter; // instead of the queue
    uint64_t ended;                 // operations that were seen to have
    uint64_t prefix;                // every command below this number has ended
    uint64_t arrivals;              // handed over
};

// Parameters of every kernel: by value, so that each finds them in constant memory.
struct Kernel {
    Setup setup;     // pointers are of the device here
    uint32_t tokens; // of this rank in this layer
    State *state;
    uint64_t *wire;       // [peer][channel] sequenced commands so far
    __nv_bfloat16 *x;     // [token][element]
    int32_t *topk_expert; // [token][choice]
    float *topk_weight;   // [token][choice]
    uint32_t *slots;      // [token][rank]
    uint32_t *sent;       // [rank]
    uint32_t *sends;      // token << 8 | peer, in the order in which they are sent
    uint32_t *send_count;
    uint32_t *expert_counts; // [expert] choices of own tokens
    uint32_t *packed;        // [token] the epoch in which it was written to the heap
    uint32_t *received;      // [source]
    __nv_bfloat16 *results;  // [token][element]
    // In pinned memory of the host.
    Stamp *stamps;
    const uint64_t *stamps_read;
    Span *spans; // [layer][dispatch, combine], or null
    uint16_t *sample;
    StepDone *done;
    const uint64_t *stop;
    // Of a kernel that posts by itself; null where a proxy does. In device memory, the stamps in the host's.
    PostState *post;
    uint32_t *flying;          // [request] 1 + the peer of the operation in flight, 0: none
    uint32_t *posted, *ended;  // [peer] operations
    protocol::Window *windows; // [source][channel]
    uint64_t *seen;            // [source][channel][sequence mod WINDOW] when it arrived, ns << 1 | is a signal
    uint64_t *arrived;         // [source][channel] signals handed over
    protocol::Target *targets; // [rank]
    PostStamp *post_stamps;
    ArrivalStamp *arrival_stamps;
};

// The other branches are for tests, which run kernels on a CPU (tests/fakes/simt.h).
__device__ inline uint64_t now_ns() {
#ifdef __CUDA_ARCH__
    uint64_t time;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(time));
    return time;
#else
    timespec time;
    clock_gettime(CLOCK_REALTIME, &time);
    return static_cast<uint64_t>(time.tv_sec) * 1000000000u + static_cast<uint64_t>(time.tv_nsec);
#endif
}

__device__ inline uint32_t load_acquire_gpu(const uint32_t *word) {
#ifdef __CUDA_ARCH__
    uint32_t value;
    asm volatile("ld.acquire.gpu.u32 %0, [%1];" : "=r"(value) : "l"(word) : "memory");
    return value;
#else
    return __atomic_load_n(word, __ATOMIC_ACQUIRE);
#endif
}
__device__ inline void store_release_gpu(uint32_t *word, uint32_t value) {
#ifdef __CUDA_ARCH__
    asm volatile("st.release.gpu.u32 [%0], %1;" : : "l"(word), "r"(value) : "memory");
#else
    __atomic_store_n(word, value, __ATOMIC_RELEASE);
#endif
}

__device__ inline bool has_fault(const Kernel &k) {
    return *reinterpret_cast<const volatile uint32_t *>(&k.state->fault.code) != 0;
}

// Keeps the first fault of a run; kernels that start afterwards do nothing.
__device__ inline void set_fault(const Kernel &k, uint32_t layer, const Fault &fault) {
    if (atomicCAS(&k.state->taken, 0u, 1u) != 0) return;
    Fault whole = fault;
    whole.step = k.state->step;
    whole.layer = layer;
    k.state->fault = whole;
}

__device__ inline TokenId id_of(const Kernel &k, uint32_t layer, uint32_t rank, uint32_t token) {
    return {k.setup.seed, k.state->step, layer, rank, token};
}

// Not inlined: a kernel runs once through most of its code, and what it has not run yet must be fetched first.
__device__ __noinline__ static void put_stamp(Stamp *at, uint64_t time, uint64_t words) {
    protocol::store_pair_relaxed(reinterpret_cast<uint64_t *>(at), time, words);
}

// Stamps of one kernel: its place in the ring is kept in registers until the end. One thread only.
template <bool STAMPS> class Stamper {
public:
    __device__ explicit Stamper(const Kernel &k) : k_(k) {
        if constexpr (STAMPS) {
            // Past the cache: another block of this kernel may have written them.
            next_ = *reinterpret_cast<const volatile uint64_t *>(&k.state->stamps);
            limit_ = *reinterpret_cast<const volatile uint64_t *>(&k.state->stamp_limit);
        }
    }
    __device__ void stamp(StampKind kind, uint32_t value, uint64_t time, uint32_t layer = 0) {
        if constexpr (STAMPS) {
            if (next_ < limit_)
                put_stamp(&k_.stamps[next_ & (k_.setup.stamp_capacity - 1)], time,
                          uint64_t{layer} << 48 | uint64_t{kind} << 32 | value);
            next_++; // beyond the limit too: what is lost is counted
        }
    }
    __device__ void now(StampKind kind, uint32_t value) {
        if constexpr (STAMPS) stamp(kind, value, now_ns());
    }
    __device__ void save() {
        if constexpr (STAMPS) k_.state->stamps = next_;
    }

private:
    const Kernel &k_;
    uint64_t next_ = 0, limit_ = 0;
};

// True in one thread of the kernel's last thread block, once all others have got here.
__device__ inline bool is_last_block(const Kernel &k) {
    __syncthreads();
    if (threadIdx.x != 0) return false;
    __threadfence();
    bool is_last = atomicAdd(&k.state->ticket, 1u) == gridDim.x - 1;
    if (is_last) k.state->ticket = 0;
    __threadfence();
    return is_last;
}

// Begin and end of a compute kernel. The begin is kept by the first block until the last one stamps both.
__device__ inline void note_begin(const Kernel &k) {
    if (blockIdx.x == 0 && threadIdx.x == 0) *reinterpret_cast<volatile uint64_t *>(&k.state->begin) = now_ns();
}
template <bool STAMPS> __device__ void note_end(const Kernel &k, StampKind begin, StampKind end, uint32_t value) {
    if (!is_last_block(k)) return;
    Stamper<STAMPS> stamper(k);
    if (begin != 0) stamper.stamp(begin, value, *reinterpret_cast<const volatile uint64_t *>(&k.state->begin));
    if (end != 0) stamper.now(end, value);
    stamper.save();
}

constexpr uint32_t GAVE_UP = UINT32_MAX;

// What a wait of a kernel asks now and then: has it taken too long, did the host say stop, has another wait given up?
// Not at every look: each look at host memory takes a microsecond.
class Patience {
public:
    __device__ Patience(const Kernel &k, uint32_t layer, WaitFor what, uint32_t a, uint32_t b)
        : k_(k), layer_(layer), what_(what), a_(a), b_(b) {}

    // After a look that found nothing; false: give up, the fault has been said.
    __device__ bool goes_on() {
        constexpr uint32_t CLOCK_LOOKS = 64;
        if (polls_++ % CLOCK_LOOKS != CLOCK_LOOKS - 1) return true;
        uint64_t now = now_ns();
        if (begin_ == 0) begin_ = now;
        if (has_fault(k_)) return false;
        Fault fault = {};
        fault.a = a_;
        fault.b = b_;
        fault.what = what_;
        if (now - begin_ > k_.setup.timeout_ns)
            fault.code = FaultCode::Timeout;
        else if (protocol::load_relaxed(k_.stop) != 0)
            fault.code = FaultCode::Stopped;
        else
            return true;
        set_fault(k_, layer_, fault);
        return false;
    }
    __device__ uint32_t polls() const { return polls_; }

private:
    const Kernel &k_;
    uint32_t layer_;
    WaitFor what_;
    uint32_t a_, b_, polls_ = 0;
    uint64_t begin_ = 0;
};

// A wait of one thread for `is_ready`; returns the looks that found nothing, or GAVE_UP.
template <typename IsReady> __device__ uint32_t wait_for(Patience patience, IsReady is_ready) {
    while (!is_ready())
        if (!patience.goes_on()) return GAVE_UP;
    return patience.polls();
}

// The same for a word of the host's that `is_ready` tests. Not an acquire: what the word stands for is read by kernels
// that start later.
template <typename IsReady>
__device__ uint32_t wait_for_word(const Patience &patience, const uint64_t *word, IsReady is_ready) {
    return wait_for(patience, [&] { return is_ready(protocol::load_relaxed(word)); });
}

} // namespace efaprof::gpu
