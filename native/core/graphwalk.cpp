#include "graph.h"

#include <stdlib.h>
#include <string.h>

namespace {

using efaprof::gate_edges;
using efaprof::Range;

constexpr uint64_t MOST_STUCK = 1 << 16;

// ---- order: depth first along predecessors
struct Frame {
    uint32_t node;
    uint32_t next; // edge to look at next: 0 before, 1 also, 2… gate edges
};
constexpr uint32_t UNSEEN = UINT32_MAX, OPEN = UINT32_MAX - 1; // places of nodes that have none yet

// Where a return says which one its NIC sent before: it leaves later.
int32_t *sent_before(const efaprof_graph &graph, uint32_t node) {
    if (graph.sent_before == nullptr || graph.service_ns == nullptr) return nullptr;
    const uint64_t sent = node - static_cast<uint64_t>(graph.return_stage) * graph.operations;
    return sent < graph.operations ? &graph.sent_before[sent] : nullptr;
}

// The edge's place, or null past the last one.
int32_t *edge(efaprof_graph &graph, const Frame &frame) {
    if (frame.next == 0) return &graph.before[frame.node];
    if (frame.next == 1) return &graph.also[frame.node];
    if (int32_t *sent = sent_before(graph, frame.node)) return frame.next == 2 ? sent : nullptr;
    Range more = gate_edges(graph, frame.node);
    uint64_t at = more.first + (frame.next - 2);
    return at < more.last ? &graph.gate_also[at] : nullptr;
}

class Order {
public:
    Order(efaprof_graph &graph, Frame *stack, const efaprof_order &result)
        : graph_(graph), stack_(stack), order_(result.order), place_(result.place), is_far_(result.is_far) {}

    void put(uint64_t node) {
        if (place_[node] != UNSEEN) return;
        const auto root = static_cast<uint32_t>(node);
        if (is_ready(root))
            close(root);
        else
            put_from(root);
    }
    // Stages lie far from each other: more places than a processor foresees.
    void fetch(uint64_t operation) const {
        for (uint64_t node = operation; node < graph_.stages * graph_.operations; node += graph_.operations) {
            __builtin_prefetch(&graph_.before[node]);
            __builtin_prefetch(&graph_.also[node]);
            __builtin_prefetch(&place_[node], 1);
        }
    }
    uint64_t cut() const { return cut_; }

private:
    // Nothing that a node other than a gate follows is still to be put.
    bool is_ready(uint32_t node) {
        if (node >= graph_.gate_base) return false;
        const int32_t *sent = sent_before(graph_, node);
        const int32_t before = graph_.before[node], also = graph_.also[node];
        if (!is_put(before) || !is_put(also) || (sent != nullptr && !is_put(*sent))) return false;
        look_back(before);
        look_back(also);
        return true;
    }
    bool is_put(int32_t from) const { return from < 0 || place_[from] < OPEN; }
    void look_back(int32_t from) {
        if (from >= 0 && placed_ - place_[from] >= EFAPROF_NEAR) is_far_[from] = 1;
    }
    void close(uint32_t node) {
        place_[node] = placed_;
        order_[placed_++] = node;
    }
    void put_from(uint32_t root) {
        uint64_t depth = 0;
        stack_[depth++] = {root, 0};
        place_[root] = OPEN;
        while (depth != 0) {
            Frame &top = stack_[depth - 1];
            int32_t *to = edge(graph_, top);
            if (to == nullptr) {
                for (Frame each{top.node, 0}; (to = edge(graph_, each)) != nullptr; each.next++)
                    look_back(*to);
                close(top.node);
                depth--;
                continue;
            }
            top.next++;
            if (is_put(*to)) continue;
            if (place_[*to] == OPEN) {
                *to = -1;
                cut_++;
                continue;
            }
            place_[*to] = OPEN;
            stack_[depth++] = {static_cast<uint32_t>(*to), 0};
        }
    }

