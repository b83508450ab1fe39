#include "graph.h"

#include <stdlib.h>

namespace {

using efaprof::gate_edges;
using efaprof::NO_TIME;
using efaprof::Range;

// Scenarios replayed side by side: what they share of a node is read once, and their times fit into the cache.
constexpr int LANES = 6;
struct Lanes {
    int64_t lane[LANES];
    int64_t &operator[](int at) { return lane[at]; }
    int64_t operator[](int at) const { return lane[at]; }
};
inline Lanes all(int64_t time) {
    Lanes made;
    for (int64_t &one : made.lane)
        one = time;
    return made;
}

// A node in its place of the order, with what a replay asks of it side by side; predecessors are places too.
struct Event {
    int64_t time;
    int32_t before, also; // -1: none
    uint8_t label;
    int8_t stage;  // -1: no operation's
    bool is_fixed; // stays where it was recorded, or was not recorded
};

// Memory for the replay of one graph; when the NIC sent what is only kept where it has a limit.
class Memory {
public:
    Memory(const efaprof_graph &graph, bool has_limit) : has_limit_(has_limit) {
        const uint64_t nodes = graph.nodes + 1, operations = graph.operations + 1;
        place = static_cast<uint32_t *>(malloc(nodes * sizeof *place));
        events = static_cast<Event *>(malloc(nodes * sizeof *events));
        times = static_cast<Lanes *>(malloc(nodes * sizeof *times));
        if (!has_limit) return;
        departs = static_cast<Lanes *>(malloc(operations * sizeof *departs));
        recorded_departs = static_cast<int64_t *>(malloc(operations * sizeof *recorded_departs));
    }
    ~Memory() {
        free(place);
        free(events);
        free(times);
        free(departs);
        free(recorded_departs);
    }
    Memory(const Memory &) = delete;
    Memory &operator=(const Memory &) = delete;

    bool is_there() const {
        const bool has_all = place != nullptr && events != nullptr && times != nullptr;
        return has_all && (!has_limit_ || (departs != nullptr && recorded_departs != nullptr));
    }

    uint32_t *place = nullptr; // of each node in the order
    Event *events = nullptr;
    Lanes *times = nullptr, *departs = nullptr;
    int64_t *recorded_departs = nullptr;

private:
    bool has_limit_;
};

void lay_out(const efaprof_graph &graph, const uint32_t *order, const uint8_t *frozen, Memory &memory) {
    for (uint64_t at = 0; at < graph.nodes; at++)
        memory.place[order[at]] = static_cast<uint32_t>(at);
    auto place_of = [&](int32_t node) { return node < 0 ? -1 : static_cast<int32_t>(memory.place[node]); };
    const uint64_t staged = graph.stages * graph.operations;
    for (uint64_t at = 0; at < graph.nodes; at++) {
        const uint32_t node = order[at];
        Event &event = memory.events[at];
        event.time = graph.time[node];
        event.before = place_of(graph.before[node]);
        event.also = place_of(graph.also[node]);
        event.label = graph.label[node];
        event.stage = static_cast<int8_t>(node < staged ? node / graph.operations : -1);
        event.is_fixed = event.time == NO_TIME || frozen[node] != 0;
    }
}

class Replay {
public:
    Replay(const efaprof_graph &graph, const uint32_t *order, const efaprof_scenario *scenarios, int lanes,
           const Memory &memory)
        : graph_(graph), order_(order), place_(memory.place), events_(memory.events), times_(memory.times),
          departs_(memory.departs), recorded_departs_(memory.recorded_departs) {
        for (int lane = 0; lane < LANES; lane++)
            take(lane, scenarios[lane < lanes ? lane : 0]);
        for (uint64_t i = 0; departs_ != nullptr && i < graph.operations; i++) {
            recorded_departs_[i] = NO_TIME;
            departs_[i] = all(NO_TIME);
        }
    }

    void run() {
        for (uint64_t at = 0; at < graph_.nodes; at++) {
            const Event &event = events_[at];
            if (event.is_fixed)
                times_[at] = all(event.time);
            else
                move(at, event, times_[at]);
            if (departs_ != nullptr && event.stage == graph_.return_stage) depart(at);
        }
    }

private:
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
    bool has_other_server(int lane, int32_t stage) const { return stage == graph_.seen_stage && servers_[lane] > 1; }
    uint64_t operation(uint64_t at) const { return order_[at] % graph_.operations; }

