// The kernels of one layer, in the order in which they run.
#pragma once

#include <cuda_fp8.h>

#include "warp.cuh"

namespace efaprof::gpu {

constexpr unsigned BLOCK = 256, LAYOUT_BLOCK = 1024;

// ---- fill: the tokens and routes that the model would give

template <bool STAMPS> __global__ void fill(const __grid_constant__ Kernel k, uint32_t layer) {
    if (has_fault(k)) return;
    note_begin(k);
    const protocol::Shape &shape = k.setup.shape;
    uint32_t token = blockIdx.x;
    TokenId id = id_of(k, layer, k.setup.rank, token);
    if (token == 0 && threadIdx.x == 0 && layer == 0)
        k.state->stamp_limit = protocol::load_acquire(k.stamps_read) + k.setup.stamp_capacity;
    if (threadIdx.x == 0) {
        protocol::Route route;
        protocol::route_token(id, shape.topk, shape.experts, route);
        for (uint32_t choice = 0; choice < shape.topk; choice++) {
            k.topk_expert[token * shape.topk + choice] = route.expert[choice];
            k.topk_weight[token * shape.topk + choice] = protocol::route_weight(id, choice);
        }
    }
    auto *x = reinterpret_cast<uint16_t *>(k.x) + size_t{token} * shape.hidden;
    for (uint32_t element = threadIdx.x; element < shape.hidden; element += blockDim.x)
        x[element] = protocol::token_element(id, element);
    if (token == 0 && threadIdx.x == 0) {
        uint64_t due = k.state->begin + k.setup.compute_ns;
        while (now_ns() < due)
            __nanosleep(200);
    }
    note_end<STAMPS>(k, STAMP_FILL_BEGIN, StampKind{}, layer);
}

// ---- layout: a slot at each rank that a token goes to, and the list of sends

// Sum of `value` over the threads before this one; `total` over all of them. One block of LAYOUT_BLOCK threads.
__device__ inline uint32_t scan(uint32_t value, uint32_t &total) {
    __shared__ uint32_t sums[LAYOUT_BLOCK / WARP];
    uint32_t lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, inclusive = value;
    for (unsigned by = 1; by < WARP; by *= 2) {
        uint32_t before = __shfl_up_sync(ALL_LANES, inclusive, by);
        if (lane >= by) inclusive += before;
    }
    if (lane == WARP - 1) sums[warp] = inclusive;
    __syncthreads();
    uint32_t before = 0, all = 0;
    for (uint32_t other = 0; other < LAYOUT_BLOCK / WARP; other++) {
        before += other < warp ? sums[other] : 0;
        all += sums[other];
    }
    __syncthreads();
    total = all;
    return before + inclusive - value;
}

__device__ inline bool goes_to(const Kernel &k, uint32_t token, uint32_t rank) {
    uint32_t per_rank = k.setup.shape.experts / k.setup.shape.ranks;
    for (uint32_t choice = 0; choice < k.setup.shape.topk; choice++)
        if (static_cast<uint32_t>(k.topk_expert[token * k.setup.shape.topk + choice]) / per_rank == rank) return true;
    return false;
}

__device__ inline void count_experts(const Kernel &k) {
    for (uint32_t expert = threadIdx.x; expert < k.setup.shape.experts; expert += blockDim.x)
        k.expert_counts[expert] = 0;
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < k.tokens * k.setup.shape.topk; i += blockDim.x)
        atomicAdd(&k.expert_counts[k.topk_expert[i]], 1u);
}

