#include "rank.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>

#include "../proxy/loop.h"
#include "../proxy/wait.h"
#include "moe.h"

namespace efaprof::dispatch {

namespace {

constexpr uint64_t CACHE_LINE = 64;

void *map(size_t bytes, const char *what) {
    void *memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) fail(Cause::Failed, "%zu bytes for %s: %s", bytes, what, strerror(errno));
    return memory;
}

uint32_t thread_count(const Options &options) {
    if (options.threads != 0) return options.threads;
    cpu_set_t cpus;
    CPU_ZERO(&cpus);
    if (sched_getaffinity(0, sizeof cpus, &cpus) != 0) return 2;
    return static_cast<uint32_t>(CPU_COUNT(&cpus)) >= 4 * options.shape.ranks ? 3 : 2;
}

uint64_t ticks(const Job &job, uint64_t ns) {
    return static_cast<uint64_t>(static_cast<double>(ns) * job.ticks_per_ns);
}

Delays delays_of(const Job &job) {
    const Inject &inject = job.options.inject;
    return {ticks(job, inject.kernel_ns),    ticks(job, inject.ring_ns), ticks(job, inject.proxy_ns),
            ticks(job, inject.libfabric_ns), ticks(job, inject.nic_ns),  ticks(job, inject.rx_ns)};
}

void set_up(Engine &engine, const Job &job, uint32_t rank) {
    const protocol::Shape &shape = job.options.shape;
    engine.rank = engine.ring = static_cast<uint16_t>(rank);
    engine.ranks = static_cast<uint16_t>(shape.ranks);
    engine.channels = static_cast<uint16_t>(shape.channels);
    engine.slot_count = job.options.window;
    engine.delays = delays_of(job);
    engine.heap = protocol::heap_of(shape);
    engine.ring_capacity = job.options.ring;
    size_t words = size_t{shape.ranks} * (shape.channels + 1);
    engine.slots = static_cast<Slot *>(map(engine.slot_count * sizeof(Slot), "operations"));
    engine.commands = static_cast<protocol::Command *>(map(engine.ring_capacity * sizeof(protocol::Command), "a ring"));
    engine.ring_tail = static_cast<uint64_t *>(map(CACHE_LINE, "a ring"));
    engine.completed = static_cast<uint64_t *>(map(shape.ranks * sizeof(uint64_t), "counts"));
    engine.told = static_cast<Told *>(map(words * sizeof(Told), "signals"));
}

void connect(Engine &engine, Job &job, uint32_t threads) {
    const Options &options = job.options;
    FabricOptions fabric = {};
    fabric.provider = options.provider;
    fabric.needs_delivery = options.signal != SignalMode::Imm;
    fabric.is_shared = threads > 2;
    fabric.message_bytes = protocol::token_bytes(options.shape);
    fabric.queue_entries = (size_t{options.shape.ranks} + 1) * options.window;
    engine.fabric.open(fabric);
    engine.has_imm = engine.fabric.has_imm() && !options.has_no_imm;
    if (!engine.has_imm && options.signal == SignalMode::Imm)
        fail(Cause::Refused, "provider %s carries no immediate data: use --signal fence or fence-batch",
             engine.fabric.provider_name());
    size_t bytes = engine.heap.units * protocol::UNIT_BYTES;
    engine.memory = static_cast<uint8_t *>(map(bytes, "tokens"));
    engine.fabric.register_memory(engine.memory, bytes);
    job.contacts[engine.rank] = engine.fabric.contact();
    meet(job);
    engine.fabric.connect(job.contacts, engine.ranks);
    meet(job);
}

void record_identity(const Engine &engine, const Options &options) {
    record_counter("job.rank", engine.rank, GAUGE);
    record_counter("job.ranks", engine.ranks, GAUGE);
    record_note("emulated: kernel is a CPU thread", 1);
    const struct {
        const char *name;
        uint64_t ns;
    } INJECTED[] = {{"inject.kernel", options.inject.kernel_ns}, {"inject.ring", options.inject.ring_ns},
                    {"inject.proxy", options.inject.proxy_ns},   {"inject.libfabric", options.inject.libfabric_ns},
                    {"inject.nic", options.inject.nic_ns},       {"inject.rx", options.inject.rx_ns}};
    for (const auto &layer : INJECTED) {
        if (layer.ns != 0) record_note(layer.name, layer.ns);
    }
    if (options.late_ns[engine.rank] != 0) record_note("late", options.late_ns[engine.rank]);
}

class Steps {
public:
    Steps(Engine &engine, Lane &lane, const Job &job)
        : lane_(lane), job_(job), options_(job.options), moe_(engine, lane, options_),
          compute_(ticks(job, options_.compute_ns + options_.late_ns[engine.rank])) {}

