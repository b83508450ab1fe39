// Work queue entries, doorbells and completions (instrument/protocol/wqe.h) behind a C ABI, for tests/unit/instrument.
#include "protocol/wqe.h"

#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>

using namespace efaprof::protocol;

#define EXPORT extern "C" __attribute__((visibility("default")))

// The 64 bytes of a write in place `place` of a queue of `count` entries.
EXPORT void test_wqe(uint64_t place, uint32_t count, uint64_t source, uint64_t offset, uint64_t base, uint32_t bytes,
                     uint32_t imm, int has_imm, uint16_t req_id, uint8_t *out) {
    auto *entries = static_cast<uint64_t *>(calloc(count, sizeof(softefa_wqe)));
    if (entries == nullptr) return;
    uint32_t doorbell = 0;
    SendQueue queue = {entries, &doorbell, count, 16, 0, 0};
    Target target = {base, 0xAABBCCDD, 0x11223344, 0x5566, 0x7788};
    write_entry(queue, place, build_write({source, offset, bytes, 0x123456, imm, req_id, has_imm != 0}, target));
    memcpy(out, entries + place % count * WQE_WORDS, sizeof(softefa_wqe));
    free(entries);
}

EXPORT int test_has_space(uint64_t place, uint64_t completed, uint32_t count) {
    SendQueue queue = {nullptr, nullptr, count, 16, 0, 0};
    return has_space(queue, place, completed);
}

// ---- several posters on one queue, and a device that reads it in order -----------------------------------
namespace {

struct Shared {
    SendQueue queue;
    uint64_t completed, posted;
    uint32_t batch;
};

void *post(void *argument) {
    auto &shared = *static_cast<Shared *>(argument);
    while (fetch_add(&shared.posted, shared.batch) < (1u << 14)) {
        uint64_t first = reserve(shared.queue, shared.batch);
        for (uint32_t i = 0; i < shared.batch; i++) {
            while (!has_space(shared.queue, first + i, load_acquire(&shared.completed)))
                sched_yield();
            softefa_wqe wqe = build_write({first + i, 0, 1, 0, 0, 0, false}, Target{});
            write_entry(shared.queue, first + i, wqe);
        }
        fence_system();
        while (!is_turn(shared.queue, first))
            sched_yield();
        ring_doorbell(shared.queue, first + shared.batch);
    }
    return nullptr;
}

} // namespace

// Entries that were not there, or not the next ones, when a doorbell had announced them; UINT64_MAX: it cannot run.
EXPORT uint64_t test_turns(uint32_t threads, uint32_t batch, uint32_t count) {
    static Shared shared;
    auto *entries = static_cast<uint64_t *>(calloc(count, sizeof(softefa_wqe)));
    uint32_t doorbell = 0;
    pthread_t posters[8];
    if (entries == nullptr || threads > 8 || batch > count) return UINT64_MAX;
    shared = {{entries, &doorbell, count, batch, 0, 0}, 0, 0, batch};
    for (uint32_t i = 0; i < threads; i++)
        if (pthread_create(&posters[i], nullptr, post, &shared) != 0) return UINT64_MAX;
    uint64_t wrong = 0, taken = 0;
    for (uint64_t idle = 0; taken < (1u << 14) && idle < 200000000;) {
        auto announced = static_cast<uint16_t>(__atomic_load_n(&doorbell, __ATOMIC_ACQUIRE) - taken);
        if (announced == 0) {
            idle++;
            sched_yield();
        }
        for (uint16_t i = 0; i < announced; i++, taken++) {
            softefa_wqe wqe;
            memcpy(&wqe, entries + taken % count * WQE_WORDS, sizeof wqe);
            bool is_next = wqe.u.rdma.local.addr_lo == static_cast<uint32_t>(taken);
            wrong += is_next && (wqe.meta.ctrl2 & SOFTEFA_CTRL2_PHASE) == (taken / count & 1) ? 0 : 1;
        }
        store_release(&shared.completed, taken);
    }
    if (taken < (1u << 14)) return UINT64_MAX; // the posters wait for ever: their memory stays
    for (uint32_t i = 0; i < threads; i++)
        pthread_join(posters[i], nullptr);
    free(entries);
    return wrong;
}

// ---- completions -----------------------------------------------------------------------------------------
// Looks once at a queue of `count` entries whose first `there` are in their lap `lap`; returns how many were found.
EXPORT uint32_t test_completions(uint64_t read, uint32_t count, uint32_t there, uint32_t status, uint32_t *ended) {
    auto *entries = static_cast<softefa_cqe *>(calloc(count, sizeof(softefa_cqe)));
    if (entries == nullptr) return UINT32_MAX;
    // Everything before `read` was read: entries hold the phase of the lap before, or none.
    for (uint64_t i = read < count ? 0 : read - count; i < read + there; i++) {
        softefa_cqe &entry = entries[i % count];
        entry.req_id = static_cast<uint16_t>(i);
        entry.status = static_cast<uint8_t>(status);
        entry.flags = static_cast<uint8_t>(SOFTEFA_SQ << SOFTEFA_CQE_QUEUE_SHIFT | ((i / count & 1) ^ 1));
    }
    uint32_t doorbell = 0, found = 0, failed = 0;
    CqWatch watch = {reinterpret_cast<uint8_t *>(entries), &doorbell, count, sizeof(softefa_cqe), read, 0};
    *ended = look(
        watch, [&](const Completion &one) { found += one.req_id == static_cast<uint16_t>(read + found); },
        [&](uint32_t more, const Completion &) { failed += more; });
    if (failed != (status == SOFTEFA_OK ? 0 : *ended) || (found != 0 && doorbell != ((read + found) & 0xffff)))
        found = UINT32_MAX;
    free(entries);
    return found;
}

// What a counter that went from `before` to `after` (31 bits) says has ended.
EXPORT uint64_t test_counter(uint64_t before, uint64_t after, uint64_t errors, uint64_t *failed) {
    uint64_t done = after & COUNTER_MASK, wrong = errors;
    CounterWatch watch = {&done, &wrong, before & COUNTER_MASK, 0, before};
    *failed = 0;
    look(
        watch, [](const Completion &) {}, [&](uint32_t more, const Completion &) { *failed += more; });
    return ended(watch);
}
