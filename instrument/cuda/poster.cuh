// The carrier of a kernel that posts by itself: it writes work queue entries, rings the doorbell and reads the
// completion queue; no ring, no proxy, no host thread. What a call waits for it looks for itself: nobody else does.
//
// A warp writes an entry a lane and rings once for the group. Order of memory: every lane's entry, and the payload and
// signal bodies that it saw or wrote, come before the warp's fence for the whole system, and that before the doorbell's
// store; the device's entries are read with acquire, so what it wrote before them is seen after them.
#pragma once

#include "carrier.cuh"

namespace efaprof::gpu {

template <bool STAMPS> class PostingCarrier {
public:
    __device__ PostingCarrier(const Kernel &k, uint32_t layer)
        : k_(k), p_(k.setup.posting), layer_(layer), head_(k.state->head), cq_(k.post->completions),
          prefix_(k.post->prefix), arrivals_(k.post->arrivals) {}

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
                    [&] { return cq_.completed == head_; });
    }
    __device__ uint64_t head() const { return head_; }

    __device__ void save() {
        if (lane() != 0) return;
        k_.state->head = head_;
        k_.post->completions.read = cq_.read;
        k_.post->completions.completed = cq_.completed;
        k_.post->prefix = prefix_;
        k_.post->arrivals = arrivals_;
    }

