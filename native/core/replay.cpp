#include "replaymemory.h"

#include <string.h>

namespace {

using namespace efaprof;

// What a replay asks of a node.
template <typename Time> struct Event {
    Time time;
    int32_t before, also; // -1: none
    uint8_t label;
    int8_t stage;  // -1: no operation's
    bool is_fixed; // stays where it was recorded
};

template <typename Time, int N> class Replay {
public:
    using Row = Lanes<Time, N>;
    Replay(const efaprof_graph &graph, const efaprof_order &order, const uint8_t *frozen, int64_t origin,
           const efaprof_scenario *scenarios, int lanes, const Memory<Time, N> &memory)
        : graph_(graph), order_(order.order), place_(order.place), frozen_(frozen), origin_(origin), memory_(memory),
          departs_(memory.departs), recorded_departs_(memory.recorded_departs) {
        for (int lane = 0; lane < N; lane++)
            take(lane, scenarios[lane < lanes ? lane : 0]);
        for (uint64_t i = 0; departs_ != nullptr && i < graph.operations; i++) {
            recorded_departs_[i] = NONE;
            departs_[i] = filled(NONE);
        }
    }

    // False where a time does not fit.
    bool run() {
        const auto staged = static_cast<uint32_t>(graph_.stages * graph_.operations);
        // A division takes as long as all the rest; half a place off, rounding cannot reach the next stage.
        const double a_stage = graph_.operations != 0 ? 1.0 / static_cast<double>(graph_.operations) : 0.0;
        uint32_t kept = 0;
        for (uint64_t at = 0; at < graph_.nodes; at++) {
            const uint32_t node = order_[at];
            if (at + AHEAD < graph_.nodes) fetch(order_[at + AHEAD]);
            Cell<Time, N> &own = memory_.cells[at & memory_.mask];
            own.time = recorded(node);
            own.stage = static_cast<int8_t>(node < staged ? static_cast<int32_t>((node + 0.5) * a_stage) : -1);
            if (own.time != NONE) replay(at, node, own);
            if (memory_.is_kept[node]) {
                memory_.far_cells[kept] = own;
                memory_.far_place[node] = kept++;
            }
        }
        return fits_;
    }

private:
    static constexpr Time NONE = no_time<Time>();
    static constexpr uint64_t AHEAD = 32; // nodes
    // The order goes through many arrays at many places at once: more than a processor foresees.
    void fetch(uint32_t node) const {
        __builtin_prefetch(&graph_.time[node]);
        __builtin_prefetch(&graph_.before[node]);
        __builtin_prefetch(&graph_.also[node]);
        __builtin_prefetch(&graph_.label[node]);
        __builtin_prefetch(&place_[node]);
    }
    static Row filled(Time time) {
        Row made;
        made.fill(time);
        return made;
    }
    void replay(uint64_t at, uint32_t node, Cell<Time, N> &own) {
        const Event<Time> event{
            own.time, graph_.before[node], graph_.also[node], graph_.label[node], own.stage, frozen_[node] != 0,
        };
        if (event.is_fixed)
            own.times.fill(event.time);
        else
            move(at, event, own.times);
        if (departs_ != nullptr && event.stage == graph_.return_stage) depart(at, own);
    }
    // What was kept of a node before.
    const Cell<Time, N> &cell(uint64_t at, uint64_t node) const {
        const uint64_t place = place_[node];
        if (at - place <= memory_.mask) return memory_.cells[place & memory_.mask];
        return memory_.far_cells[memory_.far_place[node]];
    }
    void take(int lane, const efaprof_scenario &scenario) {
        for (int label = 0; label < EFAPROF_LABELS; label++) {
            double scale = scenario.scale[label];
            scale_[label][lane] = scale;
            keep_[label][lane] = scale == 1.0 ? -1 : 0;
            is_scaled_[label] = is_scaled_[label] || (scale != 0.0 && scale != 1.0);
        }
        free_stage_[lane] = scenario.free_stage;
        servers_[lane] = scenario.servers;
        if (scenario.free_stage >= 0) is_special_[scenario.free_stage] = true;
        if (scenario.servers > 1) is_special_[graph_.seen_stage] = true;
    }
    Time recorded(uint64_t node) const {
        const int64_t time = graph_.time[node];
        return time == NO_TIME ? NONE : static_cast<Time>(time - origin_);
    }
    bool has_other_server(int lane, int32_t stage) const { return stage == graph_.seen_stage && servers_[lane] > 1; }
    uint64_t operation(uint64_t at) const { return order_[at] % graph_.operations; }

    void move(uint64_t at, const Event<Time> &event, Row &own) {
        // Past the return, an operation waits for its NIC, where that has a limit.
        const bool is_sent = departs_ != nullptr && event.stage > graph_.return_stage;
        const bool is_special = event.stage >= 0 && is_special_[event.stage];
        Row moved = filled(NONE);
        Time base = NONE;
        follow(at, event.before, is_sent, base, moved);
        if (is_special)
            follow_unless_free(at, event, is_sent, base, moved);
        else
            follow(at, event.also, is_sent, base, moved);
        if (event.stage < 0) follow_gate(at, base, moved);
        if (base == NONE) {
            own = filled(event.time);
            return;
        }
        const Time lag = event.time - base;
        if (is_special || (lag > 0 && is_scaled_[event.label])) {
            for (int lane = 0; lane < N; lane++)
                moved[lane] = moved[lane] == NONE ? event.time : moved[lane] + lag_of(lane, event, lag);
            own = moved;
            if (lag < 0) check(own);
        } else if (lag > 0) {
            own.set(moved, lag, keep_[event.label]);
        } else {
            own.set(moved, lag);
            if (lag < 0) check(own);
        }
    }
    // Only lags below zero lead out of the recorded span.
    void check(const Row &own) {
        for (int lane = 0; sizeof(Time) < sizeof(int64_t) && lane < N; lane++)
            fits_ = fits_ && own[lane] >= -NARROW_SPAN;
    }
    Time lag_of(int lane, const Event<Time> &event, Time recorded) const {
        if (recorded <= 0) return recorded;
        if (event.stage >= 0 && event.stage == free_stage_[lane]) return 0;
        double scale = scale_[event.label][lane];
        if (scale == 1.0) return recorded;
        return static_cast<Time>(static_cast<double>(recorded) * scale + 0.5);
    }
    // What a node waits for: recorded, and in every lane.
    const Row &waited_for(uint64_t at, int32_t from, bool is_sent, Time &was) const {
        const Cell<Time, N> &found = cell(at, static_cast<uint64_t>(from));
        if (is_sent && found.stage == graph_.return_stage) {
            const uint64_t sent = static_cast<uint64_t>(from) % graph_.operations;
            was = recorded_departs_[sent];
            return departs_[sent];
        }
        was = found.time;
        return found.times;
    }
    void follow(uint64_t at, int32_t from, bool is_sent, Time &base, Row &moved) const {
        if (from < 0) return;
        Time was;
        const Row &is = waited_for(at, from, is_sent, was);
        if (was == NONE) return;
        if (was > base) base = was;
        moved.take_later(is);
    }
    void follow_gate(uint64_t at, Time &base, Row &moved) const {
        const Range more = gate_edges(graph_, order_[at]);
        for (uint64_t edge = more.first; edge < more.last; edge++) {
            follow(at, graph_.gate_also[edge], false, base, moved);
        }
    }
    // A free node does not wait for its other predecessor; with more servers a node waits for the one that gets free.
    void follow_unless_free(uint64_t at, const Event<Time> &event, bool is_sent, Time &base, Row &moved) const {
        if (event.also >= 0) {
            Time was;
            const Row &is = waited_for(at, event.also, is_sent, was);
            if (was > base) base = was;
            for (int lane = 0; was != NONE && lane < N; lane++) {
                const bool is_ignored = event.stage == free_stage_[lane] || has_other_server(lane, event.stage);
                if (!is_ignored && is[lane] > moved[lane]) moved[lane] = is[lane];
            }
        }
        for (int lane = 0; lane < N; lane++) {
            if (has_other_server(lane, event.stage)) follow_server(lane, at, moved);
        }
    }
    void follow_server(int lane, uint64_t at, Row &moved) const {
        uint64_t served = operation(at);
        for (int32_t back = 0; back < servers_[lane]; back++) {
            if (graph_.starts_ring[served] != 0) return;
            served--;
        }
        const uint64_t returned = static_cast<uint64_t>(graph_.return_stage) * graph_.operations + served;
        const Time then = recorded(returned);
        if (then == NONE) return;
        // Stamps that contradict each other may put it later: then it stands where it was recorded.
        const Time time = place_[returned] < at ? cell(at, returned).times[lane] : then;
        if (time > moved[lane]) moved[lane] = time;
    }
    void depart(uint64_t at, const Cell<Time, N> &own) {
        const uint64_t sent = operation(at);
        recorded_departs_[sent] = own.time;
        departs_[sent] = own.times;
        const int64_t before = sent_before(sent);
        if (before < 0) return;
        recorded_departs_[sent] = after(recorded_departs_[before], recorded_departs_[sent], sent);
        for (int lane = 0; lane < N; lane++)
            departs_[sent][lane] = after(departs_[before][lane], departs_[sent][lane], sent);
    }
    // The operation that the NIC sent before; -1: none.
    int64_t sent_before(uint64_t sent) const {
        if (graph_.sent_before == nullptr) return graph_.starts_ring[sent] != 0 ? -1 : static_cast<int64_t>(sent) - 1;
        const int32_t node = graph_.sent_before[sent];
        return node < 0 ? -1
                        : node - static_cast<int64_t>(graph_.return_stage) * static_cast<int64_t>(graph_.operations);
    }
    Time after(Time before, Time own, uint64_t sent) const {
        if (before == NONE || own == NONE) return own;
        const Time free = before + static_cast<Time>(graph_.service_ns[sent]);
        return free > own ? free : own;
    }

    const efaprof_graph &graph_;
    const uint32_t *order_, *place_;
    const uint8_t *frozen_;
    int64_t origin_;
    const Memory<Time, N> &memory_;
    Row *departs_;
    Time *recorded_departs_;
    Row keep_[EFAPROF_LABELS];
    double scale_[EFAPROF_LABELS][N];
    bool is_scaled_[EFAPROF_LABELS] = {}, is_special_[EFAPROF_STAGES] = {};
    int32_t free_stage_[N], servers_[N];
    bool fits_ = true;
};

bool has_servers(const efaprof_scenario *scenarios, uint64_t n) {
    for (uint64_t i = 0; i < n; i++) {
        if (scenarios[i].servers > 1) return true;
    }
    return false;
}

enum class Outcome { DONE, DOES_NOT_FIT, OUT_OF_MEMORY };

template <typename Time, int N>
Outcome replay(const efaprof_graph &graph, const efaprof_order &order, const uint8_t *frozen, int64_t origin,
               const efaprof_scenario *scenarios, uint64_t n, const int64_t *asked, uint64_t asked_n, int64_t *times) {
    // Who waits for a server that gets free looks for any operation, near or far.
    uint64_t ring = EFAPROF_NEAR, far_ones = asked_n;
    while (has_servers(scenarios, n) && ring < graph.nodes)
        ring *= 2;
    for (uint64_t node = 0; node < graph.nodes; node++)
        far_ones += order.is_far[node];
    const Memory<Time, N> memory(graph, ring, far_ones, graph.service_ns != nullptr);
    if (!memory.is_there()) return Outcome::OUT_OF_MEMORY;
    memcpy(memory.is_kept, order.is_far, graph.nodes);
    for (uint64_t i = 0; i < asked_n; i++)
        memory.is_kept[asked[i]] = 1;
    for (uint64_t first = 0; first < n; first += N) {
        const int lanes = n - first < N ? static_cast<int>(n - first) : N;
        if (!Replay<Time, N>(graph, order, frozen, origin, scenarios + first, lanes, memory).run())
            return Outcome::DOES_NOT_FIT;
        for (uint64_t i = 0; i < asked_n; i++) {
            const Cell<Time, N> &found = memory.far_cells[memory.far_place[asked[i]]];
            for (int lane = 0; lane < lanes; lane++)
                times[i * n + first + static_cast<uint64_t>(lane)] =
                    found.time == no_time<Time>() ? NO_TIME : origin + found.times[lane];
        }
    }
    return Outcome::DONE;
}

Outcome replay_narrow(const efaprof_graph &graph, const efaprof_order &order, const uint8_t *frozen, int64_t origin,
                      const efaprof_scenario *scenarios, uint64_t n, const int64_t *asked, uint64_t asked_n,
                      int64_t *times) {
    return replay<int32_t, 12>(graph, order, frozen, origin, scenarios, n, asked, asked_n, times);
}

#ifdef __x86_64__
// The same for processors with wider registers and a maximum of lanes in one instruction.
__attribute__((target("avx2"), flatten)) Outcome replay_narrow_avx2(const efaprof_graph &graph,
                                                                    const efaprof_order &order, const uint8_t *frozen,
                                                                    int64_t origin, const efaprof_scenario *scenarios,
                                                                    uint64_t n, const int64_t *asked, uint64_t asked_n,
                                                                    int64_t *times) {
    return replay<int32_t, 12>(graph, order, frozen, origin, scenarios, n, asked, asked_n, times);
}
bool has_avx2() {
    return __builtin_cpu_supports("avx2") != 0;
}
#else
constexpr auto replay_narrow_avx2 = replay_narrow;
constexpr bool has_avx2() {
    return false;
}
#endif

struct Span {
    int64_t first, last;
};

Span span_of(const efaprof_graph &graph) {
    Span found{INT64_MAX, INT64_MIN};
    for (uint64_t i = 0; i < graph.nodes; i++) {
        const int64_t time = graph.time[i];
        if (time == NO_TIME) continue;
        if (time < found.first) found.first = time;
        if (time > found.last) found.last = time;
    }
    return found;
}

// No replayed time can be later than the recorded one.
bool are_shortening(const efaprof_graph &graph, const efaprof_scenario *scenarios, uint64_t n) {
    if (has_servers(scenarios, n)) return false;
    for (uint64_t i = 0; i < n; i++) {
        for (const double scale : scenarios[i].scale) {
            if (!(scale <= 1.0)) return false;
        }
    }
    return graph.service_ns == nullptr;
}

} // namespace

extern "C" int efaprof_graph_replays(const struct efaprof_graph *graph, const struct efaprof_order *order,
                                     const uint8_t *frozen, const struct efaprof_scenario *scenarios, uint64_t n,
                                     const int64_t *asked, uint64_t asked_n, int64_t *times) {
    const Span span = span_of(*graph);
    auto found = Outcome::DOES_NOT_FIT;
    if (are_shortening(*graph, scenarios, n) && span.first <= span.last &&
        static_cast<uint64_t>(span.last) - static_cast<uint64_t>(span.first) < NARROW_SPAN)
        found = (has_avx2() ? replay_narrow_avx2 : replay_narrow)(*graph, *order, frozen, span.first, scenarios, n,
                                                                  asked, asked_n, times);
    if (found == Outcome::DOES_NOT_FIT)
        found = replay<int64_t, 6>(*graph, *order, frozen, 0, scenarios, n, asked, asked_n, times);
    return found == Outcome::DONE ? 0 : -1;
}