    efaprof_graph &graph_;
    Frame *stack_;
    uint32_t *order_, *place_;
    uint8_t *is_far_;
    uint32_t placed_ = 0;
    uint64_t cut_ = 0;
};

// Operation by operation, and the rings side by side: what a stage follows was mostly put shortly before it, and is
// still in the cache. `next` has room for all operations.
void put_operations(const efaprof_graph &graph, uint32_t *next, Order &order) {
    constexpr uint32_t AT_ONCE = 16, IN_A_LINE = 16; // operations of a ring; their numbers in a line of the cache
    uint64_t rings = 0;
    for (uint64_t operation = 0; operation < graph.operations; operation++) {
        if (operation == 0 || graph.starts_ring[operation] != 0) next[rings++] = static_cast<uint32_t>(operation);
    }
    for (uint64_t left = graph.operations; left != 0;) {
        for (uint64_t ring = 0; ring < rings; ring++) {
            uint32_t at = next[ring];
            const uint32_t until = at + AT_ONCE;
            while (at < until && at < graph.operations && (at == next[ring] || graph.starts_ring[at] == 0)) {
                if (at % IN_A_LINE == 0 && at + IN_A_LINE < graph.operations) order.fetch(at + IN_A_LINE);
                for (uint64_t stage = 0; stage < graph.stages; stage++)
                    order.put(stage * graph.operations + at);
                at++;
                left--;
            }
            const bool is_over = at >= graph.operations || (at > next[ring] && graph.starts_ring[at] != 0);
            next[ring] = is_over ? static_cast<uint32_t>(graph.operations) : at;
        }
    }
}

// ---- walk
int32_t last_of(const efaprof_graph &graph, int32_t node) {
    int32_t best = graph.before[node];
    auto take = [&](int32_t other) {
        if (other >= 0 && (best < 0 || graph.time[other] > graph.time[best])) best = other;
    };
    take(graph.also[node]);
    Range more = gate_edges(graph, static_cast<uint64_t>(node));
    for (uint64_t at = more.first; at < more.last; at++)
        take(graph.gate_also[at]);
    return best;
}

int64_t covered_until(const efaprof_graph &graph, int32_t rank, int64_t time) {
    int64_t low = graph.compute_first[rank], first = low, high = graph.compute_first[rank + 1];
    while (low < high) { // first interval that begins after `time`
        int64_t middle = low + (high - low) / 2;
        if (graph.compute_begin[middle] <= time)
            low = middle + 1;
        else
            high = middle;
    }
    if (low == first) return first < graph.compute_first[rank + 1] ? graph.compute_before[first] : 0;
    int64_t end = graph.compute_end[low - 1] < time ? graph.compute_end[low - 1] : time;
    return graph.compute_before[low - 1] + end - graph.compute_begin[low - 1];
}

int64_t covered(const efaprof_graph &graph, int32_t rank, int64_t begin, int64_t end) {
    return covered_until(graph, rank, end) - covered_until(graph, rank, begin);
}

class Walk {
public:
    Walk(const efaprof_graph &graph, const efaprof_window &window, efaprof_walked &result, uint8_t *visited)
        : graph_(graph), operations_(static_cast<uint32_t>(graph.operations)), a_stage_(1.0 / operations_),
          window_(window), result_(result), visited_(visited) {}

