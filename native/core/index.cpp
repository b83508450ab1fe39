#include <efaprof/drain.h>

#include <cstring>

extern "C" void efaprof_index(const void *slots, uint64_t n, uint32_t *starts, uint64_t max,
                              struct efaprof_index_result *result) {
    const auto *bytes = static_cast<const unsigned char *>(slots);
    efaprof_index_result r{0, 0, 0, 0};
    while (r.next < n && r.records < max && r.next <= UINT32_MAX) {
        const unsigned char *slot = bytes + r.next * EFAPROF_SLOT_BYTES;
        uint16_t kind, x;
        memcpy(&kind, slot + offsetof(efaprof_head, kind), sizeof kind);
        memcpy(&x, slot + offsetof(efaprof_head, x), sizeof x);
        const uint32_t length = efaprof_slots(kind, x);
        if (length == 0) {
            r.bad_slots = n - r.next;
            break;
        }
        if (length > n - r.next) break;
        if (kind == EFAPROF_PAD)
            r.pads += length;
        else
            starts[r.records++] = static_cast<uint32_t>(r.next);
        r.next += length;
    }
    *result = r;
}
