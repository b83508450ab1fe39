#include "moe.h"

#include <stdlib.h>
#include <string.h>

#include "../proxy/stop.h"

namespace efaprof::dispatch {

namespace {

constexpr uint32_t NO_SLOT = UINT32_MAX;

template <typename Item> Item *make(size_t count) {
    auto *items = static_cast<Item *>(calloc(count, sizeof(Item)));
    if (items == nullptr) fail(Cause::Failed, "out of memory");
    return items;
}

} // namespace

Moe::Moe(Engine &engine, Lane &lane, const Options &options)
    : engine_(engine), lane_(lane), options_(options), shape_(options.shape),
      routes_(make<protocol::Route>(shape_.tokens)), slots_(make<uint32_t>(size_t{shape_.tokens} * shape_.ranks)),
      sent_(make<uint32_t>(shape_.ranks)), received_(make<uint32_t>(shape_.ranks)),
      expert_counts_(make<uint32_t>(experts_per_rank())), results_(make<float>(size_t{shape_.tokens} * shape_.hidden)) {
}

Moe::~Moe() {
    free(routes_);
    free(slots_);
    free(sent_);
    free(received_);
    free(expert_counts_);
    free(results_);
}

protocol::TokenId Moe::id_of(uint32_t token) const {
    return {options_.seed, step_, layer_, engine_.rank, token};
}

void Moe::fill(uint32_t step, uint32_t layer) {
    step_ = step;
    layer_ = layer;
    for (uint32_t token = 0; token < shape_.tokens; token++) {
        protocol::route_token(id_of(token), shape_.topk, shape_.experts, routes_[token]);
        write_token(token);
    }
    assign_slots();
    if (options_.corrupt_step == step && layer == 0 && engine_.rank == 0) corrupt_token();
}

//   head │ hidden × float │ topk × (expert, weight)
void Moe::write_token(uint32_t token) {
    uint8_t *bytes = token_at(engine_.heap.tokens, token);
    protocol::TokenHead head = {step_, static_cast<uint16_t>(layer_), engine_.rank, token, 0};
    head.check = protocol::head_check(head);
    memcpy(bytes, &head, sizeof head);
    auto *payload = reinterpret_cast<float *>(bytes + sizeof head);
    protocol::TokenValues values = protocol::token_values(id_of(token));
    for (uint32_t element = 0; element < shape_.hidden; element++)
        payload[element] = static_cast<float>(protocol::token_value(values, element));
    auto *routes = reinterpret_cast<protocol::TokenRoute *>(payload + shape_.hidden);
    for (uint32_t k = 0; k < shape_.topk; k++)
        routes[k] = {routes_[token].expert[k], static_cast<float>(routes_[token].weight[k])};
}

// The test's own damage: one bit of the payload of the first token that travels.
void Moe::corrupt_token() {
    for (uint32_t token = 0; token < shape_.tokens; token++) {
        bool travels = false;
        for (uint32_t rank = 0; rank < shape_.ranks; rank++)
            travels = travels || (rank != engine_.rank && slot(token, rank) != NO_SLOT);
        if (travels) {
            token_at(engine_.heap.tokens, token)[sizeof(protocol::TokenHead) + 2] ^= 0x40;
            return;
        }
    }
}

void Moe::assign_slots() {
    memset(sent_, 0, shape_.ranks * sizeof *sent_);
    for (uint32_t token = 0; token < shape_.tokens; token++) {
        for (uint32_t rank = 0; rank < shape_.ranks; rank++) {
            bool goes = protocol::goes_to(routes_[token], shape_.topk, experts_per_rank(), rank);
            slot(token, rank) = goes ? sent_[rank]++ : NO_SLOT;
        }
    }
}

void Moe::dispatch() {
    lane_.barrier();
    send_notices();
    send_tokens();
    lane_.send_tails();
    copy_own();
    lane_.wait_tails();
}

void Moe::send_notices() {
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
        for (uint32_t token = 0; token < shape_.tokens; token++) {
            for (uint32_t k = 0; k < shape_.topk; k++) {
                if (routes_[token].expert[k] / experts_per_rank() == peer)
                    counts[routes_[token].expert[k] % experts_per_rank()]++;
            }
        }
        lane_.put({EFAPROF_CMD_NOTIFY, peer, 0, source, target, sizeof notice});
        lane_.put({EFAPROF_CMD_NOTIFY, peer, 0, source + NOTICE_UNITS, target + NOTICE_UNITS,
                   heap.experts_units * protocol::UNIT_BYTES});
    }
}

// One put per token and rank that it goes to; tokens take the channels in turn.
void Moe::send_tokens() {
    const protocol::Heap &heap = engine_.heap;
    auto bytes = static_cast<uint32_t>(protocol::token_bytes(shape_));
    for (uint32_t token = 0; token < shape_.tokens; token++) {
        for (uint32_t i = 1; i < shape_.ranks; i++) {
            uint32_t peer = (engine_.rank + i) % shape_.ranks, at = slot(token, peer);
            if (at == NO_SLOT) continue;
            uint64_t index = uint64_t{engine_.rank} * shape_.tokens + at;
            lane_.put({EFAPROF_CMD_PUT, peer, at % shape_.channels, heap.tokens + uint64_t{token} * heap.token_units,
                       heap.arrived + index * heap.token_units, bytes});
        }
    }
}