    void run() {
        int32_t node = window_.start;
        int64_t time = graph_.time[node];
        uint64_t stuck = 0; // stamps that contradict each other can close a circle, in which time stands still
        for (bool is_first = true; time > window_.low && stuck < MOST_STUCK; is_first = false) {
            visit(node);
            if (is_away(node)) {
                stay_at_home(node, time);
                return;
            }
            int32_t from = last_of(graph_, node);
            if (is_first && from >= 0 && is_operation(from))
                result_.operation = static_cast<int32_t>(static_cast<uint32_t>(from) % operations_);
            int64_t reached = step(node, from, time);
            result_.ns[label_of(node, from)] += time - reached;
            if (reached < time) count(node, from, time - reached);
            stuck = reached < time ? 0 : stuck + 1;
            time = reached;
            node = from;
        }
        if (time > window_.low) result_.ns[graph_.missing_label] += time - window_.low;
    }

private:
    bool is_operation(int32_t node) const { return static_cast<uint64_t>(node) < graph_.stages * graph_.operations; }
    bool is_away(int32_t node) const {
        return window_.rank >= 0 && graph_.lane[node] >= 0 && graph_.lane[node] != window_.rank;
    }
    uint8_t label_of(int32_t node, int32_t from) const {
        if (from >= 0) return graph_.label[node];
        return graph_.lane[node] >= 0 ? graph_.idle_label : graph_.missing_label;
    }
    // As a division, which takes longer than all the rest; half a place off, rounding cannot reach the next stage.
    uint32_t stage_of(int32_t node) const { return static_cast<uint32_t>((node + 0.5) * a_stage_); }
    void visit(int32_t node) {
        if (!is_operation(node)) return;
        const uint32_t stage = stage_of(node);
        visited_[static_cast<uint32_t>(node) - stage * operations_] |=
            stage >= static_cast<uint32_t>(graph_.done_stage) ? 3 : 1;
    }
    void count(int32_t node, int32_t from, int64_t on_way) {
        if (!is_operation(node) || from < 0) return;
        const auto stage = static_cast<int32_t>(stage_of(node));
        const int64_t whole = graph_.time[node] - graph_.time[from];
        if (stage != graph_.seen_stage || from == graph_.before[node])
            result_.walked[stage] += on_way == whole ? 1.0 : static_cast<double>(on_way) / static_cast<double>(whole);
    }
    // Time that the walk has reached after going from a node to the one before it.
    int64_t step(int32_t node, int32_t from, int64_t time) {
        if (from < 0) return window_.low; // what lies before is not known
        int64_t then = graph_.time[from];
        if (then > graph_.time[node]) result_.clip_ns += then - graph_.time[node];
        return then < window_.low ? window_.low : then < time ? then : time;
    }
    // The late lane is walked over the same time, to know what it did; where this rank computed meanwhile, it did.
    void stay_at_home(int32_t node, int64_t time) {
        result_.late_rank = graph_.lane[node];
        int64_t computing = covered(graph_, window_.rank, window_.low, time);
        result_.ns[graph_.compute_label] += computing;
        result_.ns[graph_.late_label] += time - window_.low - computing;
        for (uint64_t stuck = 0; time > window_.low && stuck < MOST_STUCK;) {
            int32_t from = last_of(graph_, node);
            int64_t reached = step(node, from, time);
            if (label_of(node, from) == graph_.compute_label)
                result_.late_own_ns += time - reached - covered(graph_, window_.rank, reached, time);
            stuck = reached < time ? 0 : stuck + 1;
            time = reached;
            node = from;
        }
    }

    const efaprof_graph &graph_;
    const uint32_t operations_;
    const double a_stage_;
    const efaprof_window &window_;
    efaprof_walked &result_;
    uint8_t *visited_;
};

} // namespace

extern "C" uint64_t efaprof_graph_order(struct efaprof_graph *graph, const struct efaprof_order *result) {
    // The second part of it is for the rings.
    auto *stack = static_cast<Frame *>(malloc((graph->nodes + 1 + graph->operations) * sizeof(Frame)));
    if (stack == nullptr) return UINT64_MAX;
    memset(result->place, 0xFF, graph->nodes * sizeof *result->place);
    memset(result->is_far, 0, graph->nodes);
    Order order(*graph, stack, *result);
    put_operations(*graph, reinterpret_cast<uint32_t *>(stack + graph->nodes + 1), order);
    for (uint64_t node = graph->stages * graph->operations; node < graph->nodes; node++)
        order.put(node);
    free(stack);
    return order.cut();
}

extern "C" void efaprof_graph_walk(const struct efaprof_graph *graph, const struct efaprof_window *windows, uint64_t n,
                                   struct efaprof_walked *results, uint8_t *visited) {
    for (uint64_t i = 0; i < n; i++) {
        memset(&results[i], 0, sizeof results[i]);
        results[i].late_rank = results[i].operation = -1;
        Walk(*graph, windows[i], results[i], visited).run();
    }
}
