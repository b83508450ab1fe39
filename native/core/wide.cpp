#include <efaprof/wide.h>

#include <malloc.h>
#include <string.h>

namespace {

constexpr int64_t NO_TIME = INT64_MIN;
constexpr uint64_t NO_CHUNK = UINT64_MAX;

// Goes on from the segment of the time before: records are nearly in order.
class Clock {
public:
    explicit Clock(const efaprof_clock_map &map) : map_(map) {}

    int64_t to_ns(int64_t ticks) {
        if (map_.n == 0) return ticks;
        while (at_ > 0 && ticks < map_.ticks[at_])
            at_--;
        while (at_ + 1 < map_.n && ticks >= map_.ticks[at_ + 1])
            at_++;
        return map_.base_ns[at_] + __builtin_lrint(static_cast<double>(ticks - map_.ticks[at_]) * map_.slope[at_]);
    }

private:
    const efaprof_clock_map &map_;
    uint64_t at_ = 0;
};

class Taker {
public:
    Taker(const efaprof_wide &wide, const efaprof_clock_map &clock, efaprof_arrivals &arrivals, efaprof_beside &beside)
        : wide_(wide), clock_(clock), arrivals_(arrivals), beside_(beside) {}

    // NO_CHUNK, or the chunk whose columns are missing.
    uint64_t take(const void *slots, uint64_t at) {
        const void *slot = static_cast<const unsigned char *>(slots) + at * EFAPROF_SLOT_BYTES;
        efaprof_stage record;
        memcpy(&record, slot, sizeof record);
        const uint16_t shape = record.h.kind >> 8;
        if (shape == EFAPROF_SHAPE_STAGE || shape == EFAPROF_SHAPE_POST) {
            if (record.h.kind == (EFAPROF_SHAPE_STAGE << 8 | EFAPROF_STAGE_COMPUTE))
                beside_.computes[beside_.computes_n++] = static_cast<uint32_t>(at);
            else
                return stage(slot, record);
        } else if (record.h.kind == (EFAPROF_SHAPE_RX << 8 | 1)) {
            efaprof_rx arrival;
            memcpy(&arrival, slot, sizeof arrival);
            arrived(arrival, time_of(record));
        } else if (shape == EFAPROF_SHAPE_WAIT) {
            beside_.waits[beside_.waits_n++] = static_cast<uint32_t>(at);
        }
        return NO_CHUNK;
    }

private:
    int64_t time_of(const efaprof_stage &record) { return clock_.to_ns(static_cast<int64_t>(record.h.t_end)); }
    uint64_t stage(const void *slot, const efaprof_stage &record) {
        const int32_t row = wide_.ring_row[record.op >> 48];
        if (row < 0 || (record.h.kind & 0xFF) == EFAPROF_STAGE_COMPUTE) return NO_CHUNK;
        const auto seq = static_cast<int64_t>(record.op & EFAPROF_SEQ_MASK);
        const int64_t *cuts = wide_.cuts + static_cast<uint64_t>(row) * (wide_.chunks + 1);
        if (seq < cuts[wide_.done] || seq >= cuts[wide_.chunks]) return NO_CHUNK;
        const uint64_t chunk = chunk_of(cuts, seq);
        void *const *columns = wide_.columns + chunk * EFAPROF_WIDE_COLUMNS;
        if (columns[0] == nullptr) return chunk;
        const uint64_t at = wide_.first_row[static_cast<uint64_t>(row) * wide_.chunks + chunk] +
                            static_cast<uint64_t>(seq - cuts[chunk]);
        const int64_t time_ns = time_of(record);
        if (record.h.kind >> 8 == EFAPROF_SHAPE_POST)
            put_post(slot, time_ns, columns, at);
        else
            put(record, time_ns, columns, at, chunk);
        return NO_CHUNK;
    }
    uint64_t chunk_of(const int64_t *cuts, int64_t seq) {
        if (last_ >= wide_.done && seq >= cuts[last_] && seq < cuts[last_ + 1]) return last_;
        uint64_t low = wide_.done, high = wide_.chunks; // cuts[low] <= seq < cuts[high]
        while (high - low > 1) {
            const uint64_t middle = low + (high - low) / 2;
            if (cuts[middle] <= seq)
                low = middle;
            else
                high = middle;
        }
        return last_ = low;
    }
    template <typename T> static T &cell(void *const *columns, int column, uint64_t at) {
        return static_cast<T *>(columns[column])[at];
    }
    static void identify(const efaprof_stage &record, void *const *columns, uint64_t at) {
        uint64_t words[4];
        memcpy(words, &record, sizeof words);
        cell<uint64_t>(columns, EFAPROF_WIDE_HEAD, at) = words[1];
        cell<uint64_t>(columns, EFAPROF_WIDE_TAIL, at) = words[3];
    }
    // Its first slot is a stage's. Published: its entry is written; returned: the doorbell was rung.
    void put_post(const void *slot, int64_t time_ns, void *const *columns, uint64_t at) {
        efaprof_post record;
        memcpy(&record, slot, sizeof record);
        efaprof_stage first;
        memcpy(&first, slot, sizeof first);
        const int64_t begin = static_cast<int64_t>(record.h.t_end) - record.h.dur;
        auto time = [&](int column) -> int64_t & { return cell<int64_t>(columns, column, at); };
        time(EFAPROF_WIDE_ENTER) = clock_.to_ns(begin);
        const int64_t rest = int64_t{record.turn} + record.fence + record.doorbell;
        time(EFAPROF_WIDE_PUBLISH) = clock_.to_ns(static_cast<int64_t>(record.h.t_end) - rest);
        time(EFAPROF_WIDE_RETURN) = time_ns;
        if (record.h.x & EFAPROF_X_FENCE) time(EFAPROF_WIDE_FENCED) = clock_.to_ns(begin + record.order);
        identify(first, columns, at);
    }
    void put(const efaprof_stage &record, int64_t time_ns, void *const *columns, uint64_t at, uint64_t chunk) {
        auto time = [&](int column) -> int64_t & { return cell<int64_t>(columns, column, at); };
        auto number = [&](int column) -> int16_t & { return cell<int16_t>(columns, column, at); };
        switch (record.h.kind & 0xFF) {
        case EFAPROF_STAGE_KERNEL: // its word on what the operation is is the last
            time(EFAPROF_WIDE_ENTER) = clock_.to_ns(static_cast<int64_t>(record.h.t_end) - record.h.dur);
            time(EFAPROF_WIDE_PUBLISH) = time_ns;
            identify(record, columns, at);
            break;
        case EFAPROF_STAGE_RING:
            time(EFAPROF_WIDE_SEEN) = time_ns;
            if (cell<uint64_t>(columns, EFAPROF_WIDE_HEAD, at) == 0) identify(record, columns, at);
            break;
        case EFAPROF_STAGE_FENCE: time(EFAPROF_WIDE_FENCED) = time_ns; break;
        case EFAPROF_STAGE_PROXY: time(EFAPROF_WIDE_CALL) = time_ns; break;
        case EFAPROF_STAGE_LIBFABRIC:
            time(EFAPROF_WIDE_RETURN) = time_ns;
            number(EFAPROF_WIDE_EAGAIN) = record.status;
            break;
        case EFAPROF_STAGE_NIC:
            wide_.completed[chunk] += time(EFAPROF_WIDE_DONE) == NO_TIME;
            time(EFAPROF_WIDE_DONE) = time_ns;
            number(EFAPROF_WIDE_ERROR) = record.status;
            number(EFAPROF_WIDE_OUTSTANDING) = record.depth;
            break;
        case EFAPROF_STAGE_TOLD: time(EFAPROF_WIDE_TOLD) = time_ns; break;
        default: break;
        }
    }
    void arrived(const efaprof_rx &record, int64_t time_ns) {
        const uint64_t at = arrivals_.n++;
        uint64_t seq = 0;
        memcpy(&seq, record.seq, sizeof record.seq);
        arrivals_.source[at] = record.src;
        arrivals_.channel[at] = record.channel;
        arrivals_.seq[at] = static_cast<int64_t>(seq);
        arrivals_.seen_ns[at] = clock_.to_ns(static_cast<int64_t>(record.h.t_end) - record.h.dur);
        arrivals_.end_ns[at] = time_ns;
        arrivals_.x[at] = record.h.x;
    }

