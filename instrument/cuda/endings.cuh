// How a kernel that posts by itself learns what became of its entries, and what came from others: two ways with the
// same calls. Both are used by one whole warp.
//
//   look(head)                   looks once; commands below `head` have been posted
//   completed()                  operations that were seen to have ended
//   is_ordered(peer, head)       everything posted to the peer has ended; with a counter, everything
//   prefix(), move_prefix(head)  every command below has ended
//   begin_one(number, peer)      one lane's command is in flight from now on
//   save()                       one lane; kept for the next kernel
#pragma once

#include "carrier.cuh"

namespace efaprof::gpu {

enum class Look { Nothing, Found, Failed };

template <typename Word> __device__ Word load_volatile(const Word *word) {
    return *static_cast<const volatile Word *>(word);
}

// The same in every lane.
template <bool STAMPS> __device__ uint64_t warp_time() {
    if constexpr (STAMPS) return __shfl_sync(ALL_LANES, now_ns(), 0);
    return 0;
}

__device__ inline uint32_t first_zero(uint32_t bits) {
    return bits == ALL_LANES ? WARP : static_cast<uint32_t>(__ffs(static_cast<int>(~bits))) - 1;
}

template <bool STAMPS> class Endings {
protected:
    __device__ Endings(const Kernel &k, uint32_t layer)
        : k_(k), p_(k.setup.posting), layer_(layer), prefix_(k.post->prefix), arrivals_(k.post->arrivals) {}

    __device__ static uint32_t lane() { return threadIdx.x % WARP; }

    __device__ bool fault(FaultCode code, uint32_t a, uint32_t b, uint32_t element) const {
        Fault fault = {code};
        fault.a = a;
        fault.b = b;
        fault.element = element;
        set_fault(k_, layer_, fault);
        return false;
    }

    __device__ void stamp_end(uint64_t number, uint64_t now) const {
        if constexpr (STAMPS) protocol::store_relaxed(&k_.post_stamps[number & (p_.stamp_capacity - 1)].done, now);
    }

    // Arrival `number` was handed over at `now`.
    __device__ void stamp_arrival(uint64_t number, uint64_t seen, uint64_t now, uint32_t bits, uint32_t imm) const {
        uint64_t late = now - seen;
        uint32_t rest = static_cast<uint32_t>(late > ARRIVAL_NS ? ARRIVAL_NS : late) | bits;
        auto *at = reinterpret_cast<uint64_t *>(&k_.arrival_stamps[number & (p_.stamp_capacity - 1)]);
        protocol::store_pair_relaxed(at, seen, uint64_t{rest} << 32 | imm);
    }

    __device__ uint64_t read_body(uint32_t src, uint32_t channel) const {
        uint64_t unit = k_.setup.heap.flags + word_of(k_, src, channel);
        return protocol::read_signal(
            *reinterpret_cast<const protocol::Signal *>(k_.setup.memory + unit * protocol::UNIT_BYTES));
    }

    __device__ void save_common(uint64_t completed) const {
        k_.post->prefix = prefix_;
        k_.post->arrivals = arrivals_;
        k_.post->ended = completed;
    }

    const Kernel &k_;
    const Posting &p_;
    uint32_t layer_;
    uint64_t prefix_;
    uint64_t arrivals_; // handed over; lane 0's
};

// Reads the completion queue, an entry a lane.
template <bool STAMPS> class CqEndings : Endings<STAMPS> {
public:
    __device__ CqEndings(const Kernel &k, uint32_t layer) : Endings<STAMPS>(k, layer), cq_(k.post->completions) {}

    // One look at the completion queue, an entry a lane: as many as are there without a gap.
    __device__ Look look(uint64_t head) {
        protocol::CqWatch own = cq_;
        own.read += this->lane();
        protocol::Completion found = {};
        bool is_new = this->lane() < cq_.count && protocol::read_completion(own, found);
        uint32_t count = first_zero(__ballot_sync(ALL_LANES, is_new));
        if (count == 0) return Look::Nothing;
        uint64_t now = warp_time<STAMPS>();
        bool is_ours = this->lane() < count, is_end = is_ours && found.queue == SOFTEFA_SQ;
        bool is_arrival = is_ours && found.queue == SOFTEFA_RQ;
        bool is_good = !is_ours || (check(found) && (!is_end || end_one(found, head, now)));
        cq_.read += count;
        cq_.completed += __popc(__ballot_sync(ALL_LANES, is_end));
        if (this->lane() == 0) protocol::tell_read(cq_);
        if (!__all_sync(ALL_LANES, is_good)) return Look::Failed;
        uint64_t body =
            is_arrival ? this->read_body(protocol::imm_src(found.imm), protocol::imm_channel(found.imm)) : 0;
        for (uint32_t rest = __ballot_sync(ALL_LANES, is_arrival); rest != 0; rest &= rest - 1) {
            int from = __ffs(static_cast<int>(rest)) - 1;
            uint32_t imm = __shfl_sync(ALL_LANES, found.imm, from);
            uint64_t its_body = __shfl_sync(ALL_LANES, body, from);
            bool is_in_order = this->lane() != 0 || deliver(imm, its_body, now);
            if (!__all_sync(ALL_LANES, is_in_order)) return Look::Failed;
        }
        __syncwarp();
        return Look::Found;
    }

    __device__ uint64_t completed() const { return cq_.completed; }
    __device__ bool is_ordered(uint32_t peer, uint64_t) const {
        return load_volatile(&k_.ended[peer]) == load_volatile(&k_.posted[peer]);
    }
    __device__ uint64_t prefix() const { return this->prefix_; }
    __device__ void move_prefix(uint64_t head) {
        for (uint32_t run = WARP; run == WARP; this->prefix_ += run) {
            uint64_t number = this->prefix_ + this->lane();
            run = first_zero(__ballot_sync(ALL_LANES, number < head && load_volatile(flying(number)) == 0));
        }
    }
    __device__ void begin_one(uint64_t number, uint16_t peer) {
        *static_cast<volatile uint32_t *>(flying(number)) = peer + 1u;
        atomicAdd(&k_.posted[peer], 1u);
    }
    __device__ void save() {
        k_.post->completions.read = cq_.read;
        k_.post->completions.completed = cq_.completed;
        this->save_common(cq_.completed);
    }

private:
    using Endings<STAMPS>::k_;
    using Endings<STAMPS>::p_;

    __device__ uint32_t *flying(uint64_t number) const { return &k_.flying[number & (p_.window - 1)]; }

    // What the device wrote may be anything: it is believed only where it fits what was posted.
    __device__ bool check(const protocol::Completion &found) const {
        if (found.status != SOFTEFA_OK) return this->fault(FaultCode::Status, found.status, found.queue, found.req_id);
        if (found.qpn != p_.qpn) return this->fault(FaultCode::Completion, 0, found.qpn, found.req_id);
        if (found.queue == SOFTEFA_SQ) return true;
        if (found.queue != SOFTEFA_RQ || !found.has_imm)
            return this->fault(FaultCode::Completion, 1, found.queue, found.req_id);
        uint32_t src = protocol::imm_src(found.imm), channel = protocol::imm_channel(found.imm);
        return (src < k_.setup.shape.ranks && channel <= k_.setup.shape.channels) ||
               this->fault(FaultCode::Completion, 2, src, channel);
    }

    __device__ bool end_one(const protocol::Completion &found, uint64_t head, uint64_t now) const {
        uint32_t peer = found.req_id < p_.window ? atomicExch(&k_.flying[found.req_id], 0u) : 0;
        if (peer == 0) return this->fault(FaultCode::Completion, 3, found.req_id, found.req_id);
        atomicAdd(&k_.ended[peer - 1], 1u);
        // The newest command below head with this request number.
        this->stamp_end(head - 1 - ((head - 1 - found.req_id) & (p_.window - 1)), now);
        return true;
    }

    // Order per (source, channel), then the signal. A signal's body says how many operations it stands behind, itself
    // included: one with this very count is this arrival's. One lane.
    __device__ bool deliver(uint32_t imm, uint64_t body, uint64_t now) {
        uint32_t src = protocol::imm_src(imm), channel = protocol::imm_channel(imm), word = word_of(k_, src, channel);
        protocol::Window &window = k_.windows[word];
        uint64_t *seen = k_.seen + size_t{word} * protocol::WINDOW, seq = 0;
        int64_t whole = 0;
        protocol::Arrival arrival = protocol::arrive(window, protocol::imm_seq(imm), whole);
        if (arrival == protocol::Arrival::Repeated || arrival == protocol::Arrival::Beyond)
            return this->fault(FaultCode::Sequence, src, channel, static_cast<uint32_t>(whole));
        bool is_signal = body == static_cast<uint64_t>(whole) + 1;
        seen[static_cast<uint64_t>(whole) % protocol::WINDOW] = now << 1 | (is_signal ? 1 : 0);
        for (bool is_held = false; protocol::hand_over(window, seq); is_held = true) {
            uint64_t one = seen[seq % protocol::WINDOW];
            if ((one & 1) != 0) k_.arrived[word]++;
            if (!STAMPS) continue;
            uint32_t bits = (is_held ? ARRIVAL_HELD : 0u) | ((one & 1) != 0 ? ARRIVAL_SIGNAL : 0u);
            this->stamp_arrival(this->arrivals_++, one >> 1, now_ns(), bits, protocol::pack_imm(src, channel, seq));
        }
        return true;
    }

    protocol::CqWatch cq_;
};

// The device's counter says how many have ended, not which: all that are in flight count as ended once all have. No
// arrival is told of: signals are found as bodies in memory.
template <bool STAMPS> class CounterEndings : Endings<STAMPS> {
public:
    __device__ CounterEndings(const Kernel &k, uint32_t layer) : Endings<STAMPS>(k, layer), counter_(k.post->counter) {}

    __device__ Look look(uint64_t head) {
        uint32_t ended = 0, wrong = 0;
        if (this->lane() == 0)
            ended = protocol::look(
                counter_, [](const protocol::Completion &) {},
                [&](uint32_t count, const protocol::Completion &) { wrong = count; });
        counter_.completed = __shfl_sync(ALL_LANES, counter_.completed, 0);
        wrong = __shfl_sync(ALL_LANES, wrong, 0);
        if (wrong != 0) {
            if (this->lane() == 0)
                this->fault(FaultCode::Counter, wrong, static_cast<uint32_t>(head - this->prefix_), 0);
            return Look::Failed;
        }
        bool has_ended = __shfl_sync(ALL_LANES, ended, 0) != 0;
        if (counter_.completed == head) end_all(head);
        Look found = scan();
        return found == Look::Nothing && has_ended ? Look::Found : found;
    }

    __device__ uint64_t completed() const { return counter_.completed; }
    __device__ bool is_ordered(uint32_t, uint64_t head) const { return counter_.completed == head; }
    __device__ uint64_t prefix() const { return this->prefix_; }
    __device__ void move_prefix(uint64_t) {}
    __device__ void begin_one(uint64_t, uint16_t) {}
    __device__ void save() {
        k_.post->counter = counter_;
        this->save_common(counter_.completed);
    }

private:
    using Endings<STAMPS>::k_;

    __device__ void end_all(uint64_t head) {
        if (this->prefix_ == head) return;
        uint64_t now = warp_time<STAMPS>();
        for (uint64_t number = this->prefix_ + this->lane(); STAMPS && number < head; number += WARP)
            this->stamp_end(number, now);
        this->prefix_ = head;
        __syncwarp();
    }

    // Signal bodies that were written since the last look, one a lane.
    __device__ Look scan() {
        uint32_t width = k_.setup.shape.channels + 1, all = (k_.setup.shape.ranks - 1) * width;
        Look found = Look::Nothing;
        for (uint32_t from = 0; from < all; from += WARP) {
            uint32_t i = from + this->lane();
            uint32_t src = peer_after(k_, i / width), channel = i % width, word = word_of(k_, src, channel);
            uint64_t body = i < all ? this->read_body(src, channel) : 0, before = i < all ? k_.arrived[word] : 0;
            bool is_new = body > before;
            // Each signal of a channel follows what its consumer did with the one before: none can be skipped.
            bool is_good = !is_new || body == before + 1 ||
                           this->fault(FaultCode::Sequence, src, channel, static_cast<uint32_t>(body - 1));
            if (!__all_sync(ALL_LANES, is_good)) return Look::Failed;
            uint32_t news = __ballot_sync(ALL_LANES, is_new);
            if (news == 0) continue;
            found = Look::Found;
            uint64_t now = warp_time<STAMPS>();
            if (is_new) k_.arrived[word] = body;
            if (STAMPS && is_new)
                this->stamp_arrival(this->arrivals_ + __popc(news & ((1u << this->lane()) - 1)), now, now,
                                    ARRIVAL_SIGNAL, protocol::pack_imm(src, channel, before));
            if (STAMPS) this->arrivals_ += __popc(news);
            __syncwarp();
        }
        return found;
    }

    protocol::CounterWatch counter_; // what was read last: lane 0's
};

} // namespace efaprof::gpu
