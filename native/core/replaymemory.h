// Memory of replays: see replay.cpp.
#pragma once

#include "graph.h"

#include <atomic>
#include <stdlib.h>

namespace efaprof {

// Scenarios are replayed side by side, N at a time: what they share of a node is read once. Times of a graph that lasts
// about a second at most are kept in 32 bits, so that all that a report asks for are replayed in one pass.
template <typename Time, int N> struct Lanes {
    Time lane[N];
    Time &operator[](int at) { return lane[at]; }
    Time operator[](int at) const { return lane[at]; }
    void fill(Time time) {
        for (Time &one : lane)
            one = time;
    }
    void take_later(const Lanes &other) {
        for (int at = 0; at < N; at++)
            lane[at] = other.lane[at] > lane[at] ? other.lane[at] : lane[at];
    }
    // Each of them, and as much of the lag as its mask lets through.
    void set(const Lanes &from, Time lag, const Lanes &keep) {
        for (int at = 0; at < N; at++)
            lane[at] = from.lane[at] + (lag & keep.lane[at]);
    }
    void set(const Lanes &from, Time lag) {
        for (int at = 0; at < N; at++)
            lane[at] = from.lane[at] + lag;
    }
};
// As three vectors of four, which compilers otherwise take apart again.
template <> struct alignas(16) Lanes<int32_t, 12> {
    using Four = int32_t __attribute__((vector_size(16), may_alias));
    Four part[3];
    int32_t &operator[](int at) { return reinterpret_cast<int32_t *>(part)[at]; }
    int32_t operator[](int at) const { return part[at >> 2][at & 3]; }
    void fill(int32_t time) {
        for (Four &one : part)
            one = Four{time, time, time, time};
    }
    void take_later(const Lanes &other) {
        for (int at = 0; at < 3; at++)
            part[at] = other.part[at] > part[at] ? other.part[at] : part[at];
    }
    void set(const Lanes &from, int32_t lag, const Lanes &keep) {
        const Four all{lag, lag, lag, lag};
        for (int at = 0; at < 3; at++)
            part[at] = from.part[at] + (all & keep.part[at]);
    }
    void set(const Lanes &from, int32_t lag) {
        const Four all{lag, lag, lag, lag};
        for (int at = 0; at < 3; at++)
            part[at] = from.part[at] + all;
    }
};
template <typename Time> constexpr Time no_time() {
    return static_cast<Time>(uint64_t{1} << (8 * sizeof(Time) - 1));
}
constexpr int64_t NARROW_SPAN = (int64_t{1} << 30) - 1; // a time and a lag of that size add up without wrapping

// What is kept of a node, in one line of the cache: when it was recorded, and its time in every lane.
constexpr uint64_t LINE = 64;
template <typename Time, int N> struct alignas(LINE) Cell {
    Lanes<Time, N> times; // nothing where it was not recorded
    Time time;
    int8_t stage;
};
static_assert(sizeof(Cell<int32_t, 12>) == LINE && sizeof(Cell<int64_t, 6>) == LINE, "one line");

// A block of memory that outlives a replay: pages that come from the system have to be cleared, every time.
class Block {
public:
    explicit Block(uint64_t bytes) {
        for (Kept &one : kept_) {
            Kept *own = &one;
            if (own->is_taken.exchange(true, std::memory_order_acquire)) continue;
            if (own->bytes < bytes) {
                free(own->at);
                own->at = malloc(bytes);
                own->bytes = own->at == nullptr ? 0 : bytes;
            }
            kept_one_ = own;
            at_ = own->at;
            return;
        }
        at_ = malloc(bytes);
    }
    ~Block() {
        if (kept_one_ == nullptr) {
            free(at_);
            return;
        }
        if (kept_one_->bytes > MOST_KEPT) {
            free(kept_one_->at);
            kept_one_->at = nullptr;
            kept_one_->bytes = 0;
        }
        kept_one_->is_taken.store(false, std::memory_order_release);
    }
    Block(const Block &) = delete;
    Block &operator=(const Block &) = delete;
    void *at() const { return at_; }

private:
    struct Kept {
        std::atomic<bool> is_taken;
        void *at;
        uint64_t bytes;
    };
    static constexpr uint64_t MOST_KEPT = 128 << 20;
    static Kept kept_[4]; // as many as analyse side by side
    Kept *kept_one_ = nullptr;
    void *at_ = nullptr;
};
inline Block::Kept Block::kept_[4];

// Memory for the replay of one graph. Only the last cells are kept, which stay in the cache, and those of nodes that
// are asked for much later; when the NIC sent what is only kept where it has a limit.
template <typename Time, int N> class Memory {
public:
    using Row = Lanes<Time, N>;
    Memory(const efaprof_graph &graph, uint64_t ring, uint64_t far_ones, bool has_limit)
        : block_(LINE + (ring + far_ones) * sizeof *cells + graph.nodes * (sizeof *far_place + sizeof *is_kept) +
                 (has_limit ? graph.operations * (sizeof(Row) + sizeof(Time)) : 0)),
          mask(ring - 1) {
        if (block_.at() == nullptr) return;
        cells = reinterpret_cast<Cell<Time, N> *>((reinterpret_cast<uintptr_t>(block_.at()) + LINE - 1) & ~(LINE - 1));
        far_cells = cells + ring;
        auto *rows = reinterpret_cast<Row *>(far_cells + far_ones);
        recorded_departs = reinterpret_cast<Time *>(rows + (has_limit ? graph.operations : 0));
        far_place = reinterpret_cast<uint32_t *>(recorded_departs + (has_limit ? graph.operations : 0));
        is_kept = reinterpret_cast<uint8_t *>(far_place + graph.nodes);
        if (has_limit) departs = rows;
    }
    bool is_there() const { return cells != nullptr; }

private:
    Block block_;

public:
    Cell<Time, N> *cells = nullptr, *far_cells = nullptr;
    Row *departs = nullptr;
    Time *recorded_departs = nullptr;
    uint32_t *far_place = nullptr; // of each node that is kept, among far_cells
    uint8_t *is_kept = nullptr;    // of each node: in far_cells too
    uint64_t mask;                 // place → cell
};

} // namespace efaprof