template <bool STAMPS> __global__ void layout(const __grid_constant__ Kernel k) {
    if (has_fault(k)) return;
    uint32_t ranks = k.setup.shape.ranks, tokens = k.tokens, sends = 0;
    for (uint32_t rank = threadIdx.x; rank < ranks; rank += blockDim.x)
        k.sent[rank] = 0;
    __syncthreads();
    for (uint32_t first = 0; first < tokens; first += LAYOUT_BLOCK) {
        uint32_t token = first + threadIdx.x, remote = 0, total = 0;
        for (uint32_t rank = 0; rank < ranks; rank++) {
            bool goes = token < tokens && goes_to(k, token, rank);
            uint32_t before = scan(goes ? 1 : 0, total);
            if (token < tokens) k.slots[token * ranks + rank] = goes ? k.sent[rank] + before : NO_SLOT;
            remote += goes && rank != k.setup.rank ? 1 : 0;
            __syncthreads();
            if (threadIdx.x == 0) k.sent[rank] += total;
            __syncthreads();
        }
        uint32_t at = sends + scan(remote, total);
        sends += total;
        for (uint32_t i = 1; token < tokens && i < ranks; i++) {
            uint32_t peer = (k.setup.rank + i) % ranks;
            if (k.slots[token * ranks + peer] != NO_SLOT) k.sends[at++] = token << 8 | peer;
        }
    }
    if (threadIdx.x == 0) {
        *k.send_count = sends;
        k.state->epoch++;
    }
    count_experts(k);
    note_end<STAMPS>(k, StampKind{}, STAMP_LAYOUT_END, 0);
}

// ---- dispatch

__device__ inline uint8_t *heap_at(const Kernel &k, uint64_t units) {
    return k.setup.memory + units * protocol::UNIT_BYTES;
}
__device__ inline uint8_t *token_at(const Kernel &k, uint64_t region, uint32_t index) {
    return heap_at(k, region + uint64_t{index} * k.setup.heap.token_units);
}
__device__ inline uint8_t *sum_at(const Kernel &k, uint64_t region, uint32_t index) {
    return heap_at(k, region + uint64_t{index} * k.setup.heap.sum_units);
}

// Elements in bfloat16 as they are, by a whole block.
__device__ inline void pack_bf16(const Kernel &k, uint32_t token, uint8_t *const *copies, uint32_t count) {
    uint32_t vectors = k.setup.shape.hidden / 8;
    auto *x = reinterpret_cast<const uint4 *>(k.x + size_t{token} * k.setup.shape.hidden);
    for (uint32_t i = threadIdx.x; i < vectors; i += blockDim.x) {
        uint4 value = x[i];
        for (uint32_t copy = 0; copy < count; copy++)
            reinterpret_cast<uint4 *>(copies[copy])[i] = value;
    }
}

// Elements in fp8 with a scale for each group, a warp a group.
__device__ inline void pack_fp8(const Kernel &k, uint32_t token, uint8_t *const *copies, uint32_t count) {
    uint32_t hidden = k.setup.shape.hidden, lane = threadIdx.x % WARP;
    const __nv_bfloat16 *x = k.x + size_t{token} * hidden;
    for (uint32_t group = threadIdx.x / WARP; group < hidden / protocol::FP8_GROUP; group += blockDim.x / WARP) {
        uint32_t first = group * protocol::FP8_GROUP + lane * 4;
        float values[4], largest = 0;
        for (int i = 0; i < 4; i++) {
            values[i] = __bfloat162float(x[first + i]);
            largest = fmaxf(largest, fabsf(values[i]));
        }
        for (unsigned by = WARP / 2; by != 0; by /= 2)
            largest = fmaxf(largest, __shfl_xor_sync(ALL_LANES, largest, by));
        protocol::Fp8Scale scale = protocol::fp8_scale(largest);
        uint32_t codes = 0;
        for (int i = 0; i < 4; i++)
            codes |= uint32_t{__nv_cvt_float_to_fp8(values[i] * scale.inverse, __NV_SATFINITE, __NV_E4M3)} << 8 * i;
        for (uint32_t copy = 0; copy < count; copy++) {
            *reinterpret_cast<uint32_t *>(copies[copy] + first) = codes;
            if (lane == 0) reinterpret_cast<float *>(copies[copy] + hidden)[group] = scale.stored;
        }
    }
}

