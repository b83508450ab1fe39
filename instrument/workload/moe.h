// One Mixture-of-Experts layer over a lane: dispatch, experts, combine, and the proof that the answer is right.
#pragma once

#include "../protocol/routing.h"
#include "lane.h"

namespace efaprof::dispatch {

class Moe {
public:
    Moe(Engine &engine, Lane &lane, const Options &options);
    ~Moe();
    Moe(const Moe &) = delete;
    Moe &operator=(const Moe &) = delete;

    // The layer's tokens of this rank, routed and laid out to be sent.
    void fill(uint32_t step, uint32_t layer);
    void dispatch();
    void experts();
    void combine();
    // Compares every own token's result with the reference; a mismatch fails the rank, naming it.
    void verify();
    uint64_t verified() const { return verified_; }
    uint64_t mismatches() const { return mismatches_; }

private:
    protocol::TokenId id_of(uint32_t token) const;
    void write_token(uint32_t token);
    void corrupt_token();
    void assign_slots();
    void send_notices();
    void send_tokens();
    void copy_own();
    uint32_t check_notice(uint32_t src) const;
    void check_head(const protocol::TokenHead &head, uint32_t src) const;
    void run_experts(uint32_t src, uint32_t slot, uint32_t *counts);
    void check_counts(uint32_t src, const uint32_t *counts) const;
    void send_sums();
    void reduce();
    void verify_token(uint32_t token);

    uint8_t *token_at(uint64_t region, uint32_t index) const {
        return engine_.at(region + uint64_t{index} * engine_.heap.token_units);
    }
    float *sum_at(uint64_t region, uint32_t index) const {
        return reinterpret_cast<float *>(engine_.at(region + uint64_t{index} * engine_.heap.sum_units));
    }
    uint32_t &slot(uint32_t token, uint32_t rank) { return slots_[token * shape_.ranks + rank]; }
    uint32_t experts_per_rank() const { return shape_.experts / shape_.ranks; }

    Engine &engine_;
    Lane &lane_;
    const Options &options_;
    const protocol::Shape &shape_;
    uint32_t step_ = 0, layer_ = 0;
    protocol::Route *routes_; // [token]
    uint32_t *slots_;         // [token][rank], NO_SLOT where the token does not go
    uint32_t *sent_;          // [rank] tokens of this rank that go there in this layer
    uint32_t *received_;      // [rank] tokens that came from there
    uint32_t *expert_counts_; // [expert of this rank]
    float *results_;          // [token][element]
    uint64_t verified_ = 0, mismatches_ = 0;
};

} // namespace efaprof::dispatch
