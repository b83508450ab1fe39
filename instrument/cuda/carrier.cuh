// What takes a kernel's commands away and brings back what became of them: the device's side of workload/carrier.h.
// A carrier is used by one whole warp. The ring's is here; that of several rings (rings.cuh) and those that post work
// queue entries (poster.cuh) have the same calls:
//
//   post(command, count, entered)  lanes 0 … count−1 each give a command, in order of lanes; false after a fault
//   announce()                     what was taken and held back goes out now
//   wait_arrived(what, first, end, count)  until every peer has sent so many signals on channels first … end−1
//   wait_completed()               until every command has completed; both return polls or GAVE_UP
//   head(), save()                 number of the next command, in lane 0; state kept for the next kernel
#pragma once

#include "device.cuh"

namespace efaprof::gpu {

// The ranks but this one, in the order in which it deals with them.
__device__ inline uint32_t peer_after(const Kernel &k, uint32_t i) {
    return (k.setup.rank + 1 + i) % k.setup.shape.ranks;
}
__device__ inline uint32_t word_of(const Kernel &k, uint32_t peer, uint32_t channel) {
    return peer * (k.setup.shape.channels + 1) + channel;
}

// Until every peer has sent so many signals on channels first … end−1, as their proxies tell.
template <bool HAS_RINGS>
__device__ uint32_t wait_told(const Kernel &k, uint32_t layer, WaitFor what, uint32_t first, uint32_t end,
                              uint64_t count) {
    uint32_t width = end - first, polls = 0;
    for (uint32_t i = threadIdx.x % WARP; i < (k.setup.shape.ranks - 1) * width; i += WARP) {
        uint32_t src = peer_after(k, i / width), channel = first + i % width;
        const Ring &ring = k.setup.rings[HAS_RINGS ? protocol::proxy_of(channel, k.setup.proxies) : 0];
        auto *told = static_cast<const uint8_t *>(ring.told) + size_t{word_of(k, src, channel)} * k.setup.told_bytes;
        uint32_t found = wait_for_word(Patience(k, layer, what, src, channel), reinterpret_cast<const uint64_t *>(told),
                                       [&](uint64_t seen) { return seen >= count; });
        polls = found == GAVE_UP || polls == GAVE_UP ? GAVE_UP : polls + found;
    }
    __syncwarp();
    return __reduce_max_sync(ALL_LANES, polls);
}

template <bool STAMPS> class RingCarrier {
public:
    static constexpr bool HAS_RINGS = false;

    __device__ RingCarrier(const Kernel &k, uint32_t layer)
        : k_(k), layer_(layer), head_(k.state->head), cached_tail_(k.state->cached_tail) {}

    __device__ bool post(Command command, uint32_t count, uint64_t entered) {
        if (!find_room(count)) return false;
        uint32_t lane = threadIdx.x % WARP;
        uint64_t time = 0;
        if constexpr (STAMPS) time = __shfl_sync(ALL_LANES, now_ns(), 0);
        if (lane < count) {
            // The commands of a batch go out at one time: all but the first were begun when it was over.
            if (STAMPS && lane == 0) command.flags |= protocol::enter_flags(time - entered);
            command.t_push = time;
            protocol::publish_at(k_.setup.rings[0].commands, k_.setup.ring_capacity, head_ + lane, command);
        }
        head_ += count;
        return true;
    }

    __device__ void announce() {}

    __device__ uint32_t wait_arrived(WaitFor what, uint32_t first, uint32_t end, uint64_t count) const {
        return wait_told<HAS_RINGS>(k_, layer_, what, first, end, count);
    }
    __device__ uint32_t wait_completed() const {
        uint32_t polls = 0;
        if (threadIdx.x % WARP == 0)
            polls = wait_for_word(Patience(k_, layer_, WaitFor::Completions, k_.setup.rank, 0),
                                  static_cast<const uint64_t *>(k_.setup.rings[0].completions),
                                  [&](uint64_t seen) { return seen == head_; });
        return __shfl_sync(ALL_LANES, polls, 0);
    }
    __device__ uint64_t head() const { return head_; }

    __device__ void save() {
        if (threadIdx.x % WARP != 0) return;
        k_.state->head = head_;
        k_.state->cached_tail = cached_tail_;
    }

private:
    __device__ bool find_room(uint32_t count) {
        if (head_ + count - cached_tail_ <= k_.setup.ring_capacity) return true;
        uint64_t tail = cached_tail_;
        if (threadIdx.x % WARP == 0)
            wait_for(Patience(k_, layer_, WaitFor::Room, k_.setup.rank, 0), [&] {
                tail = protocol::load_acquire(k_.setup.rings[0].tail);
                return head_ + count - tail <= k_.setup.ring_capacity;
            });
        cached_tail_ = __shfl_sync(ALL_LANES, tail, 0);
        return head_ + count - cached_tail_ <= k_.setup.ring_capacity;
    }

    const Kernel &k_;
    uint32_t layer_;
    uint64_t head_, cached_tail_;
};

} // namespace efaprof::gpu
