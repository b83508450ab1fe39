#include "assemble.h"

#include <errno.h>
#include <sched.h>
#include <string.h>
#include <sys/mman.h>

#include "../proxy/record.h"
#include "../proxy/stop.h"

namespace efaprof::dispatch {

namespace {

constexpr uint64_t CACHE_LINE = 64;

void *map(size_t bytes, const char *what) {
    void *memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) fail(Cause::Failed, "%zu bytes for %s: %s", bytes, what, strerror(errno));
    return memory;
}

Delays delays_of(const Inject &inject, double ticks_per_ns) {
    auto ticks = [&](uint64_t ns) { return static_cast<uint64_t>(static_cast<double>(ns) * ticks_per_ns); };
    return {ticks(inject.kernel_ns),    ticks(inject.ring_ns), ticks(inject.proxy_ns),
            ticks(inject.libfabric_ns), ticks(inject.nic_ns),  ticks(inject.rx_ns)};
}

void unmap(void *memory, size_t bytes) {
    if (memory != nullptr) munmap(memory, bytes);
}

} // namespace

uint32_t thread_count(const Options &options) {
    if (options.path == Path::Gdaki) return 1;
    if (options.threads != 0) return options.threads;
    cpu_set_t cpus;
    CPU_ZERO(&cpus);
    if (sched_getaffinity(0, sizeof cpus, &cpus) != 0) return 2;
    return static_cast<uint32_t>(CPU_COUNT(&cpus)) >= (2 + 2 * options.proxies) * options.shape.ranks ? 3 : 2;
}

namespace {

void set_up_one(Engine &engine, const Options &options, double ticks_per_ns, uint32_t rank) {
    const protocol::Shape &shape = options.shape;
    engine.rank = static_cast<uint16_t>(rank);
    engine.ring = protocol::ring_number(rank, engine.proxy);
    engine.ranks = static_cast<uint16_t>(shape.ranks);
    engine.channels = static_cast<uint16_t>(shape.channels);
    engine.slot_count = options.window;
    engine.drain = options.drain;
    engine.has_more = options.has_more;
    engine.delays = delays_of(options.inject, ticks_per_ns);
    engine.heap = protocol::heap_of(shape);
    engine.ring_capacity = options.ring;
    size_t words = size_t{shape.ranks} * (shape.channels + 1);
    engine.slots = static_cast<Slot *>(map(engine.slot_count * sizeof(Slot), "operations"));
    engine.commands = static_cast<protocol::Command *>(map(engine.ring_capacity * sizeof(protocol::Command), "a ring"));
    engine.ring_tail = static_cast<uint64_t *>(map(CACHE_LINE, "a ring"));
    engine.completed = static_cast<uint64_t *>(map(shape.ranks * sizeof(uint64_t), "counts"));
    engine.told = static_cast<Told *>(map(words * sizeof(Told), "signals"));
}

void open_one(Engine &engine, const FabricOptions &fabric, const Options &options) {
    engine.fabric.open(fabric);
    engine.has_imm = engine.fabric.has_imm() && !options.has_no_imm;
    if (!engine.has_imm && options.signal == SignalMode::Imm)
        fail(Cause::Refused, "provider %s carries no immediate data: use --signal fence or fence-batch",
             engine.fabric.provider_name());
    if (engine.proxy == 0)
        map_memory(engine);
    else
        engine.memory = engine.of_rank->memory;
    engine.fabric.register_memory(engine.memory, engine.memory_bytes());
}

void take_down_one(Engine &engine) {
    size_t words = engine.word_index(engine.ranks, 0);
    engine.fabric.close();
    unmap(engine.slots, engine.slot_count * sizeof(Slot));
    unmap(engine.commands, engine.ring_capacity * sizeof(protocol::Command));
    unmap(engine.ring_tail, CACHE_LINE);
    unmap(engine.completed, engine.ranks * sizeof(uint64_t));
    unmap(engine.told, words * sizeof(Told));
}

} // namespace

void set_up(Engine *engines, const Options &options, double ticks_per_ns, uint32_t rank) {
    for (uint32_t proxy = 0; proxy < options.proxies; proxy++) {
        engines[proxy].proxy = static_cast<uint16_t>(proxy);
        engines[proxy].proxies = static_cast<uint16_t>(options.proxies);
        engines[proxy].of_rank = engines;
        set_up_one(engines[proxy], options, ticks_per_ns, rank);
    }
}

void map_memory(Engine &engine) {
    engine.memory = static_cast<uint8_t *>(map(engine.memory_bytes(), "tokens"));
}

void open_fabric(const Engine &engine, const Options &options, uint32_t threads) {
    FabricOptions fabric = {};
    fabric.provider = options.provider;
    fabric.needs_delivery = options.signal != SignalMode::Imm;
    fabric.is_shared = threads > 2;
    fabric.message_bytes = protocol::token_bytes(options.shape);
    fabric.queue_entries = (size_t{options.shape.ranks} + 1) * options.window;
    for (Engine &one : engine.all())
        open_one(one, fabric, options);
}

void record_identity(const Engine &engine, const Options &options) {
    record_counter("job.rank", engine.rank, GAUGE);
    record_counter("job.ranks", engine.ranks, GAUGE);
    if (options.device == Device::Cpu) record_note("emulated: kernel: a CPU thread", 1);
    if (options.device == Device::Cuda) record_note("emulated: payload: in pinned host memory, not in the GPU's", 1);
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

void take_down(const Engine &engine) {
    for (Engine &one : engine.all())
        take_down_one(one);
    unmap(engine.memory, engine.memory_bytes());
}

} // namespace efaprof::dispatch