void Moe::copy_own() {
    uint64_t begin = efaprof_now(), bytes = 0;
    for (uint32_t token = 0; token < shape_.tokens; token++) {
        uint32_t at = slot(token, engine_.rank);
        if (at == NO_SLOT) continue;
        memcpy(token_at(engine_.heap.arrived, engine_.rank * shape_.tokens + at), token_at(engine_.heap.tokens, token),
               protocol::token_bytes(shape_));
        bytes += protocol::token_bytes(shape_);
    }
    lane_.record_compute(EFAPROF_COMPUTE_COPY, begin, efaprof_now(), bytes);
}

uint32_t Moe::check_notice(uint32_t src) const {
    if (src == engine_.rank) return sent_[src];
    protocol::Notice notice;
    memcpy(&notice, engine_.at(engine_.heap.notified + uint64_t{src} * engine_.heap.notice_units), sizeof notice);
    if (notice.step != step_ || notice.layer != layer_ || notice.src != src || notice.tokens > shape_.tokens)
        fail(Cause::Mismatch, "step %u layer %u: the notice from rank %u says step %u layer %u rank %u, %u tokens",
             step_, layer_, src, notice.step, notice.layer, notice.src, notice.tokens);
    return notice.tokens;
}

void Moe::check_head(const protocol::TokenHead &head, uint32_t src) const {
    if (head.step != step_ || head.layer != layer_ || head.src != src || head.token >= shape_.tokens ||
        head.check != protocol::head_check(head))
        fail(Cause::Mismatch, "step %u layer %u: a token from rank %u came as step %u layer %u rank %u token %u%s",
             step_, layer_, src, head.step, head.layer, head.src, head.token,
             head.check == protocol::head_check(head) ? "" : ", and its check is wrong");
}

void Moe::experts() {
    uint64_t begin = efaprof_now(), bytes = 0;
    for (uint32_t src = 0; src < shape_.ranks; src++) {
        received_[src] = check_notice(src);
        memset(expert_counts_, 0, experts_per_rank() * sizeof *expert_counts_);
        for (uint32_t at = 0; at < received_[src]; at++)
            run_experts(src, at, expert_counts_);
        check_counts(src, expert_counts_);
        bytes += received_[src] * protocol::token_bytes(shape_);
    }
    lane_.record_compute(EFAPROF_COMPUTE_EXPERT, begin, efaprof_now(), bytes);
}

// Weighted sum of this rank's experts over one token that came.
void Moe::run_experts(uint32_t src, uint32_t at, uint32_t *counts) {
    const uint8_t *bytes = token_at(engine_.heap.arrived, src * shape_.tokens + at);
    protocol::TokenHead head;
    memcpy(&head, bytes, sizeof head);
    check_head(head, src);
    const auto *payload = reinterpret_cast<const float *>(bytes + sizeof head);
    const auto *routes = reinterpret_cast<const protocol::TokenRoute *>(payload + shape_.hidden);
    float *sum = sum_at(engine_.heap.sums, src * shape_.tokens + at);
    memset(sum, 0, shape_.hidden * sizeof *sum);
    for (uint32_t k = 0; k < shape_.topk; k++) {
        if (routes[k].expert / experts_per_rank() != engine_.rank) continue;
        counts[routes[k].expert % experts_per_rank()]++;
        protocol::Expert expert = protocol::expert_of(options_.seed, routes[k].expert);
        auto scale = static_cast<float>(expert.scale), shift = static_cast<float>(expert.shift);
        for (uint32_t element = 0; element < shape_.hidden; element++)
            sum[element] += routes[k].weight * (scale * payload[element] + shift + static_cast<float>(element & 7));
    }
}

void Moe::check_counts(uint32_t src, const uint32_t *counts) const {
    if (src == engine_.rank) return;
    uint64_t at = engine_.heap.notified + uint64_t{src} * engine_.heap.notice_units +
                  sizeof(protocol::Notice) / protocol::UNIT_BYTES;
    if (memcmp(engine_.at(at), counts, experts_per_rank() * sizeof *counts) != 0)
        fail(Cause::Mismatch, "step %u layer %u: rank %u announced other counts per expert than its tokens carry",
             step_, layer_, src);
}

void Moe::combine() {
    lane_.barrier();
    send_sums();
    lane_.flush();
    lane_.send_tails();
    lane_.wait_tails();
    reduce();
}

void Moe::send_sums() {
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

void Moe::reduce() {
    uint64_t begin = efaprof_now();
    for (uint32_t token = 0; token < shape_.tokens; token++) {
        float *result = &results_[size_t{token} * shape_.hidden];
        memset(result, 0, shape_.hidden * sizeof *result);
        for (uint32_t rank = 0; rank < shape_.ranks; rank++) {
            uint32_t at = slot(token, rank);
            if (at == NO_SLOT) continue;
            uint64_t region = rank == engine_.rank ? engine_.heap.sums : engine_.heap.returned;
            const float *sum = sum_at(region, rank * shape_.tokens + at);
            for (uint32_t element = 0; element < shape_.hidden; element++)
                result[element] += sum[element];
        }
    }
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
    }
    verified_++;
}

} // namespace efaprof::dispatch
