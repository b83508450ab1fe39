// The carrier of a rank with several rings (protocol/rings.h): each command goes into its channel's. Lane r of the warp
// keeps what is to be known of ring r. With one ring, RingCarrier does the same with less.
#pragma once

#include "carrier.cuh"

namespace efaprof::gpu {

template <bool STAMPS> class RingsCarrier {
public:
    static constexpr bool HAS_RINGS = true;

    __device__ RingsCarrier(const Kernel &k, uint32_t layer)
        : k_(k), layer_(layer), proxies_(k.setup.proxies), total_(k.state->head) {
        if (!has_ring()) return;
        const RingState &state = k.state->rings[lane()];
        head_ = state.head;
        cached_tail_ = state.cached_tail;
        slots_ = reinterpret_cast<uint64_t>(k.setup.rings[lane()].commands);
    }

    __device__ bool post(Command command, uint32_t count, uint64_t entered) {
        uint32_t own = lane() < count ? protocol::proxy_of(command.channel, proxies_) : proxies_, before = 0, added = 0;
        for (uint32_t ring = 0; ring < proxies_; ring++) {
            uint32_t here = __ballot_sync(ALL_LANES, own == ring);
            if (own == ring) before = static_cast<uint32_t>(__popc(here & ((1u << lane()) - 1)));
            if (lane() == ring) added = static_cast<uint32_t>(__popc(here));
        }
        if (!find_room(added)) return false;
        uint32_t from = own < proxies_ ? own : 0;
        uint64_t seq = __shfl_sync(ALL_LANES, head_, from) + before, slots = __shfl_sync(ALL_LANES, slots_, from);
        uint64_t time = 0;
        if constexpr (STAMPS) time = __shfl_sync(ALL_LANES, now_ns(), 0);
        if (lane() < count) {
            // The commands of a batch go out at one time: all but the first were begun when it was over.
            if (STAMPS && lane() == 0) command.flags |= protocol::enter_flags(time - entered);
            command.t_push = time;
            protocol::publish_at(reinterpret_cast<Command *>(slots), k_.setup.ring_capacity, seq, command);
        }
        head_ += added;
        total_ += count;
        return true;
    }

    __device__ void announce() {}

    __device__ uint32_t wait_arrived(WaitFor what, uint32_t first, uint32_t end, uint64_t count) const {
        return wait_told<HAS_RINGS>(k_, layer_, what, first, end, count);
    }
    __device__ uint32_t wait_completed() const {
        uint32_t polls = 0;
        if (has_ring())
            polls = wait_for_word(Patience(k_, layer_, WaitFor::Completions, k_.setup.rank, 0),
                                  static_cast<const uint64_t *>(k_.setup.rings[lane()].completions),
                                  [&](uint64_t seen) { return seen == head_; });
        __syncwarp();
        return __reduce_max_sync(ALL_LANES, polls);
    }
    // The first ring's, in lane 0: what stamps tell.
    __device__ uint64_t head() const { return head_; }
    // Another one's, asked for by all lanes.
    __device__ uint64_t ring_head(uint32_t ring) const { return __shfl_sync(ALL_LANES, head_, ring); }

    __device__ void save() {
        if (has_ring()) k_.state->rings[lane()] = {head_, cached_tail_};
        if (lane() == 0) k_.state->head = total_;
    }

private:
    __device__ static uint32_t lane() { return threadIdx.x % WARP; }
    __device__ bool has_ring() const { return lane() < proxies_; }
    __device__ bool has_room(uint32_t added, uint64_t tail) const {
        return head_ + added - tail <= k_.setup.ring_capacity;
    }
    __device__ bool find_room(uint32_t added) {
        bool is_free = has_room(added, cached_tail_);
        if (__all_sync(ALL_LANES, is_free)) return true;
        if (!is_free)
            wait_for(Patience(k_, layer_, WaitFor::Room, k_.setup.rank, 0), [&] {
                cached_tail_ = protocol::load_acquire(k_.setup.rings[lane()].tail);
                return has_room(added, cached_tail_);
            });
        __syncwarp();
        is_free = has_room(added, cached_tail_);
        return __all_sync(ALL_LANES, is_free);
    }

    const Kernel &k_;
    uint32_t layer_, proxies_;
    uint64_t total_;                                  // commands in all rings so far
    uint64_t head_ = 0, cached_tail_ = 0, slots_ = 0; // of this lane's ring
};

} // namespace efaprof::gpu
