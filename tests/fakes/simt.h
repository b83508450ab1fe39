// Thread blocks on a CPU: what kernels of instrument/cuda call of CUDA, with a coroutine for each thread. Blocks run
// one after the other, the first one last: it may wait for the others. Each thread of the CPU has its own. Included
// after CUDA's own headers, which a C++ compiler takes, and before the kernels.
#pragma once

#include <math.h>
#include <sched.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>

#include <functional>
#include <vector>

#undef __shared__
#define __shared__ thread_local
#undef __grid_constant__
#define __grid_constant__
#undef __noinline__
#define __noinline__

namespace simt {

constexpr unsigned WIDTH = 32, MOST_THREADS = 1024;
constexpr size_t STACK_BYTES = 65536;

struct Index {
    unsigned x, y, z;
};
inline thread_local Index thread, block, threads, blocks;

struct Coroutine {
    ucontext_t context;
    std::vector<char> stack;
    bool is_over;
};
struct Meeting {
    unsigned arrived, expected; // threads that are over are not waited for
    uint64_t round;
    uint64_t values[WIDTH];
};
inline thread_local std::vector<Coroutine> coroutines(MOST_THREADS);
inline thread_local ucontext_t scheduler;
inline thread_local std::function<void()> body;
inline thread_local Meeting warps[MOST_THREADS / WIDTH], whole;

inline void pause() {
    swapcontext(&coroutines[thread.x].context, &scheduler);
}
inline void open_when_all_are_here(Meeting &meeting) {
    if (meeting.arrived == 0 || meeting.arrived < meeting.expected) return;
    meeting.arrived = 0;
    meeting.round++;
}
inline void meet(Meeting &meeting) {
    uint64_t round = meeting.round;
    meeting.arrived++;
    open_when_all_are_here(meeting);
    while (meeting.round == round)
        pause();
}
inline Meeting &warp() {
    return warps[thread.x / WIDTH];
}
inline void meet_warp() {
    meet(warp());
}

// Every lane's value, once all have given theirs; `use` looks at them.
template <typename Value, typename Use> auto exchange(Value value, Use use) {
    uint64_t bits = 0;
    static_assert(sizeof value <= sizeof bits, "one word");
    memcpy(&bits, &value, sizeof value);
    warp().values[thread.x % WIDTH] = bits;
    meet_warp();
    auto found = use([](unsigned lane) {
        Value of_lane;
        memcpy(&of_lane, &warp().values[lane % WIDTH], sizeof of_lane);
        return of_lane;
    });
    meet_warp();
    return found;
}

inline void run_thread() {
    body();
    coroutines[thread.x].is_over = true;
    for (Meeting *meeting : {&warp(), &whole}) {
        meeting->expected--;
        open_when_all_are_here(*meeting);
    }
    pause();
}
inline void begin_thread(Coroutine &one) {
    one.stack.resize(STACK_BYTES);
    getcontext(&one.context);
    one.context.uc_stack.ss_sp = one.stack.data();
    one.context.uc_stack.ss_size = STACK_BYTES;
    one.is_over = false;
    makecontext(&one.context, run_thread, 0);
}
inline void run_block() {
    memset(warps, 0, sizeof warps);
    whole = {};
    for (unsigned i = 0; i < threads.x; i++) {
        begin_thread(coroutines[i]);
        warps[i / WIDTH].expected++;
        whole.expected++;
    }
    for (unsigned left = threads.x; left != 0;) {
        for (unsigned i = 0; i < threads.x; i++) {
            if (coroutines[i].is_over) continue;
            thread = {i, 0, 0};
            swapcontext(&scheduler, &coroutines[i].context);
            left -= coroutines[i].is_over ? 1 : 0;
        }
    }
}
template <typename Kernel> void launch(unsigned block_count, unsigned thread_count, Kernel kernel) {
    body = kernel;
    blocks = {block_count, 1, 1};
    threads = {thread_count, 1, 1};
    for (unsigned i = 0; i < block_count; i++) {
        block = {(i + 1) % block_count, 0, 0};
        run_block();
    }
}

} // namespace simt

#define threadIdx simt::thread
#define blockIdx simt::block
#define blockDim simt::threads
#define gridDim simt::blocks

inline void __syncthreads() {
    simt::meet(simt::whole);
}
inline void __syncwarp() {
    simt::meet_warp();
}
template <typename Value> Value __shfl_sync(unsigned, Value value, unsigned from) {
    return simt::exchange(value, [&](auto of) { return of(from); });
}
template <typename Value> Value __shfl_up_sync(unsigned, Value value, unsigned by) {
    unsigned lane = simt::thread.x % simt::WIDTH;
    return simt::exchange(value, [&](auto of) { return of(lane >= by ? lane - by : lane); });
}
template <typename Value> Value __shfl_xor_sync(unsigned, Value value, unsigned by) {
    return simt::exchange(value, [&](auto of) { return of((simt::thread.x % simt::WIDTH) ^ by); });
}
inline unsigned __ballot_sync(unsigned, bool is_so) {
    if (simt::thread.x == 0) sched_yield(); // whoever polls asks its neighbours at every look
    return simt::exchange(is_so, [](auto of) {
        unsigned bits = 0;
        for (unsigned lane = 0; lane < simt::WIDTH; lane++)
            bits |= (of(lane) ? 1u : 0u) << lane;
        return bits;
    });
}
inline bool __all_sync(unsigned mask, bool is_so) {
    return __ballot_sync(mask, is_so) == 0xFFFFFFFFu;
}
inline unsigned __reduce_max_sync(unsigned, unsigned value) {
    return simt::exchange(value, [](auto of) {
        unsigned most = 0;
        for (unsigned lane = 0; lane < simt::WIDTH; lane++)
            most = of(lane) > most ? of(lane) : most;
        return most;
    });
}
inline int __ffs(int bits) {
    return __builtin_ffs(bits);
}
inline int __popc(unsigned bits) {
    return __builtin_popcount(bits);
}
inline void __nanosleep(unsigned) {
    sched_yield();
}
inline void __threadfence() {}
inline void __threadfence_system() {}
template <typename Word> Word atomicAdd(Word *word, Word by) {
    Word before = *word;
    *word = before + by;
    return before;
}
template <typename Word> Word atomicExch(Word *word, Word value) {
    Word before = *word;
    *word = value;
    return before;
}
template <typename Word> Word atomicCAS(Word *word, Word expected, Word value) {
    Word before = *word;
    if (before == expected) *word = value;
    return before;
}
