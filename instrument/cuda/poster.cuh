// The carrier of a kernel that posts by itself: it writes work queue entries, rings the doorbell and looks for what
// became of them (endings.cuh); no ring, no proxy, no host thread. What a call waits for it looks for itself: nobody
// else does.
//
// A warp writes an entry a lane and rings once for the group. Order of memory: every lane's entry, and the payload and
// signal bodies that it saw or wrote, come before the warp's fence for the whole system, and that before the doorbell's
// store; the device's entries are read with acquire, so what it wrote before them is seen after them.
#pragma once

#include "endings.cuh"

namespace efaprof::gpu {

template <template <bool> class EndingsOf, bool STAMPS> class Poster {
public:
    static constexpr bool HAS_RINGS = false;

    __device__ Poster(const Kernel &k, uint32_t layer)
        : k_(k), p_(k.setup.posting), layer_(layer), head_(k.state->head), endings_(k, layer) {}

    // A fenced command begins a group of its own: it must not go out before others to its peer have ended.
    __device__ bool post(const Command &command, uint32_t count, uint64_t entered) {
        uint32_t fenced = __ballot_sync(ALL_LANES, lane() < count && (command.flags & protocol::FLAG_FENCE) != 0);
        for (uint32_t begin = 0, end; begin < count; begin = end) {
            uint32_t later = begin + 1 < WARP ? fenced & ALL_LANES << (begin + 1) : 0;
            end = later != 0 ? static_cast<uint32_t>(__ffs(static_cast<int>(later))) - 1 : count;
            if (end - begin > p_.batch) end = begin + p_.batch;
            if (!post_group(command, begin, end, (fenced >> begin & 1) != 0, entered)) return false;
        }
        return true;
    }

    __device__ void announce() {} // nothing is held back

    __device__ uint32_t wait_arrived(WaitFor what, uint32_t first, uint32_t end, uint64_t count) {
        uint32_t width = end - first, all = (k_.setup.shape.ranks - 1) * width, polls = 0;
        for (uint32_t from = 0; from < all && polls != GAVE_UP; from += WARP) {
            uint32_t i = from + lane(), src = peer_after(k_, i / width), channel = first + i % width;
            uint32_t found = wait(Patience(k_, layer_, what, src, channel), [&] {
                return i >= all || load_volatile(&k_.arrived[word_of(k_, src, channel)]) >= count;
            });
            polls = found == GAVE_UP ? GAVE_UP : polls + found;
        }
        return polls;
    }
    __device__ uint32_t wait_completed() {
        return wait(Patience(k_, layer_, WaitFor::Completions, k_.setup.rank, 0),
                    [&] { return endings_.completed() == head_; });
    }
    __device__ uint64_t head() const { return head_; }

    __device__ void save() {
        if (lane() != 0) return;
        k_.state->head = head_;
        endings_.save();
    }

private:
    struct Times {
        uint64_t enter, ordered, slot, space, built, turn, fenced, rung;
    };

    __device__ static uint32_t lane() { return threadIdx.x % WARP; }
    __device__ static uint64_t time() { return warp_time<STAMPS>(); }

    // Looks for what came until `is_ready` holds in every lane; the looks until then, or GAVE_UP.
    template <typename IsReady> __device__ uint32_t wait(Patience patience, IsReady is_ready) {
        for (;;) {
            bool is_mine = is_ready();
            if (__all_sync(ALL_LANES, is_mine)) break;
            if (endings_.look(head_) == Look::Failed) return GAVE_UP;
            bool goes_on = is_mine || patience.goes_on();
            if (!__all_sync(ALL_LANES, goes_on)) return GAVE_UP;
        }
        return __reduce_max_sync(ALL_LANES, patience.polls());
    }

    // The commands of lanes begin … end−1 as one batch of entries.
    __device__ bool post_group(const Command &command, uint32_t begin, uint32_t end, bool is_fenced,
                               uint64_t &entered) {
        uint32_t count = end - begin;
        Times times = {};
        times.enter = entered;
        uint32_t peer = __shfl_sync(ALL_LANES, uint32_t{command.peer}, begin);
        if (is_fenced && !wait_ordered(peer)) return false;
        times.ordered = is_fenced ? time() : entered;
        if (!wait_requests(count)) return false;
        uint64_t place = 0;
        if (lane() == 0) place = protocol::reserve(k_.post->send, count);
        place = __shfl_sync(ALL_LANES, place, 0);
        times.slot = time();
        if (wait(Patience(k_, layer_, WaitFor::Space, k_.setup.rank, 0),
                 [&] { return protocol::has_space(p_.send, place + count - 1, endings_.completed()); }) == GAVE_UP)
            return false;
        times.space = time();
        bool is_mine = lane() >= begin && lane() < end;
        uint64_t in_flight = head_ - endings_.completed();
        if (is_mine) write(command, head_ + lane() - begin, place + lane() - begin);
        __syncwarp();
        times.built = time();
        if (!take_turn(place)) return false;
        times.turn = time();
        protocol::fence_system();
        __syncwarp();
        times.fenced = time();
        if (lane() == 0) protocol::ring_doorbell(k_.post->send, place + count);
        __syncwarp();
        times.rung = time();
        if (STAMPS && is_mine) stamp(command, times, lane() - begin, count, in_flight);
        head_ += count;
        entered = times.rung;
        __syncwarp();
        return true;
    }

    __device__ bool wait_ordered(uint32_t peer) {
        return wait(Patience(k_, layer_, WaitFor::Order, peer, 0), [&] { return endings_.is_ordered(peer, head_); }) !=
               GAVE_UP;
    }

    // A request number is free again once everything up to its last use has ended.
    __device__ bool wait_requests(uint32_t count) {
        return wait(Patience(k_, layer_, WaitFor::Requests, k_.setup.rank, 0), [&] {
                   if (head_ + count - endings_.prefix() > p_.window) endings_.move_prefix(head_);
                   return head_ + count - endings_.prefix() <= p_.window;
               }) != GAVE_UP;
    }

    __device__ void write(const Command &command, uint64_t number, uint64_t place) {
        protocol::WriteWork work = {
            p_.base + uint64_t{command.src_off} * protocol::UNIT_BYTES,
            uint64_t{command.dst_off} * protocol::UNIT_BYTES,
            command.bytes,
            p_.lkey,
            protocol::pack_imm(k_.setup.rank, command.channel, command.flags >> protocol::WIRE_SHIFT),
            static_cast<uint16_t>(number & (p_.window - 1)),
            (command.flags & protocol::FLAG_IMM) != 0,
        };
        softefa_wqe wqe = protocol::build_write(work, k_.targets[command.peer]);
        if (p_.fuzz != 0) spoil(wqe, number);
        protocol::write_entry(k_.post->send, place, wqe);
        endings_.begin_one(number, command.peer);
    }

    __device__ void spoil(softefa_wqe &wqe, uint64_t number) const {
        uint64_t random = protocol::mix(protocol::mix(k_.setup.seed + k_.setup.rank) + number);
        if (random % 1000 >= p_.fuzz) return;
        uint32_t bit = static_cast<uint32_t>(random >> 32) % (sizeof wqe * 8);
        uint64_t words[protocol::WQE_WORDS];
        memcpy(words, &wqe, sizeof wqe);
        for (uint32_t i = 0; i < protocol::WQE_WORDS; i++) // no index that only the run knows: words stay registers
            words[i] ^= i == bit / 64 ? uint64_t{1} << bit % 64 : 0;
        memcpy(&wqe, words, sizeof wqe);
    }

    // Another warp's entries before ours: it rings first.
    __device__ bool take_turn(uint64_t place) {
        uint32_t polls = 0;
        if (lane() == 0)
            polls = wait_for(Patience(k_, layer_, WaitFor::Turn, k_.setup.rank, 0),
                             [&] { return protocol::is_turn(k_.post->send, place); });
        return __shfl_sync(ALL_LANES, polls, 0) != GAVE_UP;
    }

    // The lanes of a group write at one time: all but the first are taken to have begun when the entries were there.
    __device__ void stamp(const Command &command, const Times &times, uint32_t index, uint32_t count,
                          uint64_t in_flight) const {
        uint64_t enter = index == 0 ? times.enter : times.built;
        auto since = [enter](uint64_t time) {
            uint64_t ns = time > enter ? time - enter : 0;
            return ns > UINT32_MAX ? UINT32_MAX : static_cast<uint32_t>(ns);
        };
        PostStamp stamp = {};
        stamp.enter = enter;
        stamp.ordered = since(times.ordered);
        stamp.slot = since(times.slot);
        stamp.space = since(times.space);
        stamp.built = since(times.built);
        stamp.turn = since(times.turn);
        stamp.fenced = since(times.fenced);
        stamp.rung = since(times.rung);
        stamp.bytes = command.bytes;
        stamp.peer = command.peer;
        stamp.kind = command.kind;
        stamp.channel = command.channel;
        stamp.flags = static_cast<uint16_t>(command.flags & 0xFu);
        stamp.batch = static_cast<uint16_t>(count);
        stamp.in_flight = static_cast<uint32_t>(in_flight + index);
        uint64_t words[sizeof stamp / sizeof(uint64_t)];
        memcpy(words, &stamp, sizeof stamp);
        auto *at = reinterpret_cast<uint64_t *>(&k_.post_stamps[(head_ + index) & (p_.stamp_capacity - 1)]);
        for (uint32_t i = 0; i < sizeof stamp / sizeof(uint64_t); i += 2)
            protocol::store_pair_relaxed(at + i, words[i], words[i + 1]);
    }

    const Kernel &k_;
    const Posting &p_;
    uint32_t layer_;
    uint64_t head_;
    EndingsOf<STAMPS> endings_;
};

// By the completion queue, or by the device's counter.
template <bool STAMPS> class PostingCarrier : public Poster<CqEndings, STAMPS> {
    using Poster<CqEndings, STAMPS>::Poster;
};
template <bool STAMPS> class CountingCarrier : public Poster<CounterEndings, STAMPS> {
    using Poster<CounterEndings, STAMPS>::Poster;
};

// Waits until everything has ended, for the host: between steps nobody looks. One warp.
template <template <bool> class CarrierOf, bool STAMPS> __global__ void settle(const __grid_constant__ Kernel k) {
    if (!has_fault(k)) {
        CarrierOf<STAMPS> carrier(k, 0);
        carrier.wait_completed();
        carrier.save();
    }
    __syncwarp();
    if (threadIdx.x != 0) return;
    k.done->ended = k.post->ended;
    k.done->arrivals = k.post->arrivals;
    k.done->fault = k.state->fault;
}

} // namespace efaprof::gpu
