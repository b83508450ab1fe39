#include <efaprof/intervals.h>

#include <algorithm>
#include <stdlib.h>

namespace {

constexpr int64_t NO_TIME = INT64_MIN;
constexpr uint64_t MOST_RUNS = 32; // beyond which plain sorting is no slower

struct Interval {
    int64_t begin, end;
};

class Union {
public:
    Union(int64_t *begin, int64_t *end, int64_t *before) : begin_(begin), end_(end), before_(before) {}

    // In order of begin.
    void add(int64_t begin, int64_t end) {
        if (count_ > 0 && begin <= end_[count_ - 1]) {
            if (end > end_[count_ - 1]) end_[count_ - 1] = end;
            return;
        }
        before_[count_] = count_ > 0 ? before_[count_ - 1] + end_[count_ - 1] - begin_[count_ - 1] : 0;
        begin_[count_] = begin;
        end_[count_++] = end;
    }
    uint64_t count() const { return count_; }

private:
    int64_t *begin_, *end_, *before_;
    uint64_t count_ = 0;
};

bool adds(int64_t begin, int64_t end) {
    return begin != NO_TIME && end > begin;
}

bool are_in_order(const int64_t *begin, const int64_t *end, uint64_t n) {
    int64_t last = NO_TIME;
    for (uint64_t i = 0; i < n; i++) {
        if (!adds(begin[i], end[i])) continue;
        if (begin[i] < last) return false;
        last = begin[i];
    }
    return true;
}

// What was in order before stays so: several series one after the other need one merge each.
const Interval *sort(Interval *from, Interval *to, uint64_t n) {
    auto is_before = [](const Interval &a, const Interval &b) { return a.begin < b.begin; };
    while (true) {
        uint64_t runs = 0;
        for (uint64_t low = 0; low < n; runs++) {
            const auto *middle = std::is_sorted_until(from + low, from + n, is_before);
            const auto *high = std::is_sorted_until(middle, static_cast<const Interval *>(from + n), is_before);
            std::merge(static_cast<const Interval *>(from + low), middle, middle, high, to + low, is_before);
            low = static_cast<uint64_t>(high - from);
        }
        if (runs <= 1) return to;
        if (runs > MOST_RUNS) {
            std::sort(to, to + n, is_before);
            return to;
        }
        std::swap(from, to);
    }
}

// Numbers up to and with a time; looked for from where the last one was found.
uint64_t count_until(const int64_t *sorted, uint64_t n, int64_t time, uint64_t hint) {
    uint64_t step = 1, low = hint, high = hint;
    if (hint > 0 && sorted[hint - 1] > time) {
        while (low > 0 && sorted[low - 1] > time) {
            high = low - 1;
            low = low > step ? low - step : 0;
            step *= 2;
        }
    } else {
        while (high < n && sorted[high] <= time) {
            low = high + 1;
            high = n - high > step ? high + step : n;
            step *= 2;
        }
    }
    return static_cast<uint64_t>(std::upper_bound(sorted + low, sorted + high, time) - sorted);
}

} // namespace

extern "C" uint64_t efaprof_union(const int64_t *begin, const int64_t *end, uint64_t n, int64_t *union_begin,
                                  int64_t *union_end, int64_t *covered_before) {
    Union found(union_begin, union_end, covered_before);
    if (are_in_order(begin, end, n)) {
        for (uint64_t i = 0; i < n; i++) {
            if (adds(begin[i], end[i])) found.add(begin[i], end[i]);
        }
        return found.count();
    }
    auto *both = static_cast<Interval *>(malloc(2 * n * sizeof(Interval)));
    if (both == nullptr) return UINT64_MAX;
    uint64_t kept = 0;
    for (uint64_t i = 0; i < n; i++) {
        if (adds(begin[i], end[i])) both[kept++] = {begin[i], end[i]};
    }
    const Interval *sorted = sort(both, both + n, kept);
    for (uint64_t i = 0; i < kept; i++)
        found.add(sorted[i].begin, sorted[i].end);
    free(both);
    return found.count();
}

extern "C" void efaprof_count_until(const int64_t *sorted, uint64_t n, const int64_t *times, uint64_t asked,
                                    int64_t *counts) {
    uint64_t at = 0;
    for (uint64_t i = 0; i < asked; i++)
        counts[i] = static_cast<int64_t>(at = count_until(sorted, n, times[i], at));
}

extern "C" void efaprof_covered(const int64_t *begin, const int64_t *end, const int64_t *before, uint64_t n,
                                const int64_t *from, const int64_t *until, uint64_t asked, int64_t *covered) {
    uint64_t first = 0, last = 0;
    auto reached = [&](int64_t time, uint64_t &at) -> int64_t {
        at = count_until(begin, n, time, at);
        if (at == 0) return 0;
        return before[at - 1] + std::min(time, end[at - 1]) - begin[at - 1];
    };
    for (uint64_t i = 0; i < asked; i++) {
        const int64_t low = reached(from[i], first);
        covered[i] = reached(until[i], last) - low;
    }
}
