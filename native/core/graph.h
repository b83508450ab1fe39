// What walks and replays share: see efaprof/replay.h.
#pragma once

#include <efaprof/replay.h>

namespace efaprof {

constexpr int64_t NO_TIME = INT64_MIN;

struct Range {
    uint64_t first, last;
};

// Further predecessors of a node that is a gate, as places in gate_also; nothing for any other.
inline Range gate_edges(const efaprof_graph &graph, uint64_t node) {
    if (node < graph.gate_base || node >= graph.gate_base + graph.gates) return {0, 0};
    uint64_t gate = node - graph.gate_base;
    return {static_cast<uint64_t>(graph.gate_first[gate]), static_cast<uint64_t>(graph.gate_first[gate + 1])};
}

} // namespace efaprof
