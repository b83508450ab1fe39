// The ring between a kernel and a CPU thread: round trips, and commands per second by who pushes them.
#include <math.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "../protocol/ring_check.h"
#include "host.h"
#include "lane.h"

namespace efaprof::gpu {

using protocol::Command;
using protocol::Producer;

namespace {

constexpr uint64_t CAPACITY = 4096;
constexpr unsigned WARP = 32, ALL_LANES = 0xFFFFFFFFu;

struct alignas(64) Word {
    uint64_t value;
};

// In pinned memory.
struct Bench {
    Command slots[CAPACITY];
    Word tail, ping, pong, head, gave_up;
};

__device__ uint64_t now_ns() {
    uint64_t time;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(time));
    return time;
}

// False, and said so, when the other side does not move on. The clock is read now and then, as the kernels of a run do:
// at every look it would lengthen the time between two looks.
template <typename IsReady> __device__ bool wait_for(Bench *bench, uint64_t due, IsReady is_ready) {
    constexpr uint32_t CLOCK_LOOKS = 64;
    for (uint32_t looks = 1; !is_ready(); looks++) {
        if (looks % CLOCK_LOOKS != 0 || now_ns() < due) continue;
        protocol::store_relaxed(&bench->gave_up.value, 1);
        return false;
    }
    return true;
}

// Each trip: a command there, a word back. Times in ns.
__global__ void make_trips(Bench *bench, uint64_t count, uint32_t *times, uint64_t timeout_ns) {
    Producer ring = {bench->slots, &bench->tail.value, CAPACITY, 0, 0};
    uint64_t due = now_ns() + timeout_ns;
    for (uint64_t trip = 0; trip < count; trip++) {
        Command command = protocol::command_of(trip);
        uint64_t begin = now_ns();
        if (!wait_for(bench, due, [&] { return protocol::has_room(ring); })) return;
        protocol::publish(ring, command);
        if (!wait_for(bench, due, [&] { return protocol::load_relaxed(&bench->pong.value) == trip + 1; })) return;
        times[trip] = static_cast<uint32_t>(now_ns() - begin);
    }
}

// The same with a bare word there, not released.
__global__ void make_relaxed_trips(Bench *bench, uint64_t count, uint32_t *times, uint64_t timeout_ns) {
    uint64_t due = now_ns() + timeout_ns;
    for (uint64_t trip = 0; trip < count; trip++) {
        uint64_t begin = now_ns();
        protocol::store_relaxed(&bench->ping.value, trip + 1);
        if (!wait_for(bench, due, [&] { return protocol::load_relaxed(&bench->pong.value) == trip + 1; })) return;
        times[trip] = static_cast<uint32_t>(now_ns() - begin);
    }
}

__global__ void push_by_thread(Bench *bench, uint64_t count, uint64_t timeout_ns) {
    Producer ring = {bench->slots, &bench->tail.value, CAPACITY, 0, 0};
    uint64_t due = now_ns() + timeout_ns;
    while (ring.head < count) {
        if (!wait_for(bench, due, [&] { return protocol::has_room(ring); })) return;
        protocol::publish(ring, protocol::command_of(ring.head));
    }
}

enum HeadPlace { DEVICE_HEAD, HOST_HEAD };
enum TailCopy { CACHED_TAIL, FRESH_TAIL };

__device__ uint64_t *words_of(Bench *bench, uint64_t seq) {
    return reinterpret_cast<uint64_t *>(&bench->slots[seq & (CAPACITY - 1)]);
}

// EACH commands a lane and batch; the warps of the block take batches in turn, so no lane asks another for a number.
template <unsigned EACH, HeadPlace HEAD, TailCopy TAIL>
__global__ void push_by_warps(Bench *bench, uint64_t count, uint64_t timeout_ns) {
    constexpr uint64_t BATCH = WARP * EACH;
    uint32_t lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, warps = blockDim.x / WARP;
    uint64_t due = now_ns() + timeout_ns, tail = 0;
    for (uint64_t batch = warp; batch < count / BATCH; batch += warps) {
        uint64_t first = batch * BATCH, fresh = tail;
        if (HEAD == HOST_HEAD) first = protocol::load_acquire(&bench->head.value);
        bool is_full = first + BATCH - tail > CAPACITY;
        if (TAIL == FRESH_TAIL || is_full) {
            bool is_well = true;
            if (lane == 0)
                is_well = wait_for(bench, due, [&] {
                    fresh = protocol::load_acquire(&bench->tail.value);
                    return first + BATCH - fresh <= CAPACITY;
                });
            if (!__shfl_sync(ALL_LANES, is_well, 0)) return;
            tail = __shfl_sync(ALL_LANES, fresh, 0);
        }
        Command commands[EACH];
#pragma unroll
        for (unsigned i = 0; i < EACH; i++) {
            uint64_t seq = first + i * WARP + lane;
            commands[i] = protocol::command_of(seq);
            protocol::store_pair_relaxed(words_of(bench, seq), protocol::first_word(commands[i]),
                                         protocol::second_word(commands[i]));
        }
        __threadfence_system(); // one for all: what was stored above is there before what publishes it
#pragma unroll
        for (unsigned i = 0; i < EACH; i++) {
            uint64_t seq = first + i * WARP + lane;
            protocol::store_pair_relaxed(words_of(bench, seq) + 2, commands[i].t_push,
                                         protocol::last_word(commands[i], seq, CAPACITY));
        }
        if (HEAD == HOST_HEAD) {
            __syncwarp();
            if (lane == 0) protocol::store_release(&bench->head.value, first + BATCH);
            __syncwarp();
        }
    }
}

__global__ void step_of_timer(uint32_t *step) {
    uint64_t last = now_ns();
    uint32_t least = UINT32_MAX;
    for (int i = 0; i < 20000; i++) {
        uint64_t now = now_ns();
        if (now != last && now - last < least) least = static_cast<uint32_t>(now - last);
        last = now;
    }
    *step = least;
}

int64_t monotonic_ns() {
    timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * 1000000000 + time.tv_nsec;
}

class Runner {
public:
    Runner(const RingOptions &options, uint64_t (*now)(), double ticks_per_ns)
        : options_(options), now_(now), ticks_per_ns_(ticks_per_ns) {}

