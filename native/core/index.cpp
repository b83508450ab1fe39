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

extern "C" void efaprof_heads(const void *slots, uint64_t n, int64_t *places, uint16_t *kinds, int64_t *t_end,
                              struct efaprof_index_result *index, struct efaprof_heads_result *result) {
    const auto *bytes = static_cast<const unsigned char *>(slots);
    memset(result, 0, sizeof *result);
    efaprof_index_result r{0, 0, 0, 0};
    int64_t least_step = INT64_MAX, first = INT64_MAX, last = INT64_MIN;
    while (r.next < n) {
        efaprof_head head;
        memcpy(&head, bytes + r.next * EFAPROF_SLOT_BYTES, sizeof head);
        const uint32_t length = efaprof_slots(head.kind, head.x);
        if (length == 0) {
            r.bad_slots = n - r.next;
            break;
        }
        if (length > n - r.next) break;
        if (head.kind == EFAPROF_PAD) {
            r.pads += length;
        } else {
            const auto time = static_cast<int64_t>(head.t_end);
            places[r.records] = static_cast<int64_t>(r.next);
            kinds[r.records] = head.kind;
            t_end[r.records] = time;
            result->shapes[head.kind >> 8]++;
            // Damaged times may be so far apart that their difference is no number.
            const int64_t step = r.records > 0
                                     ? static_cast<int64_t>(head.t_end - static_cast<uint64_t>(t_end[r.records - 1]))
                                     : INT64_MAX;
            if (step < least_step) least_step = step;
            if (time < first) first = time;
            if (time > last) last = time;
            r.records++;
        }
        r.next += length;
    }
    result->least_step = least_step;
    result->first = first;
    result->last = last;
    *index = r;
}
