// The protocol headers in a kernel: what the CUDA path will do on the device, compiled only.
#include "protocol/command.h"
#include "protocol/heap.h"
#include "protocol/routing.h"
#include "protocol/sequence.h"
#include "protocol/wqe.h"

using namespace efaprof::protocol;

__global__ void send_tokens(Producer ring, Shape shape, uint64_t seed, Window *window, Signal *signal, uint64_t *out) {
    Heap heap = heap_of(shape);
    Route route;
    TokenId id = {seed, 0, 0, 0, threadIdx.x};
    route_token(id, shape.topk, shape.experts, route);
    for (uint32_t rank = 1; rank < shape.ranks; rank++) {
        if (!goes_to(route, shape.topk, shape.experts / shape.ranks, rank)) continue;
        while (!has_room(ring)) {
        }
        publish(ring,
                {static_cast<uint32_t>(heap.tokens), static_cast<uint32_t>(heap.arrived), heap.token_units * UNIT_BYTES,
                 static_cast<uint16_t>(rank), 1, 0, static_cast<uint64_t>(clock64()), 0, FLAG_IMM});
    }
    int64_t seq = 0;
    uint64_t handed = 0;
    arrive(*window, 0, seq);
    hand_over(*window, handed);
    out[threadIdx.x] = read_signal(*signal) + pack_imm(1, 2, handed) + static_cast<uint64_t>(unwrap(handed, 7)) +
                       static_cast<uint64_t>(token_value(token_values(id), 3)) +
                       static_cast<uint64_t>(expert_of(seed, route.expert[0]).scale);
}

struct Ends {
    uint64_t *seen;
    __device__ void operator()(const Completion &one) const { *seen += one.imm; }
    __device__ void operator()(uint32_t count, const Completion &) const { *seen += uint64_t{count} << 32; }
};

// One thread's share of a batch: writes its entry, and the last one of the batch rings for all.
template <typename Watch> __device__ void post_one(SendQueue *queue, Watch *watch, Target target, uint64_t *out) {
    uint64_t place = reserve(*queue, 1);
    while (!has_space(*queue, place, ended(*watch)))
        look(*watch, Ends{out}, Ends{out});
    write_entry(*queue, place, build_write({place, 64 * place, 64, 7, pack_imm(1, 2, place), 3, true}, target));
    fence_system();
    while (!is_turn(*queue, place)) {
    }
    ring_doorbell(*queue, place + 1);
}

__global__ void post(SendQueue *queue, CqWatch *cq, CounterWatch *counter, Target target, uint64_t *out) {
    post_one(queue, cq, target, out);
    post_one(queue, counter, target, out);
}