    const char *open() {
        EFAPROF_CUDA(cudaSetDevice(static_cast<int>(options_.device)));
        void *memory = nullptr;
        EFAPROF_CUDA(cudaHostAlloc(&memory, sizeof(Bench), cudaHostAllocMapped));
        bench_ = static_cast<Bench *>(memory);
        EFAPROF_CUDA(cudaMalloc(&times_, options_.trips * sizeof(uint32_t)));
        sorted_ = static_cast<uint32_t *>(calloc(options_.trips, sizeof(uint32_t)));
        return sorted_ == nullptr ? failed("out of memory") : nullptr;
    }

    void close() {
        cudaFreeHost(bench_);
        cudaFree(times_);
        free(sorted_);
    }

    const char *trips(RingRates &rates) {
        EFAPROF_TRY(make(options_.trips, rates));
        rates.trip_p50_ns = at(0.5);
        rates.trip_p99_ns = at(0.99);
        rates.trip_p999_ns = at(0.999);
        rates.trip_least_ns = at(0);
        clear();
        make_relaxed_trips<<<1, 1>>>(bench_, options_.trips, times_, options_.timeout_ns);
        EFAPROF_TRY(echo());
        EFAPROF_TRY(sort(options_.trips));
        rates.relaxed_p50_ns = at(0.5);
        return nullptr;
    }

    // The same with the consumer kept on the core that is nearest to the GPU, which a few trips from each tell.
    const char *nearest(RingRates &rates) {
        constexpr uint64_t FEW = 2000;
        cpu_set_t allowed;
        CPU_ZERO(&allowed);
        if (sched_getaffinity(0, sizeof allowed, &allowed) != 0) return nullptr;
        double least = INFINITY;
        for (int core = 0; core < CPU_SETSIZE; core++) {
            if (!CPU_ISSET(core, &allowed) || !stay_on(core)) continue;
            EFAPROF_TRY(make(FEW < options_.trips ? FEW : options_.trips, rates));
            if (at(0.5) >= least) continue;
            least = at(0.5);
            rates.nearest_core = core;
        }
        if (stay_on(rates.nearest_core)) {
            EFAPROF_TRY(make(options_.trips, rates));
            rates.nearest_p50_ns = at(0.5);
        }
        sched_setaffinity(0, sizeof allowed, &allowed);
        return nullptr;
    }