    void move(uint64_t at, const Event &event, Lanes &own) {
        // Past the return, an operation waits for its NIC, where that has a limit.
        const bool is_sent = departs_ != nullptr && event.stage > graph_.return_stage;
        const bool is_special = event.stage >= 0 && is_special_[event.stage];
        Lanes moved = all(NO_TIME);
        int64_t base = NO_TIME;
        follow(event.before, is_sent, base, moved);
        if (is_special)
            follow_unless_free(at, event, is_sent, base, moved);
        else
            follow(event.also, is_sent, base, moved);
        if (event.stage < 0) follow_gate(at, base, moved);
        if (base == NO_TIME) {
            own = all(event.time);
            return;
        }
        const int64_t lag = event.time - base;
        if (is_special || (lag > 0 && is_scaled_[event.label])) {
            for (int lane = 0; lane < LANES; lane++)
                moved[lane] = moved[lane] == NO_TIME ? event.time : moved[lane] + lag_of(lane, event, lag);
            own = moved;
        } else if (lag > 0) {
            const Lanes &keep = keep_[event.label];
            for (int lane = 0; lane < LANES; lane++)
                own[lane] = moved[lane] + (lag & keep[lane]);
        } else {
            for (int lane = 0; lane < LANES; lane++)
                own[lane] = moved[lane] + lag;
        }
    }
    int64_t lag_of(int lane, const Event &event, int64_t recorded) const {
        if (recorded <= 0) return recorded;
        if (event.stage >= 0 && event.stage == free_stage_[lane]) return 0;
        double scale = scale_[event.label][lane];
        if (scale == 1.0) return recorded;
        return static_cast<int64_t>(static_cast<double>(recorded) * scale + 0.5);
    }
    // What a node waits for: recorded, and in every lane.
    const Lanes &waited_for(int32_t from, bool is_sent, int64_t &was) const {
        if (is_sent && events_[from].stage == graph_.return_stage) {
            const uint64_t sent = operation(static_cast<uint64_t>(from));
            was = recorded_departs_[sent];
            return departs_[sent];
        }
        was = events_[from].time;
        return times_[from];
    }
    void follow(int32_t from, bool is_sent, int64_t &base, Lanes &moved) const {
        if (from < 0) return;
        int64_t was;
        const Lanes &is = waited_for(from, is_sent, was);
        if (was > base) base = was;
        for (int lane = 0; lane < LANES; lane++)
            moved[lane] = is[lane] > moved[lane] ? is[lane] : moved[lane];
    }
    void follow_gate(uint64_t at, int64_t &base, Lanes &moved) const {
        const Range more = gate_edges(graph_, order_[at]);
        for (uint64_t edge = more.first; edge < more.last; edge++) {
            const int32_t from = graph_.gate_also[edge];
            if (from >= 0) follow(static_cast<int32_t>(place_[from]), false, base, moved);
        }
    }
    // A free node does not wait for its other predecessor; with more servers a node waits for the one that gets free.
    void follow_unless_free(uint64_t at, const Event &event, bool is_sent, int64_t &base, Lanes &moved) const {
        if (event.also >= 0) {
            int64_t was;
            const Lanes &is = waited_for(event.also, is_sent, was);
            if (was > base) base = was;
            for (int lane = 0; lane < LANES; lane++) {
                const bool is_ignored = event.stage == free_stage_[lane] || has_other_server(lane, event.stage);
                if (!is_ignored && is[lane] > moved[lane]) moved[lane] = is[lane];
            }
        }
        for (int lane = 0; lane < LANES; lane++) {
            if (has_other_server(lane, event.stage)) follow_server(lane, at, moved);
        }
    }
    void follow_server(int lane, uint64_t at, Lanes &moved) const {
        uint64_t served = operation(at);
        for (int32_t back = 0; back < servers_[lane]; back++) {
            if (graph_.starts_ring[served] != 0) return;
            served--;
        }
        const uint32_t returned = place_[static_cast<uint64_t>(graph_.return_stage) * graph_.operations + served];
        // Stamps that contradict each other may put it later: then it stands where it was recorded.
        const int64_t time = returned < at ? times_[returned][lane] : events_[returned].time;
        if (time > moved[lane]) moved[lane] = time;
    }
    void depart(uint64_t at) {
        const uint64_t sent = operation(at);
        recorded_departs_[sent] = events_[at].time;
        departs_[sent] = times_[at];
        if (graph_.starts_ring[sent] != 0) return;
        recorded_departs_[sent] = after(recorded_departs_[sent - 1], recorded_departs_[sent], sent);
        for (int lane = 0; lane < LANES; lane++)
            departs_[sent][lane] = after(departs_[sent - 1][lane], departs_[sent][lane], sent);
    }
    int64_t after(int64_t before, int64_t own, uint64_t sent) const {
        if (before == NO_TIME || own == NO_TIME) return own;
        const int64_t free = before + graph_.service_ns[sent];
        return free > own ? free : own;
    }

    const efaprof_graph &graph_;
    const uint32_t *order_, *place_;
    const Event *events_;
    Lanes *times_, *departs_;
    int64_t *recorded_departs_;
    Lanes keep_[EFAPROF_LABELS];
    double scale_[EFAPROF_LABELS][LANES];
    bool is_scaled_[EFAPROF_LABELS] = {}, is_special_[EFAPROF_STAGES] = {};
    int32_t free_stage_[LANES], servers_[LANES];
};

} // namespace

extern "C" int efaprof_graph_replays(const struct efaprof_graph *graph, const uint32_t *order, const uint8_t *frozen,
                                     const struct efaprof_scenario *scenarios, uint64_t n, const int64_t *asked,
                                     uint64_t asked_n, int64_t *times) {
    Memory memory(*graph, graph->service_ns != nullptr);
    if (!memory.is_there()) return -1;
    lay_out(*graph, order, frozen, memory);
    for (uint64_t first = 0; first < n; first += LANES) {
        const int lanes = n - first < LANES ? static_cast<int>(n - first) : LANES;
        Replay(*graph, order, scenarios + first, lanes, memory).run();
        for (uint64_t i = 0; i < asked_n; i++) {
            for (int lane = 0; lane < lanes; lane++)
                times[i * n + first + static_cast<uint64_t>(lane)] = memory.times[memory.place[asked[i]]][lane];
        }
    }
    return 0;
}