private:
    enum class Look { Nothing, Found, Failed };
    struct Times {
        uint64_t enter, ordered, slot, space, built, turn, fenced, rung;
    };

    __device__ static uint32_t lane() { return threadIdx.x % WARP; }
    template <typename Word> __device__ static Word load_volatile(const Word *word) {
        return *static_cast<const volatile Word *>(word);
    }
    // The same in every lane.
    __device__ static uint64_t time() {
        if constexpr (STAMPS) return __shfl_sync(ALL_LANES, now_ns(), 0);
        return 0;
    }
    __device__ static uint32_t first_zero(uint32_t bits) {
        return bits == ALL_LANES ? WARP : static_cast<uint32_t>(__ffs(static_cast<int>(~bits))) - 1;
    }

    // Looks for what came until `is_ready` holds in every lane; the looks until then, or GAVE_UP.
    template <typename IsReady> __device__ uint32_t wait(Patience patience, IsReady is_ready) {
        for (;;) {
            bool is_mine = is_ready();
            if (__all_sync(ALL_LANES, is_mine)) break;
            if (look() == Look::Failed) return GAVE_UP;
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
                 [&] { return protocol::has_space(p_.send, place + count - 1, cq_.completed); }) == GAVE_UP)
            return false;
        times.space = time();
        bool is_mine = lane() >= begin && lane() < end;
        uint64_t in_flight = head_ - cq_.completed;
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
        return wait(Patience(k_, layer_, WaitFor::Order, peer, 0),
                    [&] { return load_volatile(&k_.ended[peer]) == load_volatile(&k_.posted[peer]); }) != GAVE_UP;
    }

    // A request number is free again once everything up to its last use has ended.
    __device__ bool wait_requests(uint32_t count) {
        return wait(Patience(k_, layer_, WaitFor::Requests, k_.setup.rank, 0), [&] {
                   if (head_ + count - prefix_ > p_.window) move_prefix();
                   return head_ + count - prefix_ <= p_.window;
               }) != GAVE_UP;
    }
    __device__ void move_prefix() {
        for (uint32_t run = WARP; run == WARP; prefix_ += run) {
            uint64_t number = prefix_ + lane();
            run = first_zero(__ballot_sync(ALL_LANES, number < head_ && load_volatile(flying(number)) == 0));
        }
    }

    __device__ uint32_t *flying(uint64_t number) const { return &k_.flying[number & (p_.window - 1)]; }

    __device__ void write(const Command &command, uint64_t number, uint64_t place) const {
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
        *static_cast<volatile uint32_t *>(flying(number)) = command.peer + 1u;
        atomicAdd(&k_.posted[command.peer], 1u);
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

    // One look at the completion queue, an entry a lane: as many as are there without a gap.
    __device__ Look look() {
        protocol::CqWatch own = cq_;
        own.read += lane();
        protocol::Completion found = {};
        bool is_new = lane() < cq_.count && protocol::read_completion(own, found);
        uint32_t count = first_zero(__ballot_sync(ALL_LANES, is_new));
        if (count == 0) return Look::Nothing;
        uint64_t now = time();
        bool is_ours = lane() < count, is_end = is_ours && found.queue == SOFTEFA_SQ;
        bool is_arrival = is_ours && found.queue == SOFTEFA_RQ;
        bool is_good = !is_ours || (check(found) && (!is_end || end_one(found, now)));
        cq_.read += count;
        cq_.completed += __popc(__ballot_sync(ALL_LANES, is_end));
        if (lane() == 0) protocol::tell_read(cq_);
        if (!__all_sync(ALL_LANES, is_good)) return Look::Failed;
        uint64_t body = is_arrival ? read_body(found.imm) : 0;
        for (uint32_t rest = __ballot_sync(ALL_LANES, is_arrival); rest != 0; rest &= rest - 1) {
            int from = __ffs(static_cast<int>(rest)) - 1;
            uint32_t imm = __shfl_sync(ALL_LANES, found.imm, from);
            uint64_t its_body = __shfl_sync(ALL_LANES, body, from);
            bool is_in_order = lane() != 0 || deliver(imm, its_body, now);
            if (!__all_sync(ALL_LANES, is_in_order)) return Look::Failed;
        }
        __syncwarp();
        return Look::Found;
    }

    __device__ bool fault(FaultCode code, uint32_t a, uint32_t b, uint32_t element) const {
        Fault fault = {code};
        fault.a = a;
        fault.b = b;
        fault.element = element;
        set_fault(k_, layer_, fault);
        return false;
    }

    // What the device wrote may be anything: it is believed only where it fits what was posted.
    __device__ bool check(const protocol::Completion &found) const {
        if (found.status != SOFTEFA_OK) return fault(FaultCode::Status, found.status, found.queue, found.req_id);
        if (found.qpn != p_.qpn) return fault(FaultCode::Completion, 0, found.qpn, found.req_id);
        if (found.queue == SOFTEFA_SQ) return true;
        if (found.queue != SOFTEFA_RQ || !found.has_imm)
            return fault(FaultCode::Completion, 1, found.queue, found.req_id);
        uint32_t src = protocol::imm_src(found.imm), channel = protocol::imm_channel(found.imm);
        return (src < k_.setup.shape.ranks && channel <= k_.setup.shape.channels) ||
               fault(FaultCode::Completion, 2, src, channel);
    }

    __device__ bool end_one(const protocol::Completion &found, uint64_t now) const {
        uint32_t peer = found.req_id < p_.window ? atomicExch(&k_.flying[found.req_id], 0u) : 0;
        if (peer == 0) return fault(FaultCode::Completion, 3, found.req_id, found.req_id);
        atomicAdd(&k_.ended[peer - 1], 1u);
        if (!STAMPS) return true;
        // The newest command below head_ with this request number.
        uint64_t number = head_ - 1 - ((head_ - 1 - found.req_id) & (p_.window - 1));
        protocol::store_relaxed(&k_.post_stamps[number & (p_.stamp_capacity - 1)].done, now);
        return true;
    }

    __device__ uint64_t read_body(uint32_t imm) const {
        uint64_t unit = k_.setup.heap.flags + word_of(k_, protocol::imm_src(imm), protocol::imm_channel(imm));
        return protocol::read_signal(
            *reinterpret_cast<const protocol::Signal *>(k_.setup.memory + unit * protocol::UNIT_BYTES));
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
            return fault(FaultCode::Sequence, src, channel, static_cast<uint32_t>(whole));
        bool is_signal = body == static_cast<uint64_t>(whole) + 1;
        seen[static_cast<uint64_t>(whole) % protocol::WINDOW] = now << 1 | (is_signal ? 1 : 0);
        for (bool is_held = false; protocol::hand_over(window, seq); is_held = true) {
            uint64_t one = seen[seq % protocol::WINDOW];
            if ((one & 1) != 0) k_.arrived[word]++;
            if (!STAMPS) continue;
            uint64_t end = now_ns(), late = end - (one >> 1);
            auto rest = static_cast<uint32_t>(late > ARRIVAL_NS ? ARRIVAL_NS : late);
            rest |= (is_held ? ARRIVAL_HELD : 0u) | ((one & 1) != 0 ? ARRIVAL_SIGNAL : 0u);
            auto *at = reinterpret_cast<uint64_t *>(&k_.arrival_stamps[arrivals_++ & (p_.stamp_capacity - 1)]);
            protocol::store_pair_relaxed(at, one >> 1, uint64_t{rest} << 32 | protocol::pack_imm(src, channel, seq));
        }
        return true;
    }

    const Kernel &k_;
    const Posting &p_;
    uint32_t layer_;
    uint64_t head_;
    protocol::CqWatch cq_;
    uint64_t prefix_;
    uint64_t arrivals_; // lane 0's
};

// Waits until everything has ended, for the host: between steps nobody looks. One warp.
template <bool STAMPS> __global__ void settle(const __grid_constant__ Kernel k) {
    if (!has_fault(k)) {
        PostingCarrier<STAMPS> carrier(k, 0);
        carrier.wait_completed();
        carrier.save();
    }
    __syncwarp();
    if (threadIdx.x != 0) return;
    k.done->ended = k.post->completions.completed;
    k.done->arrivals = k.post->arrivals;
    k.done->fault = k.state->fault;
}

} // namespace efaprof::gpu
