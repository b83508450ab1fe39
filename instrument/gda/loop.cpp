#include "loop.h"

#include <sys/mman.h>

#include "../proxy/wait.h"

namespace efaprof::dispatch {

Loop::Loop(const LoopOptions &options) : bytes_(options.bytes) {
    void *memory = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) fail(Cause::Failed, "%zu bytes: out of memory", bytes_);
    memory_ = static_cast<uint8_t *>(memory);
    FabricOptions fabric = {};
    fabric.provider = "efa-direct";
    fabric.queue_entries = options.completion_entries;
    GdaOptions wanted = {options.source, false, options.send_entries, options.completion_entries};
    pair_.prepare(wanted, fabric);
    bool has_fabric =
        options.source == QueueSource::Libfabric || (options.source == QueueSource::Auto && Fabric::is_offered(fabric));
    if (has_fabric) {
        fabric_.open(fabric);
        fabric_.register_memory(memory_, bytes_);
    }
    pair_.open(wanted, has_fabric ? &fabric_ : nullptr, memory_, bytes_);
    if (has_fabric && !pair_.is_libfabric()) fabric_.close();
    Contact contact = pair_.contact();
    pair_.connect(&contact, 1, 0);
}

Loop::~Loop() {
    pair_.close();
    fabric_.close();
    munmap(memory_, bytes_);
}

softefa_wqe Loop::write_of(uint32_t from, uint32_t to, uint32_t bytes, uint16_t id) {
    const GdaQueues &queues = pair_.queues();
    return protocol::build_write({queues.base + from, to, bytes, queues.lkey, 0, id, false}, queues.targets[0]);
}

void Loop::post(const softefa_wqe &wqe) {
    protocol::SendQueue &send = pair_.queues().send;
    uint64_t place = protocol::reserve(send, 1);
    protocol::write_entry(send, place, wqe);
    protocol::fence_system();
    protocol::ring_doorbell(send, place + 1);
}

bool Loop::next(protocol::Completion &found, double patience) {
    uint64_t begin = efaprof_now();
    for (Idle idle; !protocol::read_completion(pair_.queues().completions, found); idle.nothing()) {
        if (static_cast<double>(efaprof_now() - begin) > patience) return false;
    }
    protocol::tell_read(pair_.queues().completions);
    return true;
}

} // namespace efaprof::dispatch