//   head │ payload │ topk × (expert, weight)      to the heap's own place, and where this rank's experts look
__device__ inline void pack_token(const Kernel &k, uint32_t layer, uint32_t token) {
    const protocol::Shape &shape = k.setup.shape;
    uint32_t own = k.slots[token * shape.ranks + k.setup.rank], count = 1;
    uint8_t *copies[2] = {token_at(k, k.setup.heap.tokens, token), nullptr};
    if (own != NO_SLOT) copies[count++] = token_at(k, k.setup.heap.arrived, k.setup.rank * shape.tokens + own);
    protocol::TokenHead head = {k.state->step, static_cast<uint16_t>(layer), static_cast<uint16_t>(k.setup.rank), token,
                                0};
    head.check = protocol::head_check(head);
    uint64_t payload_bytes = protocol::payload_bytes(shape);
    for (uint32_t copy = 0; copy < count; copy++) {
        uint8_t *bytes = copies[copy];
        if (threadIdx.x == 0) *reinterpret_cast<protocol::TokenHead *>(bytes) = head;
        auto *routes = reinterpret_cast<protocol::TokenRoute *>(bytes + sizeof head + payload_bytes);
        for (uint32_t choice = threadIdx.x; choice < shape.topk; choice += blockDim.x)
            routes[choice] = {static_cast<uint32_t>(k.topk_expert[token * shape.topk + choice]),
                              k.topk_weight[token * shape.topk + choice]};
        copies[copy] += sizeof head;
    }
    if (shape.element_bytes == 1)
        pack_fp8(k, token, copies, count);
    else
        pack_bf16(k, token, copies, count);
    __syncthreads();
    if (k.state->step == k.setup.corrupt_step && layer == 0 && token == 0 && threadIdx.x == 0) copies[0][2] ^= 0x40;
    __syncthreads();
    if (threadIdx.x != 0) return;
    __threadfence_system();
    store_release_gpu(&k.packed[token], k.state->epoch);
}

__device__ inline void write_notices(const Kernel &k, uint32_t layer) {
    const protocol::Shape &shape = k.setup.shape;
    uint32_t per_rank = shape.experts / shape.ranks;
    for (uint32_t i = 1; i < shape.ranks; i++) {
        uint32_t peer = (k.setup.rank + i) % shape.ranks;
        uint8_t *bytes = heap_at(k, k.setup.heap.notices + uint64_t{peer} * k.setup.heap.notice_units);
        if (threadIdx.x == 0)
            *reinterpret_cast<protocol::Notice *>(bytes) = {
                k.state->step, static_cast<uint16_t>(layer), static_cast<uint16_t>(k.setup.rank), k.sent[peer], {}};
        auto *counts = reinterpret_cast<uint32_t *>(bytes + sizeof(protocol::Notice));
        for (uint32_t expert = threadIdx.x; expert < per_rank; expert += blockDim.x)
            counts[expert] = k.expert_counts[peer * per_rank + expert];
    }
}

// Keeps a layer's times whether stamps are on or not: what the cost of stamps is measured by.
__device__ inline void note_span(const Kernel &k, uint32_t layer, uint32_t combine, uint64_t begin, uint64_t end) {
    if (threadIdx.x == 0 && k.spans != nullptr) k.spans[layer * 2 + combine] = {begin, end};
}

// Block 0 issues and waits; the others write tokens to the heap, and wait for nobody.
template <template <bool> class CarrierOf, bool STAMPS>
__global__ void dispatch(const __grid_constant__ Kernel k, uint32_t layer) {
    uint64_t begin = now_ns();
    if (has_fault(k)) return;
    if (blockIdx.x != 0) {
        for (uint32_t token = blockIdx.x - 1; token < k.tokens; token += gridDim.x - 1)
            pack_token(k, layer, token);
        return;
    }
    write_notices(k, layer);
    __syncthreads();
    if (threadIdx.x >= WARP) return;
    IssuingWarp<CarrierOf, STAMPS> warp(k, layer);
    if (warp.barrier(0, begin) && warp.notices() && warp.tokens() && warp.tails(0)) warp.wait_tails();
    uint64_t end = now_ns();
    warp.stamp_heads();
    warp.stamp_at(STAMP_DISPATCH_END, end);
    warp.save();
    note_span(k, layer, 0, begin, end);
}

