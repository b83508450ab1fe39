// Walking and replaying what a run recorded, as a graph of events: for analysis only, never in a recorded process.
//
// Node i happened at time[i] (ns), after the last of its predecessors and a lag that belongs to one label:
//
//     time[i] = max over predecessors p of time[p]  +  lag[i]
//
// A node without predecessors stands where it was recorded. Nodes [0, stages·operations) are stages of operations,
// one stage after the other: node = stage·operations + operation; operations of one ring lie side by side, in order.
// Any node has up to two predecessors; gates, the nodes [gate_base, gate_base + gates), may have more.
#pragma once

#include <efaprof/trace.h>

#ifdef __cplusplus
extern "C" {
#endif

#define EFAPROF_LABELS 16
#define EFAPROF_STAGES 16 /* at most */

struct efaprof_graph {
    uint64_t nodes, operations, stages, gates, gate_base;
    const int64_t *time;       // INT64_MIN: not recorded; no node's predecessor
    int32_t *before, *also;    // predecessors, -1: none; `before` wins when both came at the same time
    const int32_t *gate_first; // gates + 1
    int32_t *gate_also;        // further predecessors of gate g: [gate_first[g], gate_first[g + 1]), -1: none
    const uint8_t *label;
    const int16_t *lane; // rank in whose order of doing things the node stands by itself; -1: in an operation's chain
    // Own computing, disjoint intervals in order; those of rank r at [compute_first[r], compute_first[r + 1]).
    const int64_t *compute_first, *compute_begin, *compute_end,
        *compute_before;        // before: covered since the first of all
    const uint8_t *starts_ring; // per operation: the one before it is of another ring
    const int64_t *service_ns;  // per operation, the least time that its NIC is busy with it; NULL: no limit is known
    int32_t *sent_before; // per operation, the return of the one before it at its NIC, -1: none; NULL: of its ring
    int32_t seen_stage, return_stage, done_stage; // stages from done_stage on are those of an operation's completion
    uint8_t compute_label, late_label, idle_label, missing_label;
};

// Nodes in an order in which predecessors come first: which node stands in each place, the place of each node, and
// which nodes one follows that is EFAPROF_NEAR places later or more. Room for all nodes.
#define EFAPROF_NEAR 4096
struct efaprof_order {
    uint32_t *order, *place;
    uint8_t *is_far;
};
// Edges that close a circle are cut (set to -1); returns how many, UINT64_MAX when out of memory.
EFAPROF_API uint64_t efaprof_graph_order(struct efaprof_graph *graph, const struct efaprof_order *result);

struct efaprof_window {
    int64_t low;   // the walk stops here
    int32_t start; // node where it begins, the window's end
    int32_t rank;  // whose window; -1: the job's
};
struct efaprof_walked {
    int64_t ns[EFAPROF_LABELS]; // these sum to time[start] − low
    // Nodes of each stage whose lag is on the way, one that the window's end cuts in part; of seen_stage only those
    // that waited for no other operation.
    double walked[EFAPROF_STAGES];
    int64_t late_own_ns; // of late_label: the part in which the late lane was computing
    int64_t clip_ns;     // by how much nodes on the way came before what they followed
    int32_t late_rank;   // the late lane, -1: none
    int32_t operation;   // operation that let the gate go, -1: none did
};
// Walks backward from the start of each window through the predecessor that came last. A rank's window that comes to
// another rank's lane stays at home for the rest: own computing, and late_label. The time of a node without
// predecessors is idle_label on a lane, else missing_label. `visited` has one byte an operation, that is or-ed with 1
// when it was walked over, and with 2 when its completion was.
EFAPROF_API void efaprof_graph_walk(const struct efaprof_graph *graph, const struct efaprof_window *windows, uint64_t n,
                                    struct efaprof_walked *results, uint8_t *visited);

struct efaprof_scenario {
    double scale[EFAPROF_LABELS]; // of the lags with this label; lags below zero stay as they are
    int32_t free_stage;           // nodes of this stage lose `also` and their lag; -1: none
    int32_t servers; // an operation is seen once the one this many places before has returned: 1 as recorded
};
// Times of `asked` nodes in each of n scenarios: times[i·n + s] of node asked[i]. Nodes with frozen[i] != 0 stay where
// they were recorded. 0, -1 when out of memory.
EFAPROF_API int efaprof_graph_replays(const struct efaprof_graph *graph, const struct efaprof_order *order,
                                      const uint8_t *frozen, const struct efaprof_scenario *scenarios, uint64_t n,
                                      const int64_t *asked, uint64_t asked_n, int64_t *times);

#ifdef __cplusplus
}
#endif
