// One Mixture-of-Experts layer over a lane: dispatch, experts, combine, and the proof that the answer is right.
#pragma once

#include "exchange.h"

namespace efaprof::dispatch {

class Moe {
public:
    Moe(Engine &engine, Lane &lane, const Options &options);
    ~Moe();
    Moe(const Moe &) = delete;
    Moe &operator=(const Moe &) = delete;

    // The layer's tokens of this rank, routed and laid out to be sent.
    void fill(uint32_t step, uint32_t layer);
    void dispatch() { exchange_.dispatch(); }
    void experts();
    void combine();
    // Compares every own token's result with the reference; a mismatch fails the rank, naming it.
    void verify();
    uint64_t verified() const { return verified_; }
    uint64_t mismatches() const { return mismatches_; }
    // Of every result that was verified, in order: equal on two paths exactly where all of them are.
    uint64_t checksum() const { return checksum_; }

private:
    protocol::TokenId id_of(uint32_t token) const;
    void write_token(uint32_t token);
    void corrupt_token();
    void run_experts(uint32_t src, uint32_t slot, uint32_t *counts);
    void reduce();
    void verify_token(uint32_t token);

    Engine &engine_;
    Lane &lane_;
    const Options &options_;
    const protocol::Shape &shape_;
    Exchange exchange_;
    uint32_t step_ = 0, layer_ = 0;
    uint32_t *expert_counts_; // [expert of this rank]
    float *results_;          // [token][element]
    uint64_t verified_ = 0, mismatches_ = 0, checksum_ = 0;
};

} // namespace efaprof::dispatch
