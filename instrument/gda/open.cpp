#include "open.h"

#include "../workload/assemble.h"

namespace efaprof::dispatch {

void open_queues(Engine &engine, const Options &options, GdaQueuePair &pair) {
    map_memory(engine);
    auto most = static_cast<uint32_t>(protocol::power_of_two((options.shape.ranks + 1) * options.window));
    GdaOptions wanted = {options.posting.queues, options.posting.counts,
                         options.posting.send_queue != 0 ? options.posting.send_queue : options.window, most};
    FabricOptions fabric = {};
    fabric.provider = options.provider;
    fabric.message_bytes = protocol::token_bytes(options.shape);
    fabric.queue_entries = most;
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
