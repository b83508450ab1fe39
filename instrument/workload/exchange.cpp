#include "exchange.h"

#include <stdlib.h>
#include <string.h>

#include "../proxy/make.h"
#include "values.h"

namespace efaprof::dispatch {

Exchange::Exchange(Engine &engine, Lane &lane, const protocol::Shape &shape)
    : engine_(engine), lane_(lane), shape_(shape), experts_per_rank_(shape.experts / shape.ranks),
      slots_(make<uint32_t>(size_t{shape.tokens} * shape.ranks)), sent_(make<uint32_t>(shape.ranks)),
      received_(make<uint32_t>(shape.ranks)) {}

Exchange::~Exchange() {
    free(slots_);
    free(sent_);
    free(received_);
}

void Exchange::begin(uint32_t step, uint32_t layer, uint32_t tokens) {
    step_ = step;
    layer_ = layer;
    tokens_ = tokens;
}

//   head │ hidden × element │ topk × (expert, weight)
void Exchange::write_head(uint32_t token) {
    protocol::TokenHead head = {step_, static_cast<uint16_t>(layer_), engine_.rank, token, 0};
    head.check = protocol::head_check(head);
    memcpy(own(token), &head, sizeof head);
}

void Exchange::assign_slots() {
    memset(sent_, 0, shape_.ranks * sizeof *sent_);
    for (uint32_t token = 0; token < tokens_; token++) {
        uint32_t *slots = &slots_[token * shape_.ranks];
        memset(slots, 0xFF, shape_.ranks * sizeof *slots);
        const protocol::TokenRoute *chosen = routes(own(token));
        for (uint32_t k = 0; k < shape_.topk; k++) {
            uint32_t rank = chosen[k].expert / experts_per_rank_;
            if (slots[rank] == NO_SLOT) slots[rank] = sent_[rank]++;
        }
    }
}

void Exchange::dispatch() {
    lane_.barrier();
    send_notices();
    send_tokens();
    lane_.send_tails();
    copy_own();
    lane_.wait_tails();
}

void Exchange::take_in() {
    for (uint32_t src = 0; src < shape_.ranks; src++) {
        received_[src] = check_notice(src);
        check_heads(src);
    }
}

void Exchange::send_notices() {
    const protocol::Heap &heap = engine_.heap;
    constexpr uint32_t NOTICE_UNITS = sizeof(protocol::Notice) / protocol::UNIT_BYTES;
    for (uint32_t i = 1; i < shape_.ranks; i++) {
        uint32_t peer = (engine_.rank + i) % shape_.ranks;
        uint64_t source = heap.notices + uint64_t{peer} * heap.notice_units;
        uint64_t target = heap.notified + uint64_t{engine_.rank} * heap.notice_units;
        protocol::Notice notice = {step_, static_cast<uint16_t>(layer_), engine_.rank, sent_[peer], {}};
        memcpy(engine_.at(source), &notice, sizeof notice);
        auto *counts = reinterpret_cast<uint32_t *>(engine_.at(source + NOTICE_UNITS));
        memset(counts, 0, heap.experts_units * size_t{protocol::UNIT_BYTES});
        for (uint32_t token = 0; token < tokens_; token++) {
            const protocol::TokenRoute *chosen = routes(own(token));
            for (uint32_t k = 0; k < shape_.topk; k++) {
                if (chosen[k].expert / experts_per_rank_ == peer) counts[chosen[k].expert % experts_per_rank_]++;
            }
        }
        lane_.put({EFAPROF_CMD_NOTIFY, peer, 0, source, target, sizeof notice});
        lane_.put({EFAPROF_CMD_NOTIFY, peer, 0, source + NOTICE_UNITS, target + NOTICE_UNITS,
                   heap.experts_units * protocol::UNIT_BYTES});
    }
}

// One put per token and rank that it goes to; tokens take the channels in turn.
void Exchange::send_tokens() {
    const protocol::Heap &heap = engine_.heap;
    auto bytes = static_cast<uint32_t>(protocol::token_bytes(shape_));
    for (uint32_t token = 0; token < tokens_; token++) {
        for (uint32_t i = 1; i < shape_.ranks; i++) {
            uint32_t peer = (engine_.rank + i) % shape_.ranks, at = slot(token, peer);
            if (at == NO_SLOT) continue;
            uint64_t index = uint64_t{engine_.rank} * shape_.tokens + at;
            lane_.put({EFAPROF_CMD_PUT, peer, at % shape_.channels, heap.tokens + uint64_t{token} * heap.token_units,
                       heap.arrived + index * heap.token_units, bytes});
        }
    }
}

void Exchange::copy_own() {
    uint64_t begin = efaprof_now(), bytes = 0;
    for (uint32_t token = 0; token < tokens_; token++) {
        uint32_t at = slot(token, engine_.rank);
        if (at == NO_SLOT) continue;
        memcpy(token_at(engine_.heap.arrived, engine_.rank * shape_.tokens + at), own(token),
               protocol::token_bytes(shape_));
        bytes += protocol::token_bytes(shape_);
    }
    lane_.record_compute(EFAPROF_COMPUTE_COPY, begin, efaprof_now(), bytes);
}

uint32_t Exchange::check_notice(uint32_t src) const {
    if (src == engine_.rank) return sent_[src];
    protocol::Notice notice;
    memcpy(&notice, engine_.at(engine_.heap.notified + uint64_t{src} * engine_.heap.notice_units), sizeof notice);
    if (notice.step != step_ || notice.layer != layer_ || notice.src != src || notice.tokens > shape_.tokens)
        fail(Cause::Mismatch, "step %u layer %u: the notice from rank %u says step %u layer %u rank %u, %u tokens",
             step_, layer_, src, notice.step, notice.layer, notice.src, notice.tokens);
    return notice.tokens;
}

void Exchange::check_heads(uint32_t src) const {
    for (uint32_t at = 0; at < received_[src]; at++) {
        protocol::TokenHead head;
        memcpy(&head, arrived(src, at), sizeof head);
        if (head.step != step_ || head.layer != layer_ || head.src != src || head.token >= shape_.tokens ||
            head.check != protocol::head_check(head))
            fail(Cause::Mismatch, "step %u layer %u: a token from rank %u came as step %u layer %u rank %u token %u%s",
                 step_, layer_, src, head.step, head.layer, head.src, head.token,
                 head.check == protocol::head_check(head) ? "" : ", and its check is wrong");
    }
}

void Exchange::check_counts(uint32_t src, const uint32_t *counts) const {
    if (src == engine_.rank) return;
    uint64_t at = engine_.heap.notified + uint64_t{src} * engine_.heap.notice_units +
                  sizeof(protocol::Notice) / protocol::UNIT_BYTES;
    if (memcmp(engine_.at(at), counts, experts_per_rank_ * sizeof *counts) != 0)
        fail(Cause::Mismatch, "step %u layer %u: rank %u announced other counts per expert than its tokens carry",
             step_, layer_, src);
}

void Exchange::combine() {
    lane_.barrier();
    send_sums();
    lane_.flush();
    lane_.send_tails();
    lane_.wait_tails();
}

void Exchange::send_sums() {
    const protocol::Heap &heap = engine_.heap;
    auto bytes = static_cast<uint32_t>(protocol::sum_bytes(shape_));
    for (uint32_t i = 1; i < shape_.ranks; i++) {
        uint32_t src = (engine_.rank + i) % shape_.ranks;
        for (uint32_t at = 0; at < received_[src]; at++) {
            uint64_t source = uint64_t{src} * shape_.tokens + at;
            uint64_t target = uint64_t{engine_.rank} * shape_.tokens + at;
            lane_.put({EFAPROF_CMD_PUT, src, at % shape_.channels, heap.sums + source * heap.sum_units,
                       heap.returned + target * heap.sum_units, bytes});
        }
    }
}

void Exchange::reduce(uint32_t token, float *sum) const {
    memset(sum, 0, shape_.hidden * sizeof *sum);
    for (uint32_t rank = 0; rank < shape_.ranks; rank++) {
        uint32_t at = slot(token, rank);
        if (at == NO_SLOT) continue;
        uint64_t region = rank == engine_.rank ? engine_.heap.sums : engine_.heap.returned;
        add_values(sum, sum_at(region, rank * shape_.tokens + at), shape_.hidden, shape_.element_bytes);
    }
}

} // namespace efaprof::dispatch
