// Kernels for a model of somebody else's: its tokens, routes and answers instead of made ones. All of a step can be
// captured into a CUDA graph: what changes from step to step lies in device memory.
#pragma once

#include "kernels.cuh"

namespace efaprof::gpu {

// What a dispatch gives; rows of source rank r from r·tokens on.
struct ReceivedRows {
    __nv_bfloat16 *x; // [row][element]; what travelled as fp8 is multiplied by its scale
    int32_t *experts; // [row][choice] number among this rank's own, −1: of another rank, or the row is empty
    float *weights;   // [row][choice]
    int32_t *counts;  // [source]
};

template <bool STAMPS> __global__ void open_step(const __grid_constant__ Kernel k, uint32_t step, uint32_t kind) {
    k.state->step = step;
    k.state->stamp_limit = protocol::load_acquire(k.stamps_read) + k.setup.stamp_capacity;
    Stamper<STAMPS> stamper(k);
    stamper.stamp(STAMP_STEP_BEGIN, step, now_ns(), kind);
    stamper.save();
}

template <bool STAMPS> __global__ void close_step(const __grid_constant__ Kernel k) {
    Stamper<STAMPS> stamper(k);
    stamper.now(STAMP_STEP_END, 0);
    stamper.save();
}

// The model's routes as the other kernels read them. An expert that does not exist is a fault: nothing is sent.
__global__ void take_routes(const __grid_constant__ Kernel k, uint32_t layer, const int64_t *experts,
                            const float *weights) {
    if (has_fault(k)) return;
    uint32_t i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= k.tokens * k.setup.shape.topk) return;
    if (experts[i] < 0 || experts[i] >= k.setup.shape.experts) {
        Fault fault = {FaultCode::Expert};
        fault.a = i / k.setup.shape.topk;
        fault.b = i % k.setup.shape.topk;
        set_fault(k, layer, fault);
        return;
    }
    k.topk_expert[i] = static_cast<int32_t>(experts[i]);
    k.topk_weight[i] = weights[i];
}

// A block for each row: what came to where the model wants it.
template <bool STAMPS> __global__ void gather(const __grid_constant__ Kernel k, uint32_t layer, ReceivedRows rows) {
    if (has_fault(k)) return;
    const protocol::Shape &shape = k.setup.shape;
    __shared__ bool is_full;
    uint32_t row = blockIdx.x, src = row / shape.tokens, at = row % shape.tokens;
    const uint8_t *token = token_at(k, k.setup.heap.arrived, row);
    if (threadIdx.x == 0) {
        uint32_t received = read_notice(k, layer, src);
        if (at == 0) {
            k.received[src] = received;
            rows.counts[src] = static_cast<int32_t>(received);
        }
        is_full = at < received && check_head(k, layer, src, at, *reinterpret_cast<const protocol::TokenHead *>(token));
    }
    __syncthreads();
    uint32_t per_rank = shape.experts / shape.ranks;
    for (uint32_t choice = threadIdx.x; choice < shape.topk; choice += blockDim.x) {
        protocol::TokenRoute route = is_full ? routes_of(k, token)[choice] : protocol::TokenRoute{};
        bool is_here = is_full && route.expert / per_rank == k.setup.rank;
        rows.experts[row * shape.topk + choice] = is_here ? static_cast<int32_t>(route.expert % per_rank) : -1;
        rows.weights[row * shape.topk + choice] = is_here ? route.weight : 0.0f;
    }
    const uint8_t *payload = token + sizeof(protocol::TokenHead);
    __nv_bfloat16 *to = rows.x + size_t{row} * shape.hidden;
    for (uint32_t first = threadIdx.x * 8; is_full && first < shape.hidden; first += blockDim.x * 8) {
        if (shape.element_bytes != 1) {
            *reinterpret_cast<uint4 *>(to + first) = *reinterpret_cast<const uint4 *>(payload + first * 2);
            continue;
        }
        float values[8];
        load_values(shape, payload, first, values);
        store_bf16(to + first, values);
    }
}

// A block for each row: the answers of this rank's experts, weighted and added up in order of choices.
__global__ void add_up(const __grid_constant__ Kernel k, const __nv_bfloat16 *answers) {
    if (has_fault(k)) return;
    const protocol::Shape &shape = k.setup.shape;
    uint32_t row = blockIdx.x, per_rank = shape.experts / shape.ranks;
    if (row % shape.tokens >= k.received[row / shape.tokens]) return;
    const protocol::TokenRoute *routes = routes_of(k, token_at(k, k.setup.heap.arrived, row));
    uint8_t *sum = sum_at(k, k.setup.heap.sums, row);
    for (uint32_t first = threadIdx.x * 8; first < shape.hidden; first += blockDim.x * 8) {
        float values[8], sums[8] = {};
        for (uint32_t choice = 0; choice < shape.topk; choice++) {
            if (routes[choice].expert / per_rank != k.setup.rank) continue;
            const __nv_bfloat16 *answer = answers + (size_t{row} * shape.topk + choice) * shape.hidden;
            load_bf16(answer + first, values);
            for (int i = 0; i < 8; i++)
                sums[i] = __fadd_rn(sums[i], __fmul_rn(routes[choice].weight, values[i]));
        }
        store_bf16(sum + first * 2, sums);
    }
}

// Lets the peers come to their end too.
template <template <bool> class CarrierOf> __global__ void part(const __grid_constant__ Kernel k) {
    if (has_fault(k)) return;
    IssuingWarp<CarrierOf, false> warp(k, 0);
    if (warp.barrier(0, 0)) warp.flush();
    warp.save();
}

} // namespace efaprof::gpu