    const efaprof_wide &wide_;
    Clock clock_;
    efaprof_arrivals &arrivals_;
    efaprof_beside &beside_;
    uint64_t last_ = 0;
};

} // namespace

extern "C" uint64_t efaprof_wide_take(const struct efaprof_wide *wide, const struct efaprof_clock_map *clock,
                                      const void *slots, const int64_t *starts, uint64_t low, uint64_t high,
                                      struct efaprof_arrivals *arrivals, struct efaprof_beside *beside,
                                      uint64_t *chunk) {
    Taker taker(*wide, *clock, *arrivals, *beside);
    if (starts != nullptr) {
        for (uint64_t i = low; i < high; i++) {
            *chunk = taker.take(slots, static_cast<uint64_t>(starts[i]));
            if (*chunk != NO_CHUNK) return i;
        }
        return high;
    }
    *chunk = NO_CHUNK;
    for (uint64_t at = low; at < high;) {
        efaprof_head head;
        memcpy(&head, static_cast<const unsigned char *>(slots) + at * EFAPROF_SLOT_BYTES, sizeof head);
        const uint32_t length = efaprof_slots(head.kind, head.x);
        if (length == 0 || length > high - at) return at;
        *chunk = taker.take(slots, at);
        if (*chunk != NO_CHUNK) return at;
        at += length;
    }
    return high;
}

