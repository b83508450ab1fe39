#include <efaprof/drain.h>

#include <cstring>

namespace {

// `keep` is called for each record.
template <typename Keep>
void heads(const void *slots, uint64_t n, Keep keep, efaprof_index_result &index, efaprof_heads_result &result) {
    const auto *bytes = static_cast<const unsigned char *>(slots);
    memset(&result, 0, sizeof result);
    efaprof_index_result r{0, 0, 0, 0};
    int64_t least_step = INT64_MAX, first = INT64_MAX, last = INT64_MIN;
    uint64_t time = 0, before = 0;
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
            before = time;
            time = head.t_end;
            keep(r.records, r.next, head);
            result.shapes[head.kind >> 8]++;
            // Damaged times may be so far apart that their difference is no number.
            const int64_t step = r.records > 0 ? static_cast<int64_t>(time - before) : INT64_MAX;
            const auto own = static_cast<int64_t>(time);
            if (r.records == 0) result.begin = own;
            if (step < least_step) least_step = step;
            if (own < first) first = own;
            if (own > last) last = own;
            r.records++;
        }
        r.next += length;
    }
    result.least_step = least_step;
    result.first = first;
    result.last = last;
    result.before_end = static_cast<int64_t>(before);
    result.end = static_cast<int64_t>(time);
    index = r;
}

} // namespace

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
    auto keep = [&](uint64_t record, uint64_t at, const efaprof_head &head) {
        places[record] = static_cast<int64_t>(at);
        kinds[record] = head.kind;
        t_end[record] = static_cast<int64_t>(head.t_end);
    };
    auto pass = [](uint64_t, uint64_t, const efaprof_head &) {};
    if (places != nullptr)
        heads(slots, n, keep, *index, *result);
    else
        heads(slots, n, pass, *index, *result);
}
