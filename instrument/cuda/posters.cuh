// Several warps that post to one queue pair, and one that reads its completions: the turn of doorbells under load.
#pragma once

#include "../protocol/post_check.h"
#include "device.cuh"

namespace efaprof::gpu {

// In device memory; of one run.
struct PostBench {
    protocol::PostPlan plan;
    protocol::SendQueue send;
    protocol::CqWatch completions;
    uint64_t *words;    // of the memory, as a kernel sees it
    uint32_t *arrivals; // [entries] places, in the order in which they arrived
    uint16_t *ends;     // [entries] requests, in the order in which they ended
    uint64_t ended;     // told to the posters
    uint64_t timeout_ns;
    protocol::PostsSeen seen;
    uint32_t has_given_up;
};

class BenchWarp {
public:
    __device__ explicit BenchWarp(PostBench &bench) : b_(bench), plan_(bench.plan), due_(now_ns() + bench.timeout_ns) {}

    __device__ void post(uint32_t poster) {
        uint64_t missed = 0;
        for (uint64_t turn = 0; post_group(poster, turn, missed); turn++) {
        }
        if (lane() == 0) protocol::fetch_add(&b_.seen.turns_missed, missed);
    }

    // An entry a lane, as many as are there without a gap, until all have ended and arrived.
    __device__ void read() {
        uint64_t begin = now_ns(), arrivals = 0, ends = 0;
        protocol::CqWatch cq = b_.completions;
        bool is_well = true;
        while (is_well && (arrivals < plan_.entries || ends < plan_.entries))
            is_well = look(cq, arrivals, ends) || goes_on(true);
        if (lane() != 0) return;
        b_.seen.arrivals = arrivals;
        b_.seen.ends = ends;
        b_.seen.ns = now_ns() - begin;
    }

private:
    __device__ static uint32_t lane() { return threadIdx.x % WARP; }

    template <typename Word> __device__ static Word volatile_of(const Word *word) {
        return *static_cast<const volatile Word *>(word);
    }
    // False in every lane once one warp has waited too long.
    __device__ bool goes_on(bool is_well) {
        bool is_over = !is_well || now_ns() > due_ || volatile_of(&b_.has_given_up) != 0;
        if (__ballot_sync(ALL_LANES, is_over) == 0) return true;
        if (lane() == 0) *static_cast<volatile uint32_t *>(&b_.has_given_up) = 1;
        return false;
    }
    template <typename IsReady> __device__ bool wait(IsReady is_ready, uint64_t &looks) {
        for (; !__all_sync(ALL_LANES, is_ready()); looks++)
            if (!goes_on(true)) return false;
        return true;
    }
    __device__ void pause(uint32_t poster, uint64_t turn, protocol::PostStage after) {
        uint64_t due = now_ns() + protocol::post_pause(plan_, poster, turn, after);
        while (!__all_sync(ALL_LANES, now_ns() >= due)) {
        }
    }

    // False: there is nothing left to post, or somebody gave up.
    __device__ bool post_group(uint32_t poster, uint64_t turn, uint64_t &missed) {
        uint32_t count = protocol::post_count(plan_, poster, turn);
        uint64_t place = 0, looks = 0;
        if (lane() == 0) place = protocol::reserve(b_.send, count);
        place = __shfl_sync(ALL_LANES, place, 0);
        if (place >= plan_.entries) return false;
        if (plan_.entries - place < count) count = static_cast<uint32_t>(plan_.entries - place);
        pause(poster, turn, protocol::PostStage::Reserved);
        if (!wait([&] { return protocol::has_space(b_.send, place + count - 1, volatile_of(&b_.ended)); }, looks))
            return false;
        if (lane() < count) {
            protocol::store_relaxed(&b_.words[place + lane()], protocol::post_word(plan_, place + lane()));
            protocol::write_entry(b_.send, place + lane(), protocol::post_entry(plan_, place + lane()));
        }
        __syncwarp();
        pause(poster, turn, protocol::PostStage::Written);
        if (!wait([&] { return protocol::is_turn(b_.send, place); }, missed)) return false;
        protocol::fence_system();
        __syncwarp();
        pause(poster, turn, protocol::PostStage::Fenced);
        if (lane() == 0) {
            protocol::ring_doorbell(b_.send, place + count);
            protocol::fetch_add(&b_.seen.doorbells, 1);
        }
        __syncwarp();
        return true;
    }

    // False: nothing came, or an error did.
    __device__ bool look(protocol::CqWatch &cq, uint64_t &arrivals, uint64_t &ends) {
        protocol::CqWatch own = cq;
        own.read += lane();
        protocol::Completion found = {};
        bool is_new = lane() < cq.count && protocol::read_completion(own, found);
        uint32_t fresh = __ballot_sync(ALL_LANES, is_new), before = (1u << lane()) - 1;
        uint32_t count = fresh == ALL_LANES ? WARP : static_cast<uint32_t>(__ffs(static_cast<int>(~fresh))) - 1;
        if (count == 0) return false;
        bool is_ours = lane() < count, is_end = is_ours && found.queue == SOFTEFA_SQ;
        uint32_t all_ends = __ballot_sync(ALL_LANES, is_end), rest = __ballot_sync(ALL_LANES, is_ours && !is_end);
        uint64_t end = ends + __popc(all_ends & before), arrival = arrivals + __popc(rest & before);
        if (is_end && end < plan_.entries) b_.ends[end] = found.req_id;
        if (is_ours && !is_end && arrival < plan_.entries) b_.arrivals[arrival] = found.imm;
        if (is_ours && found.status != SOFTEFA_OK) *static_cast<volatile uint32_t *>(&b_.seen.status) = found.status;
        bool is_good = __all_sync(ALL_LANES, !is_ours || found.status == SOFTEFA_OK);
        ends += __popc(all_ends);
        arrivals += __popc(rest);
        cq.read += count;
        if (lane() == 0) protocol::tell_read(cq);
        if (lane() == 0) *static_cast<volatile uint64_t *>(&b_.ended) = ends;
        __syncwarp();
        return goes_on(is_good) && is_good;
    }

    PostBench &b_;
    const protocol::PostPlan &plan_;
    uint64_t due_;
};

// One block: its first warp reads, the others post.
__global__ void post_from_warps(PostBench *bench) {
    BenchWarp warp(*bench);
    uint32_t number = threadIdx.x / WARP;
    if (number == 0)
        warp.read();
    else
        warp.post(number - 1);
}

} // namespace efaprof::gpu
