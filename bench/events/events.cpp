// bench_events RAW_DIR: one JSON line per measured thing. Run by bench/events.py, which sets EFAPROF_RING_DIR.
//
// Each kind of event is timed in batches; the kinds take turns, so that whatever disturbs the machine disturbs all of
// them. Between batches the ring is emptied, as the drain would.
#include <core/writer.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <efaprof/drain.h>
#include <vector>

namespace {

constexpr int kBatch = 1000, kRounds = 3000;

double now_ns() {
    timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    return static_cast<double>(at.tv_sec) * 1e9 + static_cast<double>(at.tv_nsec);
}

void empty_ring() {
    const efaprof::State &s = efaprof::t_state;
    if (s.header != nullptr) __atomic_store_n(&s.header->tail, s.header->head, __ATOMIC_RELEASE);
}

inline void keep(uint64_t value) {
    asm volatile("" ::"r"(value));
}

inline void write_stage(uint64_t t_end, uint32_t dur, uint64_t i) {
    auto *r = static_cast<efaprof_stage *>(efaprof::reserve(1));
    if (r == nullptr) return;
    r->h = {t_end, dur, EFAPROF_KIND(EFAPROF_SHAPE_STAGE, EFAPROF_STAGE_PROXY), 0};
    r->op = i;
    r->bytes = 4096;
    r->peer = 1;
    r->status = 0;
    r->depth = 3;
    efaprof::publish(r, 1);
}

inline void write_op(uint64_t t_end, uint32_t dur, uint64_t i) {
    auto *r = static_cast<efaprof_op *>(efaprof::reserve(2));
    if (r == nullptr) return;
    r->h = {t_end, dur, EFAPROF_KIND(EFAPROF_SHAPE_OP, EFAPROF_OP_WHAT(EFAPROF_OP_RMA, EFAPROF_FN_WRITE)), 0};
    r->ep = r->ctx = r->fi_addr = r->raddr = i;
    r->len = r->imm = r->flags = 7;
    r->eagain = 0;
    r->depth = r->nest = 0;
    efaprof::publish(r, 2);
}

void call_stage(uint64_t i) { // as a library that uses only the C functions
    auto *r = static_cast<efaprof_stage *>(efaprof_reserve(1));
    if (r == nullptr) return;
    r->h = {i, 0, EFAPROF_KIND(EFAPROF_SHAPE_STAGE, EFAPROF_STAGE_PROXY), 0};
    r->op = i;
    efaprof_publish(r, 1);
}

struct Kind {
    const char *name;
    void (*batch)();
    std::vector<double> ns = {};
};

template <typename Event> void many(Event event) {
    for (uint64_t i = 0; i < kBatch; ++i)
        event(i);
}

void fill_ring() {
    while (efaprof::reserve(1) != nullptr)
        efaprof::publish(nullptr, 1);
}

Kind g_kinds[] = {
    {"rdtsc", [] { many([](uint64_t) { keep(efaprof::now()); }); }},
    {"clock_gettime",
     [] {
         many([](uint64_t) {
             timespec at;
             clock_gettime(CLOCK_MONOTONIC, &at);
             keep(static_cast<uint64_t>(at.tv_nsec));
         });
     }},
    {"event_32", [] { many([](uint64_t i) { write_stage(i, 0, i); }); }},
    {"event_64", [] { many([](uint64_t i) { write_op(i, 0, i); }); }},
    {"event_32_call", [] { many(call_stage); }},
    {"event_32_one_stamp", [] { many([](uint64_t i) { write_stage(efaprof::now(), 0, i); }); }},
    {"event_64_one_stamp", [] { many([](uint64_t i) { write_op(efaprof::now(), 0, i); }); }},
    {"event_32_two_stamps",
     [] {
         many([](uint64_t i) {
             const uint64_t begin = efaprof::now();
             asm volatile("" ::: "memory");
             const uint64_t end = efaprof::now();
             write_stage(end, static_cast<uint32_t>(end - begin), i);
         });
     }},
    {"name_seen", [] { many([](uint64_t) { keep(efaprof::name("dispatch", 8)); }); }},
    {"dropped", [] { many([](uint64_t i) { write_stage(i, 0, i); }); }},
};

void measure_events() {
    efaprof::name("dispatch", 8);
    for (int round = 0; round < kRounds; ++round)
        for (Kind &kind : g_kinds) {
            empty_ring();
            if (&kind == std::end(g_kinds) - 1) fill_ring();
            const double begin = now_ns();
            kind.batch();
            kind.ns.push_back((now_ns() - begin) / kBatch);
        }
    for (Kind &kind : g_kinds) {
        std::sort(kind.ns.begin(), kind.ns.end());
        printf("{\"event\": \"%s\", \"min_ns\": %.3f, \"median_ns\": %.3f, \"p99_ns\": %.3f}\n", kind.name,
               kind.ns.front(), kind.ns[kind.ns.size() / 2], kind.ns[kind.ns.size() * 99 / 100]);
    }
}

void measure_drain(const char *raw_dir) {
    efaprof_drain *drain = efaprof_drain_open(getenv("EFAPROF_RING_DIR"), nullptr, raw_dir, 0);
    efaprof_drain_stats stats;
    if (drain == nullptr || efaprof_drain_poll(drain, 1, &stats) != 0) exit(1);
    std::vector<double> rate, idle_ns;
    for (int round = 0; round < 60; ++round) {
        fill_ring();
        const uint64_t before = stats.slots;
        const double begin = now_ns();
        if (efaprof_drain_poll(drain, 1, &stats) != 0) exit(1);
        const double copied = now_ns();
        efaprof_drain_poll(drain, 0, &stats);
        idle_ns.push_back(now_ns() - copied);
        rate.push_back(static_cast<double>(stats.slots - before) * EFAPROF_SLOT_BYTES / (copied - begin) * 1e3);
    }
    std::sort(rate.begin(), rate.end());
    std::sort(idle_ns.begin(), idle_ns.end());
    printf("{\"drain_mb_s_max\": %.0f, \"drain_mb_s_median\": %.0f, \"idle_poll_us_median\": %.2f}\n", rate.back(),
           rate[rate.size() / 2], idle_ns[idle_ns.size() / 2] / 1e3);
    unsetenv("EFAPROF_RING_DIR");
    efaprof_restart();
    efaprof_drain_close(drain, &stats);
}

} // namespace

int main(int argc, char **argv) {
    if (argc != 2) return 2;
    printf("{\"clock\": %u}\n", efaprof::clock_find());
    measure_events();
    measure_drain(argv[1]);
    return 0;
}
