#include <efaprof/intervals.h>

#include <algorithm>
#include <stdlib.h>

namespace {

constexpr int64_t NO_TIME = INT64_MIN;

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
    auto *sorted = static_cast<Interval *>(malloc(n * sizeof(Interval)));
    if (sorted == nullptr) return UINT64_MAX;
    uint64_t kept = 0;
    for (uint64_t i = 0; i < n; i++) {
        if (adds(begin[i], end[i])) sorted[kept++] = {begin[i], end[i]};
    }
    std::sort(sorted, sorted + kept, [](const Interval &a, const Interval &b) { return a.begin < b.begin; });
    for (uint64_t i = 0; i < kept; i++)
        found.add(sorted[i].begin, sorted[i].end);
    free(sorted);
    return found.count();
}
