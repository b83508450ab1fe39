// The stamps of two layers of one step, as a kernel would make them, turned into records: no GPU needed. Times are
// ticks of a clock that runs 2 ticks a ns of the GPU's, 1000 ticks ahead.
#include <stdlib.h>

#include "gpu/records.h"
#include "proxy/journal.h"

using namespace efaprof::dispatch;
namespace gpu = efaprof::gpu;

namespace {

constexpr uint64_t MASK = 127;

struct Maker {
    gpu::Stamp stamps[MASK + 1] = {};
    uint64_t count = 0, now = 10000; // ns of the GPU's clock

    void at(uint64_t after, gpu::StampKind kind, uint32_t value, uint16_t layer = 0) {
        now += after;
        stamps[count++ & MASK] = {now, value, kind, layer};
    }

    // Head is the number of the next command; it wraps inside the step.
    void layer(uint32_t number, uint32_t head) {
        at(100, gpu::STAMP_FILL_BEGIN, number);
        at(500, gpu::STAMP_LAYOUT_END, 0);
        at(50, gpu::STAMP_DISPATCH_BEGIN, head, static_cast<uint16_t>(number));
        at(10, gpu::STAMP_WAIT_BEGIN, head + 1);
        at(90, gpu::STAMP_WAIT_END, 7);
        at(20, gpu::STAMP_WAIT_BEGIN, head + 5);
        at(200, gpu::STAMP_WAIT_END, 9);
        at(1, gpu::STAMP_DISPATCH_END, head + 5, static_cast<uint16_t>(number));
        at(5, gpu::STAMP_EXPERTS_BEGIN, 0);
        at(300, gpu::STAMP_EXPERTS_END, 0);
        at(5, gpu::STAMP_COMBINE_BEGIN, head + 5, static_cast<uint16_t>(number));
        at(10, gpu::STAMP_WAIT_BEGIN, head + 6);
        at(60, gpu::STAMP_WAIT_END, 1);
        at(10, gpu::STAMP_WAIT_BEGIN, head + 8);
        at(150, gpu::STAMP_WAIT_END, 5);
        at(10, gpu::STAMP_WAIT_BEGIN, head + 10);
        at(100, gpu::STAMP_WAIT_END, 3);
        at(1, gpu::STAMP_COMBINE_END, head + 10, static_cast<uint16_t>(number));
        at(5, gpu::STAMP_REDUCE_BEGIN, 0);
        at(80, gpu::STAMP_REDUCE_END, 0);
        at(5, gpu::STAMP_VERIFY_BEGIN, 0);
        at(40, gpu::STAMP_VERIFY_END, 0);
    }
};

} // namespace

int main() {
    static Engine engine; // zeroed
    engine.rank = engine.ring = 1;
    engine.proxies = 1;
    engine.of_rank = &engine;
    engine.ranks = 3;
    engine.channels = 2;
    Journal journal = {};
    journal.clock = {10000, 21000, 2.0};
    journal.depth = 8;
    journal.handed =
        static_cast<Handover *>(calloc(engine.word_index(engine.ranks, 0) * journal.depth, sizeof(Handover)));
    journal.move_mask = 15;
    journal.moves = static_cast<Move *>(calloc(16, sizeof(Move)));
    engine.journal = &journal;
    // Signal n of a word has wire sequence 10·n; of each phase the one of rank 2, channel 1 (or the barrier) came last.
    for (uint32_t src = 0; src < engine.ranks; src += 2) {
        for (uint32_t channel = 0; channel <= engine.channels; channel++) {
            for (uint64_t n = 1; n <= 4; n++)
                journal.handover(engine.word_index(src, channel), n) = {10 * n, 20000 + n * 100 + src * 10 + channel};
        }
    }
    uint64_t base = 0xFFFFFFFFu - 3; // the number's low half wraps in the first dispatch
    const uint64_t prefixes[] = {base + 5, base + 7, base + 8, base + 10, base + 15, base + 18, base + 20};
    for (uint64_t prefix : prefixes)
        journal.note_move({prefix, 20000 + (prefix & 0xFF), prefix - 1, 1});
    static Maker maker;
    GpuRecords records(engine, 0, false);
    // The first head is told by a step of its own: a lane's numbers go on from there.
    for (uint64_t head = 0; head < base; head += 0x7FFFFFFF) {
        uint64_t first = maker.count;
        maker.at(0, gpu::STAMP_COMBINE_END, static_cast<uint32_t>(head));
        records.write(maker.stamps, MASK, first, maker.count);
    }
    uint64_t first = maker.count;
    maker.layer(0, static_cast<uint32_t>(base));
    maker.layer(1, static_cast<uint32_t>(base + 10));
    records.write(maker.stamps, MASK, first, maker.count);
    records.write_end(9, journal.clock.ticks_at(maker.now + 100));
    free(journal.handed);
    free(journal.moves);
    return records.violations() == 0 ? 0 : 1;
}
