#include <efaprof/wide.h>

#include <stdlib.h>
#include <string.h>

namespace {

constexpr uint64_t FIRST_SLOTS = 256;
constexpr uint16_t HELD = 1; // of an arrival's x

struct Flow {
    int64_t key;         // -1: free
    int64_t next;        // number
    int64_t base, count; // numbers given last: [base, base + count)
    int64_t first;       // where their rows are
};

uint64_t place(int64_t key, uint64_t slots) {
    return (static_cast<uint64_t>(key) * 0x9E3779B97F4A7C15ull >> 20) & (slots - 1);
}

} // namespace

struct efaprof_flows {
    Flow *flows; // open addressing
    uint64_t slots, used;
    int64_t *rows;     // by flow and number
    uint32_t *slot_of; // of each row
    uint64_t room;
};

namespace {

Flow *find(const efaprof_flows &flows, int64_t key) {
    for (uint64_t at = place(key, flows.slots);; at = (at + 1) & (flows.slots - 1)) {
        Flow &flow = flows.flows[at];
        if (flow.key == key || flow.key < 0) return &flow;
    }
}

bool open_slots(efaprof_flows &flows, uint64_t slots) {
    auto *made = static_cast<Flow *>(malloc(slots * sizeof(Flow)));
    if (made == nullptr) return false;
    for (uint64_t i = 0; i < slots; i++)
        made[i] = {-1, 0, 0, 0, 0};
    Flow *old = flows.flows;
    const uint64_t before = flows.slots;
    flows.flows = made;
    flows.slots = slots;
    for (uint64_t i = 0; i < before; i++) {
        if (old[i].key >= 0) *find(flows, old[i].key) = old[i];
    }
    free(old);
    return true;
}

bool make_room(efaprof_flows &flows, uint64_t rows) {
    if (rows <= flows.room) return true;
    free(flows.rows);
    free(flows.slot_of);
    flows.rows = static_cast<int64_t *>(malloc(rows * sizeof *flows.rows));
    flows.slot_of = static_cast<uint32_t *>(malloc(rows * sizeof *flows.slot_of));
    flows.room = flows.rows != nullptr && flows.slot_of != nullptr ? rows : 0;
    return flows.room == rows;
}

// Every flow in its slot: no row moves it any more.
bool enter(efaprof_flows &flows, const int64_t *key, uint64_t n) {
    for (uint64_t i = 0; i < n; i++) {
        if (key[i] < 0 || (i > 0 && key[i] == key[i - 1])) continue;
        Flow *flow = find(flows, key[i]);
        if (flow->key >= 0) continue;
        flow->key = key[i];
        if (++flows.used * 2 > flows.slots && !open_slots(flows, flows.slots * 2)) return false;
    }
    return true;
}

} // namespace

extern "C" struct efaprof_flows *efaprof_flows_open(void) {
    auto *flows = static_cast<efaprof_flows *>(calloc(1, sizeof(efaprof_flows)));
    if (flows != nullptr && open_slots(*flows, FIRST_SLOTS)) return flows;
    free(flows);
    return nullptr;
}

extern "C" void efaprof_flows_close(struct efaprof_flows *flows) {
    free(flows->flows);
    free(flows->rows);
    free(flows->slot_of);
    free(flows);
}

extern "C" int efaprof_flows_number(struct efaprof_flows *flows, const int64_t *key, uint64_t n, int64_t *number) {
    if (!make_room(*flows, n) || !enter(*flows, key, n)) return -1;
    for (uint64_t i = 0; i < flows->slots; i++) {
        flows->flows[i].base = flows->flows[i].next;
        flows->flows[i].count = 0;
    }
    for (uint64_t i = 0; i < n; i++) {
        number[i] = -1;
        if (key[i] < 0) continue;
        Flow *flow = find(*flows, key[i]);
        flows->slot_of[i] = static_cast<uint32_t>(flow - flows->flows);
        number[i] = flow->next++;
        flow->count++;
    }
    int64_t first = 0;
    for (uint64_t i = 0; i < flows->slots; i++) {
        flows->flows[i].first = first;
        first += flows->flows[i].count;
    }
    for (uint64_t i = 0; i < n; i++) {
        if (key[i] < 0) continue;
        const Flow &flow = flows->flows[flows->slot_of[i]];
        flows->rows[flow.first + number[i] - flow.base] = static_cast<int64_t>(i);
    }
    return 0;
}

extern "C" void efaprof_flows_arrive(const struct efaprof_flows *flows, const int64_t *key,
                                     const struct efaprof_arrivals *arrivals, int64_t *arrival_ns, int64_t *signal_ns,
                                     int8_t *is_held, uint8_t *is_later) {
    for (uint64_t i = 0; i < arrivals->n; i++) {
        const Flow &flow = *find(*flows, key[i]);
        const int64_t at = arrivals->seq[i] - flow.base;
        is_later[i] = flow.key < 0 || at >= flow.count;
        if (is_later[i] != 0 || at < 0) continue;
        const int64_t row = flows->rows[flow.first + at];
        signal_ns[row] = arrivals->end_ns[i];
        arrival_ns[row] = arrivals->seen_ns[i];
        is_held[row] = static_cast<int8_t>(arrivals->x[i] & HELD);
    }
}
