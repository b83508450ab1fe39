// The proof that a layer is right, and the end of a step. The reference starts from the routes and values that follow
// from (seed, step, layer, rank, token); it looks at nothing that was sent.
#pragma once

#include "kernels.cuh"

namespace efaprof::gpu {

// The payload that a token must have on the wire, into `payload`, by a whole block.
__device__ inline void reference_payload(const protocol::Shape &shape, const TokenId &id, uint8_t *payload) {
    for (uint32_t group = threadIdx.x; group < protocol::group_count(shape); group += blockDim.x)
        protocol::reference_group(shape, id, group, payload);
    __syncthreads();
}

__device__ inline void report(const Kernel &k, uint32_t layer, FaultCode code, uint32_t a, uint32_t b,
                              uint32_t element = 0, float got = 0, float expected = 0) {
    Fault fault = {code};
    fault.a = a;
    fault.b = b;
    fault.element = element;
    fault.got = got;
    fault.expected = expected;
    set_fault(k, layer, fault);
}

// A token that came: bit for bit what its sender must have sent, and here for a reason, in the order of its sender.
__device__ inline void verify_arrived(const Kernel &k, uint32_t layer, uint32_t src, uint32_t at, uint8_t *expected) {
    const protocol::Shape &shape = k.setup.shape;
    if (at >= k.received[src]) return;
    const uint8_t *token = token_at(k, k.setup.heap.arrived, src * shape.tokens + at);
    uint32_t index = reinterpret_cast<const protocol::TokenHead *>(token)->token;
    TokenId id = id_of(k, layer, src, index);
    reference_payload(shape, id, expected);
    auto words = static_cast<uint32_t>(protocol::payload_bytes(shape) / sizeof(uint32_t));
    auto *got = reinterpret_cast<const uint32_t *>(token + sizeof(protocol::TokenHead));
    for (uint32_t word = threadIdx.x; word < words; word += blockDim.x)
        if (got[word] != reinterpret_cast<const uint32_t *>(expected)[word])
            report(k, layer, FaultCode::Payload, src, at, word * 4);
    if (threadIdx.x != 0) return;
    protocol::Route route;
    protocol::route_token(id, shape.topk, shape.experts, route);
    bool is_right = protocol::goes_to(route, shape.topk, shape.experts / shape.ranks, k.setup.rank);
    for (uint32_t choice = 0; choice < shape.topk; choice++) {
        protocol::TokenRoute sent = routes_of(k, token)[choice];
        is_right = is_right && sent.expert == route.expert[choice] &&
                   protocol::bits_of(sent.weight) == protocol::bits_of(protocol::route_weight(id, choice));
    }
    if (at > 0)
        is_right = is_right && reinterpret_cast<const protocol::TokenHead *>(
                                   token_at(k, k.setup.heap.arrived, src * shape.tokens + at - 1))
                                       ->token < index;
    if (!is_right) report(k, layer, FaultCode::Routes, src, at);
}

// An own token's result, within the tolerance of its type.
__device__ inline void verify_result(const Kernel &k, uint32_t layer, uint32_t token, uint8_t *payload) {
    const protocol::Shape &shape = k.setup.shape;
    TokenId id = id_of(k, layer, k.setup.rank, token);
    __shared__ protocol::Route route;
    __shared__ float weights[protocol::MAX_TOPK];
    if (threadIdx.x == 0) protocol::route_token(id, shape.topk, shape.experts, route);
    for (uint32_t choice = threadIdx.x; choice < shape.topk; choice += blockDim.x)
        weights[choice] = protocol::route_weight(id, choice);
    reference_payload(shape, id, payload);
    auto *results = reinterpret_cast<const uint16_t *>(k.results) + size_t{token} * shape.hidden;
    for (uint32_t element = threadIdx.x; element < shape.hidden; element += blockDim.x) {
        protocol::Expected expected = protocol::expected_sum(shape, k.setup.seed, route, weights, element,
                                                             protocol::payload_value(shape, payload, element));
        float got = protocol::bf16_value(results[element]);
        if (!(fabs(got - expected.value) <= expected.tolerance)) // true of what is no number, too
            report(k, layer, FaultCode::Result, token, 0, element, got, static_cast<float>(expected.value));
        if (layer + 1 == k.setup.layers && token == k.state->step % shape.tokens) k.sample[element] = results[element];
    }
    if (threadIdx.x == 0) atomicAdd(reinterpret_cast<unsigned long long *>(&k.state->verified), 1ull);
}

// As many tokens came from `src` as its routes say, and as many choices of each expert as it announced.
__device__ inline void verify_counts(const Kernel &k, uint32_t layer, uint32_t src) {
    const protocol::Shape &shape = k.setup.shape;
    __shared__ uint32_t counts[MOST_LOCAL_EXPERTS], tokens;
    uint32_t per_rank = shape.experts / shape.ranks;
    for (uint32_t expert = threadIdx.x; expert < per_rank; expert += blockDim.x)
        counts[expert] = 0;
    if (threadIdx.x == 0) tokens = 0;
    __syncthreads();
    for (uint32_t token = threadIdx.x; token < shape.tokens; token += blockDim.x) {
        protocol::Route route;
        protocol::route_token(id_of(k, layer, src, token), shape.topk, shape.experts, route);
        if (protocol::goes_to(route, shape.topk, per_rank, k.setup.rank)) atomicAdd(&tokens, 1u);
        for (uint32_t choice = 0; choice < shape.topk; choice++)
            if (route.expert[choice] / per_rank == k.setup.rank)
                atomicAdd(&counts[route.expert[choice] % per_rank], 1u);
    }
    __syncthreads();
    if (threadIdx.x == 0 && tokens != k.received[src]) report(k, layer, FaultCode::Counts, src, per_rank);
    if (src == k.setup.rank) return;
    auto *announced = reinterpret_cast<const uint32_t *>(
        heap_at(k, k.setup.heap.notified + uint64_t{src} * k.setup.heap.notice_units) + sizeof(protocol::Notice));
    for (uint32_t expert = threadIdx.x; expert < per_rank; expert += blockDim.x)
        if (announced[expert] != counts[expert]) report(k, layer, FaultCode::Counts, src, expert);
}

// A block for each token that may have come, each own token, each source. Shared memory holds one payload.
template <bool STAMPS> __global__ void verify(const __grid_constant__ Kernel k, uint32_t layer) {
    extern __shared__ uint4 payload[];
    if (has_fault(k)) return;
    note_begin(k);
    uint32_t tokens = k.setup.shape.tokens, arrived = k.setup.shape.ranks * tokens;
    auto *bytes = reinterpret_cast<uint8_t *>(payload);
    if (blockIdx.x < arrived)
        verify_arrived(k, layer, blockIdx.x / tokens, blockIdx.x % tokens, bytes);
    else if (blockIdx.x < arrived + tokens)
        verify_result(k, layer, blockIdx.x - arrived, bytes);
    else
        verify_counts(k, layer, blockIdx.x - arrived - tokens);
    note_end<STAMPS>(k, STAMP_VERIFY_BEGIN, STAMP_VERIFY_END, 0);
}

// One thread. Runs after a fault too: the host waits for it.
__global__ void end_step(const __grid_constant__ Kernel k) {
    State &state = *k.state;
    StepDone &done = *k.done;
    done.head = state.head;
    done.stamps = state.stamps;
    done.puts = state.puts;
    done.notifies = state.notifies;
    done.signals = state.signals;
    done.barriers = state.barriers;
    done.verified = state.verified;
    if (k.post != nullptr) {
        done.ended = k.post->ended;
        done.arrivals = k.post->arrivals;
    }
    done.fault = state.fault;
    state.step++;
    protocol::store_release(&done.steps, done.steps + 1);
}

// ---- the clocks

// In pinned memory; each word on a line of its own.
struct ClockWords {
    alignas(64) uint64_t ping;
    alignas(64) uint64_t pong;
    alignas(64) uint64_t count; // trips that the kernel made
};

// `trips` round trips between the clocks. One thread.
__global__ void exchange_clocks(ClockWords *words, Trip *made, uint32_t trips, uint64_t timeout_ns) {
    uint64_t first = words->ping, begin = now_ns();
    for (uint32_t trip = 0; trip < trips; trip++) {
        uint64_t number = first + trip + 1, sent = now_ns(), back = sent;
        protocol::store_relaxed(&words->ping, number);
        while (protocol::load_acquire(&words->pong) != number) {
            back = now_ns();
            if (back - begin > timeout_ns) return;
        }
        back = now_ns();
        made[trip].sent = sent;
        made[trip].back = back;
        protocol::store_release(&words->count, trip + 1u);
    }
}

} // namespace efaprof::gpu
