// The protocol headers behind a C ABI, for tests/unit/instrument.
#include "protocol/command.h"
#include "protocol/heap.h"
#include "protocol/numerics.h"
#include "protocol/routing.h"
#include "protocol/sequence.h"

#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <time.h>

using namespace efaprof::protocol;

#define EXPORT extern "C" __attribute__((visibility("default")))

// ---- ring: a producer thread and this consumer ------------------------------------------------------
namespace {

struct Run {
    Producer ring;
    uint64_t commands;
};

void *produce(void *argument) {
    auto &run = *static_cast<Run *>(argument);
    for (uint64_t seq = 0; seq < run.commands; seq++) {
        while (!has_room(run.ring))
            sched_yield();
        auto word = static_cast<uint32_t>(mix(seq));
        publish(run.ring, {word, ~word, word / 3, static_cast<uint16_t>(word), static_cast<uint8_t>(word >> 8),
                           static_cast<uint8_t>(word >> 16), seq, 0, (word & 0xFFFFFFF0u) | FLAG_LAP});
    }
    return nullptr;
}

} // namespace

// Commands that did not come out as they went in, over as many laps as it takes; UINT64_MAX when it cannot run, or
// nothing came for 20 s (the producer then waits for ever, and leaves its memory behind).
EXPORT uint64_t test_ring(uint64_t capacity, uint64_t commands) {
    auto *slots = static_cast<Command *>(aligned_alloc(64, capacity * sizeof(Command)));
    static uint64_t tail; // outlives a producer that is left behind
    static Run run;
    uint64_t wrong = 0;
    tail = 0;
    pthread_t thread;
    if (slots == nullptr) return UINT64_MAX;
    for (uint64_t i = 0; i < capacity; i++)
        slots[i] = {};
    run = {{slots, &tail, capacity, 0, 0}, commands};
    if (pthread_create(&thread, nullptr, produce, &run) != 0) return UINT64_MAX;
    Consumer ring = {slots, &tail, capacity, 0, 0};
    time_t last = time(nullptr);
    while (ring.next < commands) {
        Command command;
        if (!peek(ring, command)) {
            write_tail(ring);
            sched_yield();
            if (time(nullptr) > last + 20) return UINT64_MAX;
            continue;
        }
        last = time(nullptr);
        auto word = static_cast<uint32_t>(mix(ring.next));
        bool is_right =
            command.src_off == word && command.dst_off == ~word && command.bytes == word / 3 &&
            command.peer == static_cast<uint16_t>(word) && command.kind == static_cast<uint8_t>(word >> 8) &&
            command.channel == static_cast<uint8_t>(word >> 16) && command.t_push == ring.next &&
            command.seq == static_cast<uint32_t>(ring.next) && (command.flags & 0xFFFFFFF0u) == (word & 0xFFFFFFF0u);
        wrong += is_right ? 0 : 1;
        take(ring);
    }
    pthread_join(thread, nullptr);
    free(slots);
    return wrong;
}

// Pushes `pushes` commands into an empty ring that starts at number `first`; returns what the consumer sees:
// how many are published, and in *waiting the depth as records carry it.
EXPORT uint64_t test_waiting(uint64_t capacity, uint64_t first, uint64_t pushes, uint8_t *waiting) {
    auto *slots = static_cast<Command *>(aligned_alloc(64, capacity * sizeof(Command)));
    uint64_t tail = first;
    for (uint64_t i = 0; i < capacity; i++)
        slots[i] = {};
    Producer producer = {slots, &tail, capacity, 0, 0};
    for (tail = 0; producer.head < first; tail = producer.head) // earlier laps, so that LAP bits are theirs
        publish(producer, {});
    producer.cached_tail = tail = first;
    uint64_t accepted = 0;
    for (; accepted < pushes && has_room(producer); accepted++)
        publish(producer, {});
    Consumer consumer = {slots, &tail, capacity, first, first};
    *waiting = waiting_log2(consumer);
    uint64_t seen = 0;
    for (Command command; peek(consumer, command); seen++)
        take(consumer);
    free(slots);
    return seen == accepted ? accepted : UINT64_MAX;
}

