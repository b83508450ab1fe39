// What a lane holds: memory of the device, pinned memory, and the caller's that it pins. For lane.cu alone.
#pragma once

#include <string.h>
#include <unistd.h>

#include "host.h"
#include "verify.cuh"

namespace efaprof::gpu {

constexpr uint32_t MOST_TRIPS = 4096;

struct Lane {
    Setup setup; // as the host sees it
    Kernel kernel;
    cudaStream_t stream;
    cudaStream_t callers; // where the last step of a model's ended
    bool has_callers;
    cudaGraph_t graphs[2];
    cudaGraphExec_t steps[2]; // the second without stamps, where steps take turns
    uint64_t launched;
    void *owned[32]; // device memory
    uint32_t owned_count;
    void *hosted[16]; // pinned memory of our own
    uint32_t hosted_count;
    void *registered[8 + 4 * protocol::MAX_PROXIES]; // the caller's, pinned
    uint32_t registered_count;
    uint64_t *stop;
    uint64_t *stamps_read;
    StepDone *done;
    ClockWords *clocks;
    Trip *trips;
};

namespace {

template <typename Item> const char *take(Lane &lane, Item *&memory, size_t count) {
    void *found = nullptr;
    EFAPROF_CUDA(cudaMalloc(&found, count * sizeof(Item)));
    lane.owned[lane.owned_count++] = found;
    EFAPROF_CUDA(cudaMemset(found, 0, count * sizeof(Item)));
    memory = static_cast<Item *>(found);
    return nullptr;
}

// Pinned, mapped memory: `host` for us, `device` for the kernels.
template <typename Item, typename Seen> const char *host_memory(Lane &lane, Item *&host, Seen *&device, size_t count) {
    void *found = nullptr, *seen = nullptr;
    EFAPROF_CUDA(cudaHostAlloc(&found, count * sizeof(Item), cudaHostAllocMapped));
    lane.hosted[lane.hosted_count++] = found;
    memset(found, 0, count * sizeof(Item));
    EFAPROF_CUDA(cudaHostGetDevicePointer(&seen, found, 0));
    host = static_cast<Item *>(found);
    device = static_cast<Seen *>(seen);
    return nullptr;
}

inline bool is_pinned(const Lane &lane, const void *page) {
    for (uint32_t i = 0; i < lane.registered_count; i++)
        if (lane.registered[i] == page) return true;
    return false;
}

// Pins the pages of the caller's memory; `memory` becomes what the kernels call it.
template <typename Item> const char *pin(Lane &lane, Item *&memory, size_t bytes) {
    auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
    auto start = reinterpret_cast<uintptr_t>(memory), first = start / page * page;
    size_t length = (start + bytes - first + page - 1) / page * page;
    void *device = nullptr;
    // Words of several rings may lie in one page.
    if (!is_pinned(lane, reinterpret_cast<void *>(first))) {
        EFAPROF_CUDA(cudaHostRegister(reinterpret_cast<void *>(first), length, cudaHostRegisterMapped));
        lane.registered[lane.registered_count++] = reinterpret_cast<void *>(first);
    }
    EFAPROF_CUDA(cudaHostGetDevicePointer(&device, reinterpret_cast<void *>(first), 0));
    memory = reinterpret_cast<Item *>(static_cast<uint8_t *>(device) + (start - first));
    return nullptr;
}

const char *pin_all(Lane &lane) {
    Setup &seen = lane.kernel.setup;
    size_t words = size_t{seen.shape.ranks} * (seen.shape.channels + 1);
    EFAPROF_TRY(pin(lane, seen.memory, seen.heap.units * protocol::UNIT_BYTES));
    for (uint32_t i = 0; i < seen.proxies; i++) {
        Ring &ring = seen.rings[i];
        EFAPROF_TRY(pin(lane, ring.commands, seen.ring_capacity * sizeof(Command)));
        EFAPROF_TRY(pin(lane, ring.tail, sizeof(uint64_t)));
        auto *told = static_cast<uint8_t *>(ring.told), *completions = static_cast<uint8_t *>(ring.completions);
        EFAPROF_TRY(pin(lane, told, words * seen.told_bytes));
        EFAPROF_TRY(pin(lane, completions, seen.completions_bytes));
        ring.told = told;
        ring.completions = completions;
    }
    return nullptr;
}

// Pins a device's ring and its doorbell; on the emulated device they lie in one mapping, the doorbell a page before.
template <typename Item> const char *pin_queue(Lane &lane, Item *&entries, uint32_t *&doorbell, size_t bytes) {
    auto *first = reinterpret_cast<uint8_t *>(doorbell);
    auto *start = reinterpret_cast<uint8_t *>(const_cast<uint64_t *>(reinterpret_cast<const uint64_t *>(entries)));
    auto page = static_cast<ptrdiff_t>(sysconf(_SC_PAGESIZE));
    if (first != nullptr && start - first > 0 && start - first <= page) {
        ptrdiff_t apart = start - first;
        EFAPROF_TRY(pin(lane, first, static_cast<size_t>(apart) + bytes));
        start = first + apart;
    } else {
        if (first != nullptr) EFAPROF_TRY(pin(lane, first, sizeof(uint32_t)));
        EFAPROF_TRY(pin(lane, start, bytes));
    }
    entries = reinterpret_cast<Item *>(start);
    doorbell = reinterpret_cast<uint32_t *>(first);
    return nullptr;
}

const char *pin_posting(Lane &lane, protocol::SendQueue &send, protocol::CqWatch &completions) {
    EFAPROF_TRY(pin_queue(lane, send.entries, send.doorbell, send.count * sizeof(softefa_wqe)));
    return pin_queue(lane, completions.entries, completions.doorbell,
                     size_t{completions.count} * completions.entry_bytes);
}

// Pins a counter's two words, which lie in one page.
const char *pin_counter(Lane &lane, protocol::CounterWatch &counter) {
    const uint64_t *first = counter.done < counter.errors ? counter.done : counter.errors, *start = first;
    auto apart = static_cast<size_t>((counter.done < counter.errors ? counter.errors : counter.done) - first);
    EFAPROF_TRY(pin(lane, first, (apart + 1) * sizeof *first));
    counter.done += first - start;
    counter.errors += first - start;
    return nullptr;
}

// What kernels that post by themselves have beside the ring's.
const char *open_posting(Lane &lane) {
    Kernel &k = lane.kernel;
    const Posting &posting = k.setup.posting;
    size_t words = size_t{k.setup.shape.ranks} * (k.setup.shape.channels + 1);
    PostState first = {posting.send, posting.completions, posting.counter, 0, 0, 0};
    EFAPROF_TRY(pin_posting(lane, first.send, first.completions));
    if (first.counter.done != nullptr) EFAPROF_TRY(pin_counter(lane, first.counter));
    EFAPROF_TRY(take(lane, k.post, 1));
    EFAPROF_CUDA(cudaMemcpy(k.post, &first, sizeof first, cudaMemcpyHostToDevice));
    EFAPROF_TRY(take(lane, k.flying, posting.window));
    EFAPROF_TRY(take(lane, k.posted, k.setup.shape.ranks));
    EFAPROF_TRY(take(lane, k.ended, k.setup.shape.ranks));
    EFAPROF_TRY(take(lane, k.windows, words));
    EFAPROF_TRY(take(lane, k.seen, words * protocol::WINDOW));
    EFAPROF_TRY(take(lane, k.arrived, words));
    EFAPROF_TRY(take(lane, k.targets, k.setup.shape.ranks));
    EFAPROF_CUDA(
        cudaMemcpy(k.targets, posting.targets, k.setup.shape.ranks * sizeof *posting.targets, cudaMemcpyHostToDevice));
    PostStamp *posts = nullptr;
    ArrivalStamp *arrivals = nullptr;
    EFAPROF_TRY(host_memory(lane, posts, k.post_stamps, posting.stamp_capacity));
    return host_memory(lane, arrivals, k.arrival_stamps, posting.stamp_capacity);
}

const char *allocate(Lane &lane) {
    const protocol::Shape &shape = lane.setup.shape;
    Kernel &k = lane.kernel;
    size_t tokens = shape.tokens, elements = tokens * shape.hidden, choices = tokens * shape.topk;
    EFAPROF_TRY(take(lane, k.state, 1));
    EFAPROF_TRY(take(lane, k.wire, size_t{shape.ranks} * (shape.channels + 1)));
    EFAPROF_TRY(take(lane, k.x, elements));
    EFAPROF_TRY(take(lane, k.topk_expert, choices));
    EFAPROF_TRY(take(lane, k.topk_weight, choices));
    EFAPROF_TRY(take(lane, k.slots, tokens * shape.ranks));
    EFAPROF_TRY(take(lane, k.sent, shape.ranks));
    EFAPROF_TRY(take(lane, k.sends, tokens * shape.ranks));
    EFAPROF_TRY(take(lane, k.send_count, 1));
    EFAPROF_TRY(take(lane, k.expert_counts, shape.experts));
    EFAPROF_TRY(take(lane, k.packed, tokens));
    EFAPROF_TRY(take(lane, k.received, shape.ranks));
    EFAPROF_TRY(take(lane, k.results, elements));
    State first = {};
    first.stamp_limit = lane.setup.stamp_capacity;
    EFAPROF_CUDA(cudaMemcpy(k.state, &first, sizeof first, cudaMemcpyHostToDevice));
    Stamp *stamps = nullptr;
    Span *spans = nullptr;
    uint16_t *sample = nullptr;
    EFAPROF_TRY(host_memory(lane, stamps, k.stamps, lane.setup.stamp_capacity));
    EFAPROF_TRY(host_memory(lane, spans, k.spans, size_t{lane.setup.layers} * 2));
    EFAPROF_TRY(host_memory(lane, sample, k.sample, shape.hidden));
    k.tokens = shape.tokens;
    EFAPROF_TRY(host_memory(lane, lane.done, k.done, 1));
    EFAPROF_TRY(host_memory(lane, lane.stop, k.stop, 1));
    EFAPROF_TRY(host_memory(lane, lane.stamps_read, k.stamps_read, 1));
    ClockWords *clocks = nullptr;
    Trip *trips = nullptr;
    EFAPROF_TRY(host_memory(lane, lane.clocks, clocks, 1));
    EFAPROF_TRY(host_memory(lane, lane.trips, trips, MOST_TRIPS));
    // Unified addressing: what the host calls them, the kernels do too.
    if (stamps != k.stamps || spans != k.spans || sample != k.sample || clocks != lane.clocks || trips != lane.trips)
        return failed("the device has no unified addressing");
    return nullptr;
}

} // namespace

} // namespace efaprof::gpu
