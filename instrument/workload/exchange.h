// What dispatch and combine move, whatever the tokens are: slots, notices, puts, own copies and the sum of what came
// back. Tokens lie in the heap with their routes behind them; whoever owns the exchange writes and reads them there.
#pragma once

#include "../protocol/routing.h"
#include "lane.h"

namespace efaprof::dispatch {

class Exchange {
public:
    Exchange(Engine &engine, Lane &lane, const protocol::Shape &shape);
    ~Exchange();
    Exchange(const Exchange &) = delete;
    Exchange &operator=(const Exchange &) = delete;

    // `tokens` of this rank, at most as many as the shape has, stand in the heap from here on.
    void begin(uint32_t step, uint32_t layer, uint32_t tokens);
    // Writes the head of own token `token`; its payload and its topk routes are the caller's to write.
    void write_head(uint32_t token);
    // Every route is written: a slot at each rank that a token goes to, in order of tokens.
    void assign_slots();
    // Sends the tokens, and waits until every peer's are here.
    void dispatch();
    // Then: takes them in. A notice or a head that is not of this layer fails the rank; `received` is known afterwards.
    void take_in();
    // Sends the sums of the tokens that came back to their ranks, and waits for those of the own ones.
    void combine();
    // Adds up what the ranks returned for own token `token`, in order of ranks. `sum` has `hidden` elements.
    void reduce(uint32_t token, float *sum) const;

    uint32_t tokens() const { return tokens_; }
    // Tokens that came from rank `src`; in slots from 0 on.
    uint32_t received(uint32_t src) const { return received_[src]; }
    bool goes_to(uint32_t token, uint32_t rank) const { return slots_[token * shape_.ranks + rank] != NO_SLOT; }
    uint8_t *own(uint32_t token) const { return token_at(engine_.heap.tokens, token); }
    const uint8_t *arrived(uint32_t src, uint32_t slot) const {
        return token_at(engine_.heap.arrived, src * shape_.tokens + slot);
    }
    uint8_t *sum(uint32_t src, uint32_t slot) const { return sum_at(engine_.heap.sums, src * shape_.tokens + slot); }
    uint8_t *payload(uint8_t *token) const { return token + sizeof(protocol::TokenHead); }
    const uint8_t *payload(const uint8_t *token) const { return token + sizeof(protocol::TokenHead); }
    protocol::TokenRoute *routes(uint8_t *token) const {
        return reinterpret_cast<protocol::TokenRoute *>(payload(token) + protocol::payload_bytes(shape_));
    }
    const protocol::TokenRoute *routes(const uint8_t *token) const {
        return reinterpret_cast<const protocol::TokenRoute *>(payload(token) + protocol::payload_bytes(shape_));
    }
    bool is_here(uint32_t expert) const { return expert / experts_per_rank_ == engine_.rank; }
    uint32_t experts_per_rank() const { return experts_per_rank_; }
    // Compares the counts per own expert that rank `src` announced with those of its tokens.
    void check_counts(uint32_t src, const uint32_t *counts) const;

private:
    static constexpr uint32_t NO_SLOT = UINT32_MAX;

    void send_notices();
    void send_tokens();
    void copy_own();
    uint32_t check_notice(uint32_t src) const;
    void check_heads(uint32_t src) const;
    void send_sums();
    uint8_t *token_at(uint64_t region, uint32_t index) const {
        return engine_.at(region + uint64_t{index} * engine_.heap.token_units);
    }
    uint8_t *sum_at(uint64_t region, uint32_t index) const {
        return engine_.at(region + uint64_t{index} * engine_.heap.sum_units);
    }
    uint32_t slot(uint32_t token, uint32_t rank) const { return slots_[token * shape_.ranks + rank]; }

    Engine &engine_;
    Lane &lane_;
    const protocol::Shape &shape_;
    uint32_t experts_per_rank_;
    uint32_t step_ = 0, layer_ = 0, tokens_ = 0;
    uint32_t *slots_;    // [token][rank], NO_SLOT where the token does not go
    uint32_t *sent_;     // [rank] tokens of this rank that go there in this layer
    uint32_t *received_; // [rank] tokens that came from there
};

} // namespace efaprof::dispatch
