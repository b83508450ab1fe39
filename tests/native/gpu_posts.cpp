// What a kernel stamped of operations that it posted and of arrivals, turned into records in two goes: no GPU needed.
// The clock is that of gpu_stamps.cpp: 2 ticks a ns of the GPU's, 1000 ticks ahead.
#include <stdlib.h>

#include "gpu/posts.h"
#include "proxy/journal.h"

using namespace efaprof::dispatch;
namespace gpu = efaprof::gpu;
namespace protocol = efaprof::protocol;

namespace {

constexpr uint64_t CAPACITY = 8, OPERATIONS = 10; // they lap the ring

gpu::PostStamp posted(uint64_t number, uint64_t done) {
    gpu::PostStamp stamp = {};
    stamp.done = done;
    stamp.enter = 10000 + 100 * number;
    uint32_t *ends[] = {&stamp.ordered, &stamp.slot,   &stamp.space, &stamp.built,
                        &stamp.turn,    &stamp.fenced, &stamp.rung};
    for (uint32_t i = 0; i < 7; i++)
        *ends[i] = (i + 1) * (i + 2) / 2; // the parts take 1, 2, 3 … ns
    stamp.bytes = 64;
    stamp.peer = 2;
    stamp.kind = 1;
    stamp.channel = static_cast<uint8_t>(number % 2);
    stamp.flags = protocol::FLAG_IMM;
    stamp.batch = 5;
    stamp.in_flight = static_cast<uint32_t>(number);
    return stamp;
}

} // namespace

int main() {
    static Engine engine; // zeroed
    engine.rank = engine.ring = 1;
    engine.proxies = 1;
    engine.of_rank = &engine;
    engine.ranks = 3;
    engine.channels = 2;
    engine.has_imm = true;
    Journal journal = {};
    journal.clock = {10000, 21000, 2.0};
    journal.depth = 8;
    size_t words = engine.word_index(engine.ranks, 0);
    journal.handed = static_cast<Handover *>(calloc(words * journal.depth, sizeof(Handover)));
    journal.move_mask = 15;
    journal.moves = static_cast<Move *>(calloc(16, sizeof(Move)));
    engine.journal = &journal;
    static gpu::PostStamp posts[CAPACITY];
    // Rank 0 on channel 1: a put that was held for 40 ns, and the signal behind it.
    static gpu::ArrivalStamp arrivals[CAPACITY] = {
        {12000, protocol::pack_imm(0, 1, 0), 7},
        {11960, protocol::pack_imm(0, 1, 1), 47 | gpu::ARRIVAL_HELD},
        {12100, protocol::pack_imm(0, 1, 2), 9 | gpu::ARRIVAL_SIGNAL},
    };
    GpuPosts writer(engine, posts, arrivals, CAPACITY);
    for (uint64_t number = 0; number < 6; number++) // the third has not ended; the fourth ended before the second
        posts[number % CAPACITY] = posted(number, number == 2 ? 0 : number == 1 ? 13000 : 12000 + number);
    writer.write(6, 2);
    bool is_kept = journal.move_count == 2;
    posts[2].done = 14000;
    for (uint64_t number = 6; number < OPERATIONS; number++)
        posts[number % CAPACITY] = posted(number, 15000 + number);
    writer.write(OPERATIONS, 3);
    const Handover &signal = journal.handover(engine.word_index(0, 1), 1);
    const Move &last = journal.moves[OPERATIONS - 1], &fourth = journal.moves[3];
    is_kept = is_kept && journal.move_count == OPERATIONS && signal.wire_seq == 2 &&
              signal.t_sig == journal.clock.ticks_at(12109) && last.prefix == OPERATIONS &&
              last.t_told == journal.clock.ticks_at(15009) &&
              // The prefix came past the fourth when the third, whom it had overtaken, had ended.
              fourth.prefix == 4 && fourth.last_seq == 2 && fourth.t_told == journal.clock.ticks_at(14000);
    free(journal.handed);
    free(journal.moves);
    return is_kept ? 0 : 1;
}
