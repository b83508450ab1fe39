// The protocol headers in a kernel: what the CUDA path will do on the device, compiled only.
#include "protocol/command.h"
#include "protocol/heap.h"
#include "protocol/routing.h"
#include "protocol/sequence.h"

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
