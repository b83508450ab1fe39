#include "open.h"

#include "../workload/assemble.h"

namespace efaprof::dispatch {

namespace {

constexpr uint64_t MOST_COMPLETIONS = 32768; // that an EFA device has in a queue

// A kernel on a GPU reads no completions while it packs and computes: all that peers send in a phase, and the barriers
// of the next, must find room.
uint64_t completions_for(const Options &options) {
    const protocol::Shape &shape = options.shape;
    uint64_t in_flight = (uint64_t{shape.ranks} + 1) * options.window, notices = 2;
    uint64_t phase = (shape.ranks - 1) * (uint64_t{shape.tokens} + notices + shape.channels + 1);
    uint64_t all = options.device == Device::Cuda ? in_flight + phase : in_flight;
    if (all > MOST_COMPLETIONS) all = in_flight > MOST_COMPLETIONS ? in_flight : MOST_COMPLETIONS;
    return protocol::power_of_two(all);
}

} // namespace

void open_queues(Engine &engine, const Options &options, GdaQueuePair &pair) {
    map_memory(engine);
    auto most = static_cast<uint32_t>(completions_for(options));
    GdaOptions wanted = {options.posting.queues, options.posting.counts,
                         options.posting.send_queue != 0 ? options.posting.send_queue : options.window, most};
    FabricOptions fabric = {};
    fabric.provider = options.provider;
    fabric.message_bytes = protocol::token_bytes(options.shape);
    fabric.queue_entries = most;
    pair.prepare(wanted, fabric);
    bool has_fabric =
        wanted.source == QueueSource::Libfabric || (wanted.source == QueueSource::Auto && Fabric::is_offered(fabric));
    if (has_fabric) {
        engine.fabric.open(fabric);
        engine.fabric.register_memory(engine.memory, engine.memory_bytes());
    }
    pair.open(wanted, has_fabric ? &engine.fabric : nullptr, engine.memory, engine.memory_bytes());
    if (has_fabric && !pair.is_libfabric()) engine.fabric.close();
    engine.has_imm = !wanted.counts;
}

} // namespace efaprof::dispatch