// ---- experts: the weighted sum of this rank's experts over every token that came

__device__ inline const protocol::TokenRoute *routes_of(const Kernel &k, const uint8_t *token) {
    return reinterpret_cast<const protocol::TokenRoute *>(token + sizeof(protocol::TokenHead) +
                                                          protocol::payload_bytes(k.setup.shape));
}

// How many tokens came from `src`; a notice that does not belong to this layer is a fault. One thread.
__device__ inline uint32_t read_notice(const Kernel &k, uint32_t layer, uint32_t src) {
    if (src == k.setup.rank) return k.sent[src];
    auto *notice = reinterpret_cast<const protocol::Notice *>(
        heap_at(k, k.setup.heap.notified + uint64_t{src} * k.setup.heap.notice_units));
    if (notice->step == k.state->step && notice->layer == layer && notice->src == src &&
        notice->tokens <= k.setup.shape.tokens)
        return notice->tokens;
    Fault fault = {FaultCode::Notice};
    fault.a = src;
    set_fault(k, layer, fault);
    return 0;
}

__device__ inline bool check_head(const Kernel &k, uint32_t layer, uint32_t src, uint32_t at,
                                  const protocol::TokenHead &head) {
    if (head.step == k.state->step && head.layer == layer && head.src == src && head.token < k.setup.shape.tokens &&
        head.check == protocol::head_check(head))
        return true;
    Fault fault = {FaultCode::Head};
    fault.a = src;
    fault.b = at;
    set_fault(k, layer, fault);
    return false;
}

// Eight elements, 16 bytes aligned.
__device__ inline void load_bf16(const void *at, float *values) {
    uint4 words = *static_cast<const uint4 *>(at);
    const uint32_t parts[4] = {words.x, words.y, words.z, words.w};
    for (int i = 0; i < 4; i++) {
        values[2 * i] = protocol::float_of(parts[i] << 16);
        values[2 * i + 1] = protocol::float_of(parts[i] & 0xFFFF0000u);
    }
}

// Eight elements from `element` on of a payload, as the experts see them.
__device__ inline void load_values(const protocol::Shape &shape, const uint8_t *payload, uint32_t element,
                                   float *values) {
    if (shape.element_bytes != 1) return load_bf16(payload + element * 2, values);
    uint2 words = *reinterpret_cast<const uint2 *>(payload + element);
    float scale = reinterpret_cast<const float *>(payload + shape.hidden)[element / protocol::FP8_GROUP];
    for (int i = 0; i < 8; i++)
        values[i] = protocol::fp8_value(static_cast<uint8_t>((i < 4 ? words.x : words.y) >> 8 * (i % 4))) * scale;
}

__device__ inline void store_bf16(void *at, const float *values) {
    uint32_t parts[4];
    for (int i = 0; i < 4; i++)
        parts[i] = uint32_t{__bfloat16_as_ushort(__float2bfloat16_rn(values[2 * i + 1]))} << 16 |
                   __bfloat16_as_ushort(__float2bfloat16_rn(values[2 * i]));
    *static_cast<uint4 *>(at) = make_uint4(parts[0], parts[1], parts[2], parts[3]);
}

struct LocalExpert {
    float weight, scale, shift;
};

