// What takes a kernel's commands away and brings back what became of them: the device's side of workload/carrier.h.
// A carrier is used by one whole warp. The ring's is here; one that posts work queue entries has the same calls:
//
//   post(command, count, entered)  lanes 0 … count−1 each give a command, in order of lanes; false after a fault
//   announce()                     what was taken and held back goes out now
//   wait_arrived(patience, word, count)  until one (source, channel) has sent so many signals
//   wait_completed(patience)             until every command has completed; both return polls or GAVE_UP
//   head(), save()                 number of the next command; state kept for the next kernel
#pragma once

#include "device.cuh"

namespace efaprof::gpu {

template <bool STAMPS> class RingCarrier {
public:
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
            protocol::publish_at(k_.setup.commands, k_.setup.ring_capacity, head_ + lane, command);
        }
        head_ += count;
        return true;
    }

    __device__ void announce() {}

    __device__ uint32_t wait_arrived(const Patience &patience, uint32_t word, uint64_t count) const {
        auto *told = static_cast<const uint8_t *>(k_.setup.told) + size_t{word} * k_.setup.told_bytes;
        return wait_for_word(patience, reinterpret_cast<const uint64_t *>(told),
                             [&](uint64_t seen) { return seen >= count; });
    }
    __device__ uint32_t wait_completed(const Patience &patience) const {
        return wait_for_word(patience, static_cast<const uint64_t *>(k_.setup.completions),
                             [&](uint64_t seen) { return seen == head_; });
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
                tail = protocol::load_acquire(k_.setup.ring_tail);
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
