#include "moe.h"

#include <stdlib.h>
#include <string.h>

#include "../proxy/make.h"

namespace efaprof::dispatch {

Moe::Moe(Engine &engine, Lane &lane, const Options &options)
    : engine_(engine), lane_(lane), options_(options), shape_(options.shape), exchange_(engine, lane, options.shape),
      expert_counts_(make<uint32_t>(exchange_.experts_per_rank())),
      results_(make<float>(size_t{shape_.tokens} * shape_.hidden)) {}

Moe::~Moe() {
    free(expert_counts_);
    free(results_);
}

protocol::TokenId Moe::id_of(uint32_t token) const {
    return {options_.seed, step_, layer_, engine_.rank, token};
}

void Moe::fill(uint32_t step, uint32_t layer) {
    step_ = step;
    layer_ = layer;
    exchange_.begin(step, layer, shape_.tokens);
    for (uint32_t token = 0; token < shape_.tokens; token++)
        write_token(token);
    exchange_.assign_slots();
    if (options_.corrupt_step == step && layer == 0 && engine_.rank == 0) corrupt_token();
}

void Moe::write_token(uint32_t token) {
    exchange_.write_head(token);
    uint8_t *bytes = exchange_.own(token);
    auto *payload = reinterpret_cast<float *>(exchange_.payload(bytes));
    protocol::TokenValues values = protocol::token_values(id_of(token));
    for (uint32_t element = 0; element < shape_.hidden; element++)
        payload[element] = static_cast<float>(protocol::token_value(values, element));
    protocol::Route route;
    protocol::route_token(id_of(token), shape_.topk, shape_.experts, route);
    protocol::TokenRoute *routes = exchange_.routes(bytes);
    for (uint32_t k = 0; k < shape_.topk; k++)
        routes[k] = {route.expert[k], static_cast<float>(route.weight[k])};
}

// The test's own damage: one bit of the payload of the first token that travels.
void Moe::corrupt_token() {
    for (uint32_t token = 0; token < shape_.tokens; token++) {
        bool travels = false;
        for (uint32_t rank = 0; rank < shape_.ranks; rank++)
            travels = travels || (rank != engine_.rank && exchange_.goes_to(token, rank));
        if (travels) {
            exchange_.payload(exchange_.own(token))[2] ^= 0x40;
            return;
        }
    }
}

void Moe::experts() {
    uint64_t begin = efaprof_now(), bytes = 0;
    exchange_.take_in();
    for (uint32_t src = 0; src < shape_.ranks; src++) {
        memset(expert_counts_, 0, exchange_.experts_per_rank() * sizeof *expert_counts_);
        for (uint32_t at = 0; at < exchange_.received(src); at++)
            run_experts(src, at, expert_counts_);
        exchange_.check_counts(src, expert_counts_);
        bytes += exchange_.received(src) * protocol::token_bytes(shape_);
    }
    lane_.record_compute(EFAPROF_COMPUTE_EXPERT, begin, efaprof_now(), bytes);
}

// Weighted sum of this rank's experts over one token that came.
void Moe::run_experts(uint32_t src, uint32_t at, uint32_t *counts) {
    const uint8_t *bytes = exchange_.arrived(src, at);
    const auto *payload = reinterpret_cast<const float *>(exchange_.payload(bytes));
    const protocol::TokenRoute *routes = exchange_.routes(bytes);
    auto *sum = reinterpret_cast<float *>(exchange_.sum(src, at));
    memset(sum, 0, shape_.hidden * sizeof *sum);
    for (uint32_t k = 0; k < shape_.topk; k++) {
        if (!exchange_.is_here(routes[k].expert)) continue;
        counts[routes[k].expert % exchange_.experts_per_rank()]++;
        protocol::Expert expert = protocol::expert_of(options_.seed, routes[k].expert);
        auto scale = static_cast<float>(expert.scale), shift = static_cast<float>(expert.shift);
        for (uint32_t element = 0; element < shape_.hidden; element++)
            sum[element] += routes[k].weight * (scale * payload[element] + shift + static_cast<float>(element & 7));
    }
}

void Moe::combine() {
    exchange_.combine();
    reduce();
}

void Moe::reduce() {
    uint64_t begin = efaprof_now();
    for (uint32_t token = 0; token < shape_.tokens; token++)
        exchange_.reduce(token, &results_[size_t{token} * shape_.hidden]);
    lane_.record_compute(EFAPROF_COMPUTE_REDUCE, begin, efaprof_now(),
                         uint64_t{shape_.tokens} * protocol::sum_bytes(shape_));
}

void Moe::verify() {
    uint64_t begin = efaprof_now();
    for (uint32_t token = 0; token < shape_.tokens; token++)
        verify_token(token);
    lane_.record_compute(EFAPROF_COMPUTE_VERIFY, begin, efaprof_now(),
                         uint64_t{shape_.tokens} * protocol::sum_bytes(shape_));
}

// The reference never looks at what was sent: from the routes alone, Σ w·(a·x + b + i mod 8) is
// (Σ w·a)·x + Σ w·b + (Σ w)·(i mod 8), in integers.
void Moe::verify_token(uint32_t token) {
    protocol::Route route;
    protocol::route_token(id_of(token), shape_.topk, shape_.experts, route);
    int32_t scale = 0, shift = 0, weight = 0;
    for (uint32_t k = 0; k < shape_.topk; k++) {
        protocol::Expert expert = protocol::expert_of(options_.seed, route.expert[k]);
        scale += route.weight[k] * expert.scale;
        shift += route.weight[k] * expert.shift;
        weight += route.weight[k];
    }
    protocol::TokenValues values = protocol::token_values(id_of(token));
    const float *result = &results_[size_t{token} * shape_.hidden];
    for (uint32_t element = 0; element < shape_.hidden; element++) {
        int32_t expected =
            scale * protocol::token_value(values, element) + shift + weight * static_cast<int32_t>(element & 7);
        if (result[element] != static_cast<float>(expected)) {
            record_counter("verify.mismatches", static_cast<int64_t>(++mismatches_), COUNT);
            fail(Cause::Mismatch, "step %u layer %u rank %u token %u element %u: got %g, the reference is %d", step_,
                 layer_, engine_.rank, token, element, static_cast<double>(result[element]), expected);
        }
        uint32_t bits;
        memcpy(&bits, &result[element], sizeof bits);
        checksum_ = protocol::mix(checksum_ ^ bits);
    }
    verified_++;
}

} // namespace efaprof::dispatch