extern "C" void efaprof_wide_describe(const uint64_t *head, const uint64_t *tail, const int64_t *rank, uint64_t n,
                                      int32_t kinds, const struct efaprof_described *result) {
    for (uint64_t i = 0; i < n; i++) {
        const bool is_known = head[i] != 0;
        const auto x = static_cast<int32_t>(head[i] >> 48), kind = x >> 12;
        const auto peer = static_cast<int32_t>(tail[i] >> 32 & 0xFFFF), channel = x & 0xFF;
        const bool is_numbered =
            (x & static_cast<int32_t>(EFAPROF_X_IMM)) != 0 || kind == EFAPROF_CMD_SIGNAL || kind == EFAPROF_CMD_BARRIER;
        result->kind[i] = kind < kinds ? kind : -1;
        result->peer[i] = is_known ? peer : -1;
        result->channel[i] = is_known ? channel : -1;
        result->bytes[i] = is_known ? static_cast<int64_t>(tail[i] & 0xFFFFFFFF) : -1;
        result->flow[i] = is_known && is_numbered ? rank[i] << 24 | int64_t{peer} << 8 | channel : -1;
        result->is_fenced[i] = (x & static_cast<int32_t>(EFAPROF_X_FENCE)) != 0;
        result->is_posted[i] = (x & static_cast<int32_t>(EFAPROF_X_POSTED)) != 0;
    }
}

extern "C" void efaprof_keep_memory(void) {
#ifdef __GLIBC__
    constexpr int LARGEST_KEPT = 32 << 20, MOST_KEPT = 512 << 20; // the first is the most that glibc takes
    mallopt(M_ARENA_MAX, 1);
    mallopt(M_MMAP_THRESHOLD, LARGEST_KEPT);
    mallopt(M_TRIM_THRESHOLD, MOST_KEPT);
#endif
}

extern "C" void efaprof_give_back_memory(void) {
#ifdef __GLIBC__
    malloc_trim(0);
#endif
}