    template <typename Kernel>
    const char *rate(Kernel kernel, unsigned threads, uint64_t count, uint64_t tail_every, RingRates &rates,
                     double &per_s) {
        clear();
        kernel<<<1, threads>>>(bench_, count, options_.timeout_ns);
        EFAPROF_TRY(consume(count, rates, tail_every, false));
        per_s = rate_;
        rates.consumer_busy = busy_;
        return nullptr;
    }

    const char *step(uint32_t &ns) {
        step_of_timer<<<1, 1>>>(times_);
        EFAPROF_CUDA(cudaDeviceSynchronize());
        EFAPROF_CUDA(cudaMemcpy(&ns, times_, sizeof ns, cudaMemcpyDeviceToHost));
        return nullptr;
    }

private:
    static bool stay_on(int core) {
        cpu_set_t one;
        CPU_ZERO(&one);
        CPU_SET(core, &one);
        return sched_setaffinity(0, sizeof one, &one) == 0;
    }

    const char *make(uint64_t trips, RingRates &rates) {
        clear();
        make_trips<<<1, 1>>>(bench_, trips, times_, options_.timeout_ns);
        EFAPROF_TRY(consume(trips, rates, 1, true));
        return sort(trips);
    }

    void clear() { memset(static_cast<void *>(bench_), 0, sizeof *bench_); }

    const char *wait(const char *what) {
        EFAPROF_CUDA(cudaDeviceSynchronize());
        if (bench_->gave_up.value != 0) return failed("the kernel waited too long (%s)", what);
        return nullptr;
    }

    // Takes `count` commands, each compared with what must stand in it.
    const char *consume(uint64_t count, RingRates &rates, uint64_t tail_every, bool answers) {
        EFAPROF_CUDA(cudaGetLastError());
        protocol::Consumer ring = {bench_->slots, &bench_->tail.value, CAPACITY, 0, 0};
        Command command;
        uint64_t begin = 0, empty = 0;
        int64_t give_up = monotonic_ns() + static_cast<int64_t>(options_.timeout_ns);
        while (ring.next < count) {
            if (!protocol::peek(ring, command)) {
                if (tail_every > 1) protocol::write_tail(ring);
                if (++empty % (1u << 20) == 0 && monotonic_ns() > give_up)
                    return failed("command %llu did not come", static_cast<unsigned long long>(ring.next));
                continue;
            }
            if (ring.next == 0) begin = now_(), empty = 0;
            protocol::take(ring);
            if (answers) protocol::store_release(&bench_->pong.value, ring.next);
            if (tail_every == 1) protocol::write_tail(ring);
            rates.wrong += protocol::is_command_of(command, ring.next - 1) ? 0 : 1;
        }
        double ns = static_cast<double>(now_() - begin) / ticks_per_ns_;
        protocol::write_tail(ring);
        rate_ = static_cast<double>(count) / ns * 1e9;
        busy_ = static_cast<double>(count) / static_cast<double>(count + empty);
        rates.commands += count;
        return wait("commands");
    }

    const char *echo() {
        EFAPROF_CUDA(cudaGetLastError());
        int64_t give_up = monotonic_ns() + static_cast<int64_t>(options_.timeout_ns);
        for (uint64_t trip = 1; trip <= options_.trips; trip++) {
            for (uint32_t looks = 1; protocol::load_acquire(&bench_->ping.value) != trip; looks++)
                if (looks % (1u << 20) == 0 && monotonic_ns() > give_up) return failed("the kernel stopped answering");
            protocol::store_release(&bench_->pong.value, trip);
        }
        return wait("words");
    }