    // Returns the wall time of the counted steps, in ticks.
    uint64_t run() {
        uint32_t all = options_.warmup + options_.steps;
        uint64_t start = efaprof_now();
        for (uint32_t step = 0; step < all; step++) {
            if (step == options_.warmup) start = efaprof_now();
            run_step(step);
        }
        uint64_t end = efaprof_now();
        lane_.mark({all, 0, EFAPROF_PHASE_STEP}, false);
        lane_.drain();
        return end - start;
    }
    uint64_t verified() const { return moe_.verified(); }

private:
    void mark(uint32_t step, uint32_t layer, efaprof_phase phase) {
        lane_.mark({step, static_cast<uint16_t>(layer), phase}, step < options_.warmup);
    }

    void run_step(uint32_t step) {
        mark(step, 0, EFAPROF_PHASE_STEP);
        for (uint32_t layer = 0; layer < options_.layers; layer++) {
            mark(step, layer, EFAPROF_PHASE_COMPUTE);
            stand_in(step, layer);
            mark(step, layer, EFAPROF_PHASE_DISPATCH);
            moe_.dispatch();
            mark(step, layer, EFAPROF_PHASE_COMPUTE);
            moe_.experts();
            mark(step, layer, EFAPROF_PHASE_COMBINE);
            moe_.combine();
            mark(step, layer, EFAPROF_PHASE_COMPUTE);
            moe_.verify();
        }
        record_counter("verify.tokens", static_cast<int64_t>(moe_.verified()), COUNT);
        record_counter("verify.mismatches", static_cast<int64_t>(moe_.mismatches()), COUNT);
    }

    void stand_in(uint32_t step, uint32_t layer) {
        uint64_t begin = efaprof_now();
        moe_.fill(step, layer);
        if (compute_ != 0) wait_until(begin + compute_, job_.ticks_per_ns);
        lane_.record_compute(EFAPROF_COMPUTE_STANDIN, begin, efaprof_now(), 0);
    }

    Lane &lane_;
    const Job &job_;
    const Options &options_;
    Moe moe_;
    uint64_t compute_; // ticks
};

void report(Job &job, const Engine &engine, const Lane &lane, const Steps &steps, uint64_t wall, uint32_t threads) {
    Result &result = job.results[engine.rank];
    result.lane = lane.counts();
    result.verified = steps.verified();
    result.wall_ns = static_cast<uint64_t>(static_cast<double>(wall) / job.ticks_per_ns);
    result.threads = threads;
    result.has_imm = engine.has_imm;
    snprintf(result.provider, sizeof result.provider, "%s", engine.fabric.provider_name());
}

} // namespace

void run_rank(Job &job, uint32_t rank) {
    char name[16];
    snprintf(name, sizeof name, "lane%u", rank);
    pthread_setname_np(pthread_self(), name);
    prctl(PR_SET_TIMERSLACK, 1ul, 0ul, 0ul, 0ul); // waits of some 100 µs are to end on time
    set_stop(&job.stop, rank);
    efaprof_set_producer("dispatch");
    uint32_t threads = thread_count(job.options);
    static Engine engine; // zeroed, and far too large for a stack's taste
    set_up(engine, job, rank);
    connect(engine, job, threads);
    record_identity(engine, job.options);
    Threads others;
    others.start(engine, threads);
    RingCarrier ring(engine);
    Lane lane(engine, ring, {job.options.signal, job.options.timeout_s, job.ticks_per_ns});
    Steps steps(engine, lane, job);
    meet(job);
    uint64_t wall = steps.run();
    report(job, engine, lane, steps, wall, threads);
    meet(job); // peers may need this rank's progress until they are done too
    __atomic_store_n(&engine.is_over, 1u, __ATOMIC_RELEASE);
    others.join();
    meet(job);
    engine.fabric.close();
}

} // namespace efaprof::dispatch
