#include "efaprof_bulk.h"

#include <stdio.h>
#include <stdlib.h>

#include "../proxy/record.h"

using namespace efaprof::dispatch;

struct efaprof_bulk {
    uint16_t rank, ranks;
    Place place;
    uint16_t kind;
    uint64_t seq;         // of the next operation
    uint64_t collectives; // so far: the wire sequence of the next one's operations
    uint64_t since;       // the caller's own work began; 0 outside of steps
    uint64_t entered;
};

namespace {

uint64_t op_of(const efaprof_bulk &bulk, uint64_t seq) {
    return uint64_t{bulk.rank} << 48 | seq;
}

void mark(efaprof_bulk &bulk, efaprof_phase phase) {
    bulk.place.phase = phase;
    record_mark(efaprof_now(), bulk.place, bulk.kind, bulk.rank, bulk.seq);
}

void computed(efaprof_bulk &bulk, efaprof_compute what, uint64_t end) {
    if (bulk.since == 0) return;
    record_stage(EFAPROF_STAGE_COMPUTE, bulk.since, end,
                 {op_of(bulk, bulk.seq), 0, bulk.rank, static_cast<uint16_t>(what)});
    bulk.since = 0;
}

} // namespace

efaprof_bulk *efaprof_bulk_open(uint32_t rank, uint32_t ranks, const char *emulated, const char *options) {
    auto *bulk = static_cast<efaprof_bulk *>(calloc(1, sizeof(efaprof_bulk)));
    if (bulk == nullptr) return nullptr;
    bulk->rank = static_cast<uint16_t>(rank);
    bulk->ranks = static_cast<uint16_t>(ranks);
    efaprof_set_producer("dispatch");
    record_counter("job.rank", rank, GAUGE);
    record_counter("job.ranks", ranks, GAUGE);
    record_note("path: dense", 1);
    char text[EFAPROF_NAME_MAX];
    snprintf(text, sizeof text, "options: %s", options);
    record_note(text, 1);
    if (emulated != nullptr) {
        snprintf(text, sizeof text, "emulated: %s", emulated);
        record_note(text, 1);
    }
    return bulk;
}

void efaprof_bulk_begin_step(efaprof_bulk *bulk, uint32_t step, int kind) {
    efaprof_bulk_end_step(bulk);
    bulk->place = {step, 0, EFAPROF_PHASE_STEP};
    bulk->kind = static_cast<uint16_t>(kind);
    mark(*bulk, EFAPROF_PHASE_STEP);
    if (kind == EFAPROF_MOE_PAUSE) return;
    mark(*bulk, EFAPROF_PHASE_COMPUTE);
    bulk->since = efaprof_now();
}

void efaprof_bulk_end_step(efaprof_bulk *bulk) {
    computed(*bulk, EFAPROF_COMPUTE_STANDIN, efaprof_now());
}

void efaprof_bulk_enter(efaprof_bulk *bulk, uint32_t layer, int phase) {
    bool is_gather = phase == EFAPROF_BULK_ALL_GATHER;
    bulk->entered = efaprof_now();
    computed(*bulk, is_gather ? EFAPROF_COMPUTE_STANDIN : EFAPROF_COMPUTE_EXPERT, bulk->entered);
    bulk->place.layer = static_cast<uint16_t>(layer);
    mark(*bulk, is_gather ? EFAPROF_PHASE_DISPATCH : EFAPROF_PHASE_COMBINE);
    bulk->entered = efaprof_now();
}

void efaprof_bulk_leave(efaprof_bulk *bulk, uint32_t bytes) {
    uint64_t begin = bulk->entered, end = efaprof_now();
    for (uint16_t i = 1; i < bulk->ranks; i++) {
        auto peer = static_cast<uint16_t>((bulk->rank + i) % bulk->ranks);
        OpWords words = {op_of(*bulk, bulk->seq), bytes, peer, EFAPROF_X(EFAPROF_CMD_SIGNAL, EFAPROF_X_POSTED, 0)};
        record_stage(EFAPROF_STAGE_KERNEL, begin, begin, words);
        record_stage(EFAPROF_STAGE_LIBFABRIC, begin, begin, words);
        record_stage(EFAPROF_STAGE_NIC, begin, end, words);
        record_stage(EFAPROF_STAGE_TOLD, end, end, words);
        record_rx(end, end, RX_SIGNAL, peer, 0, bulk->collectives, 0);
        bulk->seq++;
    }
    // Who came last is not known here: the rank's own part ends with the collective, and so does the wait.
    record_wait(WAIT_FLUSH, begin, end, bulk->place, bulk->rank, {bulk->rank, 0, bulk->seq - 1, end}, 1);
    bulk->collectives++;
    mark(*bulk, EFAPROF_PHASE_COMPUTE);
    bulk->since = end;
}

void efaprof_bulk_verified(const efaprof_bulk * /*bulk*/, uint64_t tokens) {
    record_counter("verify.tokens", static_cast<int64_t>(tokens), COUNT);
    record_counter("verify.mismatches", 0, COUNT);
}

void efaprof_bulk_close(efaprof_bulk *bulk) {
    if (bulk == nullptr) return;
    efaprof_bulk_begin_step(bulk, bulk->place.step + 1, EFAPROF_MOE_PAUSE);
    free(bulk);
}