template <bool STAMPS> __global__ void experts(const __grid_constant__ Kernel k, uint32_t layer) {
    if (has_fault(k)) return;
    note_begin(k);
    const protocol::Shape &shape = k.setup.shape;
    __shared__ LocalExpert local[protocol::MAX_TOPK];
    __shared__ uint32_t local_count;
    uint32_t src = blockIdx.x / shape.tokens, at = blockIdx.x % shape.tokens, per_rank = shape.experts / shape.ranks;
    const uint8_t *token = token_at(k, k.setup.heap.arrived, src * shape.tokens + at);
    if (threadIdx.x == 0) {
        uint32_t received = read_notice(k, layer, src), found = 0;
        if (at == 0) k.received[src] = received;
        bool is_here =
            at < received && check_head(k, layer, src, at, *reinterpret_cast<const protocol::TokenHead *>(token));
        for (uint32_t choice = 0; is_here && choice < shape.topk; choice++) {
            protocol::TokenRoute route = routes_of(k, token)[choice];
            if (route.expert / per_rank != k.setup.rank) continue;
            protocol::Expert expert = protocol::expert_of(k.setup.seed, route.expert);
            local[found++] = {route.weight, static_cast<float>(expert.scale), static_cast<float>(expert.shift)};
        }
        local_count = found;
    }
    __syncthreads();
    uint8_t *sum = sum_at(k, k.setup.heap.sums, src * shape.tokens + at);
    for (uint32_t first = threadIdx.x * 8; local_count != 0 && first < shape.hidden; first += blockDim.x * 8) {
        float values[8], sums[8] = {};
        load_values(shape, token + sizeof(protocol::TokenHead), first, values);
        for (uint32_t e = 0; e < local_count; e++)
            for (int i = 0; i < 8; i++)
                sums[i] += local[e].weight * (local[e].scale * values[i] + local[e].shift + static_cast<float>(i));
        store_bf16(sum + first * 2, sums);
    }
    note_end<STAMPS>(k, STAMP_EXPERTS_BEGIN, STAMP_EXPERTS_END, 0);
}

// ---- combine, and the sum of what came back

template <template <bool> class CarrierOf, bool STAMPS>
__global__ void combine(const __grid_constant__ Kernel k, uint32_t layer) {
    uint64_t begin = now_ns();
    if (has_fault(k)) return;
    IssuingWarp<CarrierOf, STAMPS> warp(k, layer);
    if (warp.barrier(1, begin) && warp.sums() && warp.flush() && warp.tails(1)) warp.wait_tails();
    uint64_t end = now_ns();
    warp.stamp_heads();
    warp.stamp_at(STAMP_COMBINE_END, end);
    warp.save();
    note_span(k, layer, 1, begin, end);
}

template <bool STAMPS> __global__ void reduce(const __grid_constant__ Kernel k) {
    if (has_fault(k)) return;
    note_begin(k);
    const protocol::Shape &shape = k.setup.shape;
    uint32_t token = blockIdx.x;
    for (uint32_t first = threadIdx.x * 8; first < shape.hidden; first += blockDim.x * 8) {
        float sums[8] = {};
        for (uint32_t rank = 0; rank < shape.ranks; rank++) {
            uint32_t at = k.slots[token * shape.ranks + rank];
            if (at == NO_SLOT) continue;
            uint64_t region = rank == k.setup.rank ? k.setup.heap.sums : k.setup.heap.returned;
            uint4 words = *reinterpret_cast<const uint4 *>(sum_at(k, region, rank * shape.tokens + at) + first * 2);
            const uint32_t parts[4] = {words.x, words.y, words.z, words.w};
            for (int i = 0; i < 4; i++) {
                sums[2 * i] += protocol::float_of(parts[i] << 16);
                sums[2 * i + 1] += protocol::float_of(parts[i] & 0xFFFF0000u);
            }
        }
        store_bf16(k.results + size_t{token} * shape.hidden + first, sums);
    }
    note_end<STAMPS>(k, STAMP_REDUCE_BEGIN, STAMP_REDUCE_END, 0);
}

} // namespace efaprof::gpu
