// index_guard SEED ROUNDS: efaprof_index over random slots, plausible records and every truncation of them, in memory
// that ends (and starts) at a page that cannot be read, so that one byte too far ends the program.
#include "probe.h"

#include <efaprof/drain.h>

namespace {

constexpr uint64_t kPage = 4096, kSlots = 512, kBytes = kSlots * EFAPROF_SLOT_BYTES;

unsigned char *fenced() {
    auto *map = static_cast<unsigned char *>(
        mmap(nullptr, kBytes + 2 * kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    if (map == MAP_FAILED || mprotect(map, kPage, PROT_NONE) != 0 ||
        mprotect(map + kPage + kBytes, kPage, PROT_NONE) != 0)
        probe::fail("mmap");
    return map + kPage;
}

void check(const unsigned char *slots, uint64_t n, uint32_t *starts, uint64_t max) {
    efaprof_index_result r;
    efaprof_index(slots, n, starts, max, &r);
    if (r.records > max || r.next > n || r.pads > n) probe::fail("result out of range");
    if (r.bad_slots != 0 && r.next + r.bad_slots != n) probe::fail("bad slots");
    uint64_t covered = r.pads;
    for (uint64_t i = 0; i < r.records; ++i) {
        efaprof_head head;
        memcpy(&head, slots + starts[i] * EFAPROF_SLOT_BYTES, sizeof head);
        const uint32_t size = efaprof_slots(head.kind, head.x);
        if (size == 0 || starts[i] + size > r.next) probe::fail("record not whole");
        covered += size;
    }
    if (covered != r.next) probe::fail("records do not add up");
    if (r.next == n || r.records == max || r.bad_slots != 0) return;
    efaprof_head head; // stopped before a record that is not whole
    memcpy(&head, slots + r.next * EFAPROF_SLOT_BYTES, sizeof head);
    if (efaprof_slots(head.kind, head.x) <= n - r.next) probe::fail("stopped too early");
}

} // namespace

int main(int argc, char **argv) {
    if (argc != 3) probe::fail("usage");
    uint64_t random = strtoull(argv[1], nullptr, 10);
    const uint64_t rounds = strtoull(argv[2], nullptr, 10);
    unsigned char *slots = fenced();
    auto *starts = reinterpret_cast<uint32_t *>(fenced());
    for (uint64_t round = 0; round < rounds; ++round) {
        for (uint64_t i = 0; i < kBytes; i += 8) {
            random = probe::mix(random);
            memcpy(slots + i, &random, 8);
        }
        if (round % 4 != 0) // records of every shape, some with an absurd x
            for (uint64_t at = 0; at < kSlots;) {
                random = probe::mix(random);
                const uint8_t shapes[] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 0x40, 0x41, 0x42, 0x43, 0x44, 0x45, 0x46, 0x47};
                const auto kind = EFAPROF_KIND(shapes[random % sizeof shapes], 1);
                const auto x = static_cast<uint16_t>(round % 4 == 3 ? random >> 40 : (random >> 40) % 65);
                const efaprof_head head{random, 0, kind, x};
                memcpy(slots + at * EFAPROF_SLOT_BYTES, &head, sizeof head);
                const uint32_t size = efaprof_slots(kind, x);
                at += size == 0 ? 1 : size;
            }
        check(slots, kSlots, starts, kSlots);
        check(slots, kSlots, starts, random % kSlots);
        for (uint64_t n = 0; n < 140; ++n) // the tail end, so that the fence lies right behind
            check(slots + kBytes - n * EFAPROF_SLOT_BYTES, n, starts + (kBytes / 4 - n), n);
    }
    return 0;
}