    const char *sort(uint64_t count) {
        count_ = count;
        EFAPROF_CUDA(cudaMemcpy(sorted_, times_, count * sizeof(uint32_t), cudaMemcpyDeviceToHost));
        qsort(sorted_, count, sizeof *sorted_, [](const void *left, const void *right) {
            uint32_t a = *static_cast<const uint32_t *>(left), b = *static_cast<const uint32_t *>(right);
            return a < b ? -1 : static_cast<int>(a > b);
        });
        return nullptr;
    }
    double at(double quantile) const {
        return sorted_[static_cast<uint64_t>(quantile * static_cast<double>(count_ - 1))];
    }

    const RingOptions &options_;
    uint64_t (*now_)();
    double ticks_per_ns_;
    Bench *bench_ = nullptr;
    uint32_t *times_ = nullptr, *sorted_ = nullptr;
    uint64_t count_ = 1; // of the times that are sorted
    double rate_ = 0, busy_ = 0;
};

const char *measure(Runner &runner, const RingOptions &options, RingRates &rates) {
    uint64_t few = options.commands / 8 / 128 * 128, many = options.commands / 128 * 128;
    double warm_up = 0;
    EFAPROF_TRY(runner.rate(push_by_thread, 1, 1024, 64, rates, warm_up));
    EFAPROF_TRY(runner.trips(rates));
    EFAPROF_TRY(runner.nearest(rates));
    EFAPROF_TRY(runner.rate(push_by_thread, 1, few, 64, rates, rates.thread_per_s));
    EFAPROF_TRY(runner.rate(push_by_warps<1, DEVICE_HEAD, CACHED_TAIL>, 32, many, 64, rates, rates.warp_per_s));
    EFAPROF_TRY(runner.rate(push_by_warps<1, DEVICE_HEAD, FRESH_TAIL>, 32, few, 64, rates, rates.uncached_tail_per_s));
    EFAPROF_TRY(runner.rate(push_by_warps<1, HOST_HEAD, CACHED_TAIL>, 32, few, 64, rates, rates.host_head_per_s));
    EFAPROF_TRY(runner.rate(push_by_warps<4, DEVICE_HEAD, CACHED_TAIL>, 32, many, 64, rates, rates.batch_per_s));
    EFAPROF_TRY(runner.rate(push_by_warps<4, DEVICE_HEAD, CACHED_TAIL>, 128, many, 1, rates, rates.eager_tail_per_s));
    EFAPROF_TRY(runner.rate(push_by_warps<4, DEVICE_HEAD, CACHED_TAIL>, 128, many, 64, rates, rates.drain_per_s));
    return runner.step(rates.timer_step_ns);
}

} // namespace

const char *bench_ring(const RingOptions *options, uint64_t (*now)(), double ticks_per_ns, RingRates *rates) {
    *rates = {};
    rates->trips = options->trips;
    rates->capacity = CAPACITY;
    Runner runner(*options, now, ticks_per_ns);
    EFAPROF_TRY(runner.open());
    EFAPROF_TRY(measure(runner, *options, *rates));
    runner.close();
    return nullptr;
}

int device_count() {
    int count = 0;
    return cudaGetDeviceCount(&count) == cudaSuccess ? count : -1;
}

const char *device_facts(uint32_t device, DeviceFacts *facts) {
    *facts = {};
    cudaDeviceProp properties;
    EFAPROF_CUDA(cudaGetDeviceProperties(&properties, static_cast<int>(device)));
    snprintf(facts->name, sizeof facts->name, "%.95s", properties.name);
    facts->major = properties.major;
    facts->minor = properties.minor;
    EFAPROF_CUDA(cudaDriverGetVersion(&facts->driver));
    EFAPROF_CUDA(cudaRuntimeGetVersion(&facts->runtime));
    if (cudaDeviceGetAttribute(&facts->numa_node, cudaDevAttrHostNumaId, static_cast<int>(device)) != cudaSuccess)
        facts->numa_node = -1;
    RingOptions none = {device, 0, 1, 0};
    Runner runner(none, nullptr, 1);
    EFAPROF_TRY(runner.open());
    EFAPROF_TRY(runner.step(facts->timer_step_ns));
    runner.close();
    return nullptr;
}

} // namespace efaprof::gpu
