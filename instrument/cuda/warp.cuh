// The warp that issues a rank's commands and waits for its peers', over any carrier. All of it is called by the whole
// warp, with the same arguments in each lane.
#pragma once

#include "carrier.cuh"

namespace efaprof::gpu {

// Where a channel's commands to a peer continue on the wire: assigned from the layout, so that no lane waits for
// another's count.
__device__ inline uint32_t wire_flags(uint64_t wire_seq) {
    return static_cast<uint32_t>(wire_seq & 0xFFFF) << protocol::WIRE_SHIFT;
}

template <template <bool> class CarrierOf, bool STAMPS> class IssuingWarp {
public:
    __device__ IssuingWarp(const Kernel &k, uint32_t layer)
        : k_(k), s_(k.setup), layer_(layer), channels_(k.setup.shape.channels), ranks_(k.setup.shape.ranks),
          carrier_(k, layer), stamper_(k), phases_(k.state->phases), last_(k.state->last) {}

    __device__ uint32_t head() const { return static_cast<uint32_t>(carrier_.head()); }
    __device__ void stamp(StampKind kind, uint32_t value) {
        if (lane() == 0) stamper_.now(kind, value);
    }
    // Where each of several rings stands but the first, of which other stamps tell.
    __device__ void stamp_heads() {
        if constexpr (STAMPS && CarrierOf<STAMPS>::HAS_RINGS) {
            for (uint32_t ring = 1; ring < s_.proxies; ring++) {
                auto next = static_cast<uint32_t>(carrier_.ring_head(ring));
                if (lane() == 0) stamper_.stamp(STAMP_HEAD, next, 0, ring);
            }
        }
    }
    __device__ void stamp_at(StampKind kind, uint64_t time) {
        if (lane() == 0) stamper_.stamp(kind, head(), time, layer_);
    }

    // Tells every peer that this rank has come here, and waits until they all have: begins a phase, at `begin` (0: it
    // is not stamped). One that follows its like uses the same signal bodies: none may be on its way any more.
    __device__ bool barrier(uint32_t combine, uint64_t begin) {
        uint32_t first = head();
        if (last_ == combine + 1 && carrier_.wait_completed() == GAVE_UP) return false;
        last_ = combine + 1;
        phases_++;
        if (!signals(EFAPROF_BARRIER, channels_, channels_ + 1, combine, false)) return false;
        if (lane() == 0) {
            k_.state->barriers += ranks_ - 1;
            // Only now: what it needs of the state is still on its way when the first command goes out.
            if (begin != 0)
                stamper_.stamp(combine == 0 ? STAMP_DISPATCH_BEGIN : STAMP_COMBINE_BEGIN, first, begin, layer_);
        }
        return wait_signals(WaitFor::Barrier, channels_, channels_ + 1);
    }

    __device__ bool notices() {
        uint32_t notice_units = sizeof(protocol::Notice) / protocol::UNIT_BYTES;
        bool is_through = post(2 * (ranks_ - 1), [&](uint32_t i, Command &command) {
            uint32_t peer = peer_after(i / 2), half = i % 2;
            command.src_off =
                static_cast<uint32_t>(s_.heap.notices + uint64_t{peer} * s_.heap.notice_units + half * notice_units);
            command.dst_off = static_cast<uint32_t>(s_.heap.notified + uint64_t{s_.rank} * s_.heap.notice_units +
                                                    half * notice_units);
            command.bytes =
                half == 0 ? uint32_t{sizeof(protocol::Notice)} : s_.heap.experts_units * uint32_t{protocol::UNIT_BYTES};
            command.peer = static_cast<uint16_t>(peer);
            command.kind = EFAPROF_NOTIFY;
            command.channel = 0;
            command.flags = sequenced(peer, 0, half);
            return true;
        });
        if (lane() == 0) k_.state->notifies += 2 * (ranks_ - 1);
        if (s_.has_sequenced_puts) advance_each(0, 1, 2);
        return is_through;
    }

    // One put per token and rank that it goes to, as soon as the token lies in the heap.
    __device__ bool tokens() {
        uint32_t count = *k_.send_count, now = k_.state->epoch;
        auto bytes = static_cast<uint32_t>(protocol::token_bytes(s_.shape));
        bool is_through = post(count, [&](uint32_t i, Command &command) {
            uint32_t send = k_.sends[i], token = send >> 8, peer = send & 0xFF;
            uint32_t at = k_.slots[token * ranks_ + peer];
            uint32_t polls = wait_for(Patience(k_, layer_, WaitFor::Packed, s_.rank, token),
                                      [&] { return load_acquire_gpu(&k_.packed[token]) == now; });
            command.src_off = static_cast<uint32_t>(s_.heap.tokens + uint64_t{token} * s_.heap.token_units);
            command.dst_off = static_cast<uint32_t>(s_.heap.arrived +
                                                    (uint64_t{s_.rank} * s_.shape.tokens + at) * s_.heap.token_units);
            put(command, peer, at, bytes);
            return polls != GAVE_UP;
        });
        advance_puts(k_.sent);
        if (lane() == 0) k_.state->puts += count;
        return is_through;
    }

    // The sums of the tokens that came go back.
    __device__ bool sums() {
        uint32_t count = 0;
        for (uint32_t i = 0; i + 1 < ranks_; i++)
            count += k_.received[peer_after(i)];
        auto bytes = static_cast<uint32_t>(protocol::sum_bytes(s_.shape));
        bool is_through = post(count, [&](uint32_t i, Command &command) {
            uint32_t turn = 0, at = i;
            while (at >= k_.received[peer_after(turn)])
                at -= k_.received[peer_after(turn++)];
            uint32_t peer = peer_after(turn);
            command.src_off =
                static_cast<uint32_t>(s_.heap.sums + (uint64_t{peer} * s_.shape.tokens + at) * s_.heap.sum_units);
            command.dst_off = static_cast<uint32_t>(s_.heap.returned +
                                                    (uint64_t{s_.rank} * s_.shape.tokens + at) * s_.heap.sum_units);
            put(command, peer, at, bytes);
            return true;
        });
        advance_puts(k_.received);
        if (lane() == 0) k_.state->puts += count;
        return is_through;
    }

    // Closes every channel to every peer.
    __device__ bool tails(uint32_t combine) {
        if (!signals(EFAPROF_SIGNAL, 0, channels_, combine, true)) return false;
        if (lane() == 0) k_.state->signals += uint64_t{ranks_ - 1} * channels_;
        return true;
    }
    __device__ bool wait_tails() { return wait_signals(WaitFor::Tails, 0, channels_); }

    // Waits until everything pushed so far has completed.
    __device__ bool flush() {
        carrier_.announce();
        stamp_heads();
        stamp(STAMP_WAIT_BEGIN, head());
        uint32_t polls = carrier_.wait_completed();
        stamp(STAMP_WAIT_END, polls);
        return polls != GAVE_UP;
    }

    __device__ void save() {
        carrier_.save();
        if (lane() != 0) return;
        k_.state->phases = phases_;
        k_.state->last = last_;
        stamper_.save();
    }

private:
    // enum efaprof_cmd_kind, which device code cannot include
    static constexpr uint8_t EFAPROF_PUT = 1, EFAPROF_NOTIFY = 2, EFAPROF_SIGNAL = 3, EFAPROF_BARRIER = 4;

    __device__ static uint32_t lane() { return threadIdx.x % WARP; }
    __device__ uint32_t peer_after(uint32_t i) const { return gpu::peer_after(k_, i); }
    __device__ uint32_t word(uint32_t peer, uint32_t channel) const { return word_of(k_, peer, channel); }
    __device__ uint32_t sequenced(uint32_t peer, uint32_t channel, uint64_t ahead) const {
        if (!s_.has_sequenced_puts) return 0;
        return protocol::FLAG_IMM | wire_flags(k_.wire[word(peer, channel)] + ahead);
    }
    __device__ void put(Command &command, uint32_t peer, uint32_t at, uint32_t bytes) const {
        command.bytes = bytes;
        command.peer = static_cast<uint16_t>(peer);
        command.kind = EFAPROF_PUT;
        command.channel = static_cast<uint8_t>(at % channels_);
        command.flags = sequenced(peer, at % channels_, at / channels_);
    }

    // Posts `count` commands in order, a warp's width at a time, or one by one where each is to be delayed.
    template <typename Make> __device__ bool post(uint32_t count, Make make) {
        uint32_t most = s_.kernel_delay != 0 ? 1 : WARP;
        for (uint32_t first = 0; first < count; first += most) {
            uint32_t batch = count - first < most ? count - first : most;
            uint64_t entered = STAMPS || s_.kernel_delay != 0 ? now_ns() : 0;
            Command command = {};
            bool is_made = lane() >= batch || make(first + lane(), command);
            if (!__all_sync(ALL_LANES, is_made)) return false;
            if (s_.kernel_delay != 0) delay(entered + s_.kernel_delay);
            if (!carrier_.post(command, batch, entered)) return false;
        }
        __syncwarp();
        return true;
    }
    __device__ void delay(uint64_t due) const {
        while (now_ns() < due)
            __nanosleep(100);
        __syncwarp();
    }

    // A signal's source must stay as it is until the operation has completed. Each phase has bodies of its own, and
    // combine flushes in between: no body is written again before that.
    __device__ bool signals(uint8_t kind, uint32_t first, uint32_t end, uint32_t combine, bool is_tail) {
        uint32_t width = end - first, words = channels_ + 1;
        bool is_through = post((ranks_ - 1) * width, [&](uint32_t i, Command &command) {
            uint32_t peer = peer_after(i / width), channel = first + i % width, at = word(peer, channel);
            uint64_t source = s_.heap.signals + uint64_t{combine} * ranks_ * words + at, count = k_.wire[at] + 1;
            auto *body = reinterpret_cast<uint64_t *>(s_.memory + source * protocol::UNIT_BYTES);
            protocol::store_pair_relaxed(body, count, ~count);
            command.src_off = static_cast<uint32_t>(source);
            command.dst_off = static_cast<uint32_t>(s_.heap.flags + word(s_.rank, channel));
            command.bytes = sizeof(protocol::Signal);
            command.peer = static_cast<uint16_t>(peer);
            command.kind = kind;
            command.channel = static_cast<uint8_t>(channel);
            bool is_fenced =
                is_tail && (s_.fence == Fence::EveryTail ||
                            (s_.fence == Fence::FirstTail && protocol::is_first_of_ring(channel, s_.proxies)));
            command.flags = protocol::FLAG_SIGNAL | (s_.has_imm ? uint32_t{protocol::FLAG_IMM} : 0u) |
                            (is_fenced ? uint32_t{protocol::FLAG_FENCE} : 0u) | wire_flags(k_.wire[at]);
            return true;
        });
        advance_each(first, end, 1);
        carrier_.announce();
        return is_through;
    }

    __device__ void advance_each(uint32_t first, uint32_t end, uint64_t by) {
        __syncwarp();
        uint32_t width = end - first;
        for (uint32_t i = lane(); i < (ranks_ - 1) * width; i += WARP)
            k_.wire[word(peer_after(i / width), first + i % width)] += by;
        __syncwarp();
    }
    // By the puts of `counts[peer]` slots, which take the channels in turn.
    __device__ void advance_puts(const uint32_t *counts) {
        __syncwarp();
        for (uint32_t i = lane(); s_.has_sequenced_puts && i < (ranks_ - 1) * channels_; i += WARP) {
            uint32_t peer = peer_after(i / channels_), channel = i % channels_;
            k_.wire[word(peer, channel)] += (counts[peer] + channels_ - 1 - channel) / channels_;
        }
        __syncwarp();
    }

    __device__ bool wait_signals(WaitFor what, uint32_t first, uint32_t end) {
        stamp(STAMP_WAIT_BEGIN, head());
        uint32_t polls = carrier_.wait_arrived(what, first, end, phases_);
        stamp(STAMP_WAIT_END, polls);
        return polls != GAVE_UP;
    }

    const Kernel &k_;
    const Setup &s_;
    uint32_t layer_, channels_, ranks_;
    CarrierOf<STAMPS> carrier_;
    Stamper<STAMPS> stamper_;
    uint64_t phases_;
    uint32_t last_;
};

} // namespace efaprof::gpu