// ---- sequences ----------------------------------------------------------------------------------------
EXPORT uint32_t test_pack_imm(uint32_t src, uint32_t channel, uint64_t wire_seq) {
    return pack_imm(src, channel, wire_seq);
}
EXPORT int64_t test_unwrap(uint64_t next, uint16_t low) {
    return unwrap(next, low);
}
EXPORT uint32_t test_window_size() {
    return WINDOW;
}
EXPORT Window *test_window_new(uint64_t next) {
    auto *window = static_cast<Window *>(calloc(1, sizeof(Window)));
    if (window != nullptr) window->next = next;
    return window;
}
EXPORT void test_window_free(Window *window) {
    free(window);
}
EXPORT int test_window_arrive(Window *window, uint16_t low, int64_t *seq) {
    return static_cast<int>(arrive(*window, low, *seq));
}
EXPORT int test_window_hand_over(Window *window, uint64_t *seq) {
    return hand_over(*window, *seq) ? 1 : 0;
}

// ---- routing ------------------------------------------------------------------------------------------
EXPORT void test_route(uint64_t seed, uint32_t step, uint32_t layer, uint32_t rank, uint32_t token, uint32_t topk,
                       uint32_t experts, uint16_t *expert, uint8_t *weight) {
    Route route;
    route_token({seed, step, layer, rank, token}, topk, experts, route);
    for (uint32_t k = 0; k < topk; k++) {
        expert[k] = route.expert[k];
        weight[k] = route.weight[k];
    }
}
EXPORT int32_t test_value(uint64_t seed, uint32_t step, uint32_t layer, uint32_t rank, uint32_t token,
                          uint32_t element) {
    return token_value(token_values({seed, step, layer, rank, token}), element);
}

// ---- heap ---------------------------------------------------------------------------------------------
EXPORT void test_heap(const uint32_t *shape, uint64_t *out) {
    Heap heap = heap_of({shape[0], shape[1], shape[2], shape[3], shape[4], shape[5]});
    const uint64_t fields[] = {heap.token_units, heap.sum_units, heap.notice_units, heap.tokens,
                               heap.arrived,     heap.sums,      heap.returned,     heap.notices,
                               heap.notified,    heap.signals,   heap.flags,        heap.units};
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++)
        out[i] = fields[i];
}

// ---- numerics -----------------------------------------------------------------------------------------
EXPORT uint16_t test_bf16(float value) {
    return bf16_bits(value);
}
EXPORT float test_bf16_value(uint16_t bits) {
    return bf16_value(bits);
}
EXPORT uint8_t test_fp8(float value) {
    return fp8_bits(value);
}
EXPORT float test_fp8_value(uint8_t code) {
    return fp8_value(code);
}
// A token's payload on the wire, and its elements before (bf16).
EXPORT uint64_t test_payload(uint32_t hidden, uint32_t element_bytes, uint64_t seed, uint32_t token, uint8_t *payload,
                             uint16_t *elements) {
    Shape shape = {2, 8, hidden, 2, 4, 1, element_bytes};
    TokenId id = {seed, 1, 2, 0, token};
    for (uint32_t group = 0; group < group_count(shape); group++)
        reference_group(shape, id, group, payload);
    for (uint32_t element = 0; element < hidden; element++)
        elements[element] = token_element(id, element);
    return payload_bytes(shape);
}
EXPORT float test_payload_value(uint32_t hidden, uint32_t element_bytes, const uint8_t *payload, uint32_t element) {
    return payload_value({2, 8, hidden, 2, 4, 1, element_bytes}, payload, element);
}
EXPORT uint64_t test_enter(uint64_t ns) {
    return enter_ns(enter_flags(ns));
}
