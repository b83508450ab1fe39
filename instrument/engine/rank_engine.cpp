#include "rank_engine.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../gda/open.h"
#include "../proxy/make.h"
#include "../workload/assemble.h"
#include "../workload/job.h"
#include "../workload/values.h"
#include "card.h"

namespace efaprof::dispatch {

namespace {

constexpr uint32_t PARTING_S = 5; // longest wait for the others at the end

} // namespace

void RankEngine::open(const Options &options, uint32_t rank) {
    options_ = options;
    ticks_per_ns_ = measure_ticks();
    thread_count_ = thread_count(options_);
    efaprof_set_producer("dispatch");
    set_up(&engine_, options_, ticks_per_ns_, rank);
    engine_.stop = &stop_;
    sum_ = make<float>(options_.shape.hidden);
    if (is_posting())
        open_queues(engine_, options_, pair_);
    else
        open_fabric(engine_, options_, thread_count_);
}

void RankEngine::contact(void *bytes) const {
    write_card(options_, engine_.rank, is_posting() ? pair_.contact() : engine_.fabric.contact(), bytes);
}

void RankEngine::connect(const void *contacts) {
    Identity identities[protocol::MAX_RANKS];
    read_cards(options_, engine_.rank, contacts, contacts_, identities);
    if (is_posting())
        pair_.connect(contacts_, engine_.ranks, engine_.rank);
    else
        engine_.fabric.connect(contacts_, engine_.ranks);
    record_identity(engine_, options_);
    start(identities);
}

// What makes two runs comparable; the reader knows these words.
void RankEngine::record_options() const {
    constexpr const char *SIGNALS[] = {"imm", "fence", "fence-batch"};
    const protocol::Shape &shape = options_.shape;
    const char *path = is_posting() ? "gdaki" : "proxy", *dtype = shape.element_bytes == 2 ? "bf16" : "f32";
    char note[EFAPROF_NAME_MAX];
    snprintf(note, sizeof note, "path: %s", path);
    record_note(note, 1);
    snprintf(note, sizeof note, "options: ranks=%u tokens=%u hidden=%u topk=%u experts=%u channels=%u", shape.ranks,
             shape.tokens, shape.hidden, shape.topk, shape.experts, shape.channels);
    record_note(note, 1);
    snprintf(note, sizeof note, "options: path=%s dtype=%s signal=%s provider=%s", path, dtype,
             SIGNALS[static_cast<unsigned>(options_.signal)], options_.provider);
    record_note(note, 1);
}

void RankEngine::start(const Identity *identities) {
    bool is_device = strncmp(options_.provider, "efa", 3) == 0;
    record_options();
    if (!is_device && is_one_host(identities, engine_.ranks)) {
        char note[EFAPROF_NAME_MAX];
        snprintf(note, sizeof note, "emulated: nic: provider %s on one host", options_.provider);
        record_note(note, 1);
    }
    if (!is_posting()) {
        threads_.start(engine_, thread_count_);
        has_threads_ = true;
    }
    watch_.start(stop_, engine_.rank, identities, engine_.ranks);
    Carrier &carrier = is_posting() ? static_cast<Carrier &>(posting_.emplace(
                                          engine_, pair_.queues(), GdaCarrierOptions{options_.posting.batch, 0, 0}))
                                    : ring_.emplace(engine_);
    lane_.emplace(engine_, carrier, LaneOptions{options_.signal, options_.timeout_s, ticks_per_ns_});
    exchange_.emplace(engine_, *lane_, options_.shape);
}

void RankEngine::mark(efaprof_phase phase) {
    lane_->mark({step_, static_cast<uint16_t>(layer_), phase}, kind_);
}

// A phase that follows its like uses the same signal bodies: none may be on its way any more. Usually combine's flush
// has seen to that.
void RankEngine::enter(efaprof_phase phase) {
    if (last_ == phase) lane_->drain();
    last_ = phase;
}

// The caller's own work since the last call ends here.
void RankEngine::computed(efaprof_compute what) {
    lane_->record_compute(what, since_, efaprof_now(), 0);
}

void RankEngine::begin_step(uint32_t step, StepKind kind, bool is_resting) {
    if (is_in_step_) end_step();
    step_ = step;
    layer_ = 0;
    kind_ = kind;
    mark(EFAPROF_PHASE_STEP);
    __atomic_store_n(&engine_.is_resting, is_resting ? 1u : 0u, __ATOMIC_RELAXED);
    is_in_step_ = !is_resting;
    if (is_resting) return;
    mark(EFAPROF_PHASE_COMPUTE);
    since_ = efaprof_now();
}

void RankEngine::end_step() {
    computed(EFAPROF_COMPUTE_STANDIN);
    is_in_step_ = has_tokens_ = false;
}

void RankEngine::dispatch(uint32_t layer, const Given &given, const Received &received) {
    layer_ = layer;
    enter(EFAPROF_PHASE_DISPATCH);
    exchange_->begin(step_, layer, given.tokens);
    lay_out(given);
    computed(EFAPROF_COMPUTE_STANDIN);
    mark(EFAPROF_PHASE_DISPATCH);
    exchange_->dispatch();
    mark(EFAPROF_PHASE_COMPUTE);
    since_ = efaprof_now();
    exchange_->take_in();
    hand_over(received);
    has_tokens_ = true;
}

void RankEngine::lay_out(const Given &given) {
    const protocol::Shape &shape = options_.shape;
    size_t bytes = size_t{shape.hidden} * shape.element_bytes;
    for (uint32_t token = 0; token < given.tokens; token++) {
        exchange_->write_head(token);
        uint8_t *own = exchange_->own(token);
        memcpy(exchange_->payload(own), static_cast<const uint8_t *>(given.x) + token * bytes, bytes);
        protocol::TokenRoute *routes = exchange_->routes(own);
        for (uint32_t k = 0; k < shape.topk; k++)
            routes[k] = {static_cast<uint32_t>(given.experts[token * shape.topk + k]),
                         given.weights[token * shape.topk + k]};
    }
    exchange_->assign_slots();
}

void RankEngine::hand_over(const Received &received) {
    const protocol::Shape &shape = options_.shape;
    size_t bytes = size_t{shape.hidden} * shape.element_bytes;
    for (uint32_t row = 0; row < shape.ranks * shape.tokens; row++) {
        uint32_t src = row / shape.tokens, slot = row % shape.tokens;
        bool is_full = slot < exchange_->received(src);
        const uint8_t *token = exchange_->arrived(src, slot);
        const protocol::TokenRoute *routes = exchange_->routes(token);
        if (is_full) memcpy(static_cast<uint8_t *>(received.x) + row * bytes, exchange_->payload(token), bytes);
        for (uint32_t k = 0; k < shape.topk; k++) {
            bool is_here = is_full && exchange_->is_here(routes[k].expert);
            size_t at = size_t{row} * shape.topk + k;
            received.experts[at] =
                is_here ? static_cast<int32_t>(routes[k].expert % exchange_->experts_per_rank()) : -1;
            received.weights[at] = is_here ? routes[k].weight : 0.0f;
        }
    }
    for (uint32_t src = 0; src < shape.ranks; src++)
        received.counts[src] = static_cast<int32_t>(exchange_->received(src));
}

void RankEngine::combine(const void *answers, void *result) {
    const protocol::Shape &shape = options_.shape;
    enter(EFAPROF_PHASE_COMBINE);
    add_up(answers);
    computed(EFAPROF_COMPUTE_EXPERT);
    mark(EFAPROF_PHASE_COMBINE);
    exchange_->combine();
    mark(EFAPROF_PHASE_COMPUTE);
    uint64_t begin = efaprof_now();
    size_t bytes = size_t{shape.hidden} * shape.element_bytes;
    for (uint32_t token = 0; token < exchange_->tokens(); token++) {
        exchange_->reduce(token, sum_);
        store_values(static_cast<uint8_t *>(result) + token * bytes, sum_, shape.hidden, shape.element_bytes);
    }
    since_ = efaprof_now();
    lane_->record_compute(EFAPROF_COMPUTE_REDUCE, begin, since_, exchange_->tokens() * bytes);
}

void RankEngine::add_up(const void *answers) {
    const protocol::Shape &shape = options_.shape;
    size_t bytes = size_t{shape.hidden} * shape.element_bytes;
    for (uint32_t src = 0; src < shape.ranks; src++) {
        for (uint32_t slot = 0; slot < exchange_->received(src); slot++) {
            const protocol::TokenRoute *routes = exchange_->routes(exchange_->arrived(src, slot));
            memset(sum_, 0, shape.hidden * sizeof *sum_);
            for (uint32_t k = 0; k < shape.topk; k++) {
                if (!exchange_->is_here(routes[k].expert)) continue;
                size_t row = (size_t{src} * shape.tokens + slot) * shape.topk + k;
                add_values(sum_, static_cast<const uint8_t *>(answers) + row * bytes, shape.hidden, shape.element_bytes,
                           routes[k].weight);
            }
            store_values(exchange_->sum(src, slot), sum_, shape.hidden, shape.element_bytes);
        }
    }
}

void RankEngine::part() {
    begin_step(step_ + 1, StepKind::WarmUp, true); // ends the last step
    __atomic_store_n(&engine_.is_resting, 0u, __ATOMIC_RELAXED);
    lane_->set_timeout(PARTING_S);
    lane_->barrier();
    lane_->drain();
}

void RankEngine::close() {
    bool is_stopped = __atomic_load_n(&stop_.stopped, __ATOMIC_ACQUIRE) != 0;
    __atomic_store_n(&engine_.is_over, 1u, __ATOMIC_RELEASE);
    if (has_threads_) threads_.join();
    watch_.stop();
    exchange_.reset();
    lane_.reset();
    ring_.reset();
    posting_.reset();
    if (is_posting()) pair_.close();
    take_down(engine_);
    // Of ranks that were killed; without them the job is over for the others too.
    for (uint32_t rank = 0; is_stopped && rank < engine_.ranks; rank++)
        remove_region(contacts_[rank]);
    free(sum_);
}

} // namespace efaprof::dispatch
