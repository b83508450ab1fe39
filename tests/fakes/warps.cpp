// libefaprof-cuda.so without a GPU: the kernels of instrument/cuda on a CPU (simt.h), every carrier. A launch runs the
// whole step at once. Everything that orders memory between a GPU and a host is out of its reach.
#include <cuda_bf16.h>
#include <cuda_fp8.h>
#include <cuda_runtime.h>

#include "simt.h"

namespace efaprof::gpu {
thread_local uint4 payload[8192]; // the verifying kernel's dynamic shared memory
}

#include "cuda/poster.cuh"
#include "cuda/posters.cuh"
#include "cuda/rings.cuh"
#include "cuda/verify.cuh"

namespace efaprof::gpu {

struct Lane {
    Kernel kernel;
    StepDone done;
    uint64_t stop, stamps_read;
};

namespace {

template <typename Item> void take(Item *&memory, size_t count) {
    constexpr size_t LINE = 128;
    size_t bytes = (count * sizeof(Item) + LINE - 1) / LINE * LINE;
    memory = static_cast<Item *>(memset(aligned_alloc(LINE, bytes), 0, bytes)); // as long as the process
}

void take_posting(Kernel &k, size_t words) {
    const Posting &posting = k.setup.posting;
    uint32_t ranks = k.setup.shape.ranks;
    take(k.post, 1);
    *k.post = {posting.send, posting.completions, posting.counter, 0, 0, 0};
    take(k.flying, posting.window);
    take(k.posted, ranks);
    take(k.ended, ranks);
    take(k.windows, words);
    take(k.seen, words * protocol::WINDOW);
    take(k.arrived, words);
    take(k.targets, ranks);
    memcpy(k.targets, posting.targets, ranks * sizeof *k.targets);
    take(k.post_stamps, posting.stamp_capacity);
    take(k.arrival_stamps, posting.stamp_capacity);
}

const char *open(const Setup *setup, Lane **made) {
    Lane *lane = nullptr;
    take(lane, 1);
    Kernel &k = lane->kernel;
    k.setup = *setup;
    const protocol::Shape &shape = setup->shape;
    size_t tokens = shape.tokens, words = size_t{shape.ranks} * (shape.channels + 1);
    take(k.state, 1);
    k.state->stamp_limit = setup->stamp_capacity;
    take(k.wire, words);
    take(k.x, tokens * shape.hidden);
    take(k.topk_expert, tokens * shape.topk);
    take(k.topk_weight, tokens * shape.topk);
    take(k.slots, tokens * shape.ranks);
    take(k.sent, shape.ranks);
    take(k.sends, tokens * shape.ranks);
    take(k.send_count, 1);
    take(k.expert_counts, shape.experts);
    take(k.packed, tokens);
    take(k.received, shape.ranks);
    take(k.results, tokens * shape.hidden);
    take(k.stamps, setup->stamp_capacity);
    take(k.spans, size_t{setup->layers} * 2);
    take(k.sample, shape.hidden);
    k.tokens = shape.tokens;
    k.stamps_read = &lane->stamps_read;
    k.done = &lane->done;
    k.stop = &lane->stop;
    if (setup->posting.is_on) take_posting(k, words);
    *made = lane;
    return nullptr;
}

template <template <bool> class CarrierOf, bool STAMPS> void run_step(const Kernel &k) {
    const protocol::Shape &shape = k.setup.shape;
    uint32_t tokens = shape.tokens, rows = shape.ranks * tokens;
    for (uint32_t layer = 0; layer < k.setup.layers; layer++) {
        simt::launch(tokens, BLOCK, [&] { fill<STAMPS>(k, layer); });
        simt::launch(1, LAYOUT_BLOCK, [&] { layout<STAMPS>(k); });
        simt::launch(1 + tokens, BLOCK, [&] { dispatch<CarrierOf, STAMPS>(k, layer); });
        simt::launch(rows, BLOCK, [&] { experts<STAMPS>(k, layer); });
        simt::launch(1, WARP, [&] { combine<CarrierOf, STAMPS>(k, layer); });
        simt::launch(tokens, BLOCK, [&] { reduce<STAMPS>(k); });
        simt::launch(rows + tokens + shape.ranks, BLOCK, [&] { verify<STAMPS>(k, layer); });
    }
    simt::launch(1, 1, [&] { end_step(k); });
}

template <template <bool> class CarrierOf> void run(const Kernel &k) {
    k.setup.has_stamps ? run_step<CarrierOf, true>(k) : run_step<CarrierOf, false>(k);
}

const char *launch(Lane *lane) {
    const Kernel &k = lane->kernel;
    if (!k.setup.posting.is_on && k.setup.proxies > 1)
        run<RingsCarrier>(k);
    else if (!k.setup.posting.is_on)
        run<RingCarrier>(k);
    else if (k.setup.posting.counter.done != nullptr)
        run<CountingCarrier>(k);
    else
        run<PostingCarrier>(k);
    return nullptr;
}

template <template <bool> class CarrierOf> void settle_by(const Kernel &k) {
    simt::launch(1, WARP, [&] { k.setup.has_stamps ? settle<CarrierOf, true>(k) : settle<CarrierOf, false>(k); });
}

const char *settle_all(Lane *lane) {
    const Kernel &k = lane->kernel;
    if (k.setup.posting.counter.done != nullptr)
        settle_by<CountingCarrier>(k);
    else
        settle_by<PostingCarrier>(k);
    return nullptr;
}

// One clock: both read it.
const char *exchange(Lane *, uint64_t (*now)(), Trip *trips, uint32_t count) {
    for (uint32_t i = 0; i < count; i++) {
        trips[i].sent = now_ns();
        trips[i].seen = now();
        trips[i].back = now_ns();
    }
    return nullptr;
}

const char *bench_posters(const PosterOptions *options, protocol::PostsSeen *seen) {
    static PostBench bench;
    bench = {options->plan,
             options->send,
             options->completions,
             options->words,
             options->arrivals,
             options->ends,
             0,
             options->timeout_ns,
             {},
             0};
    simt::launch(1, WARP * (1 + options->posters), [&] { post_from_warps(&bench); });
    *seen = bench.seen;
    seen->has_given_up = bench.has_given_up != 0;
    return nullptr;
}

const char *facts(uint32_t, DeviceFacts *facts) {
    *facts = {};
    strcpy(facts->name, "none: kernels on a CPU");
    facts->numa_node = -1;
    return nullptr;
}

} // namespace

extern "C" __attribute__((visibility("default"))) const Api *efaprof_gpu_api() {
    static Api api = {};
    api.version = API_VERSION;
    api.count = [] { return 1; };
    api.facts = facts;
    api.open = open;
    api.launch = launch;
    api.done = [](const Lane *lane) -> const StepDone * { return &lane->done; };
    api.stamps = [](const Lane *lane) -> const Stamp * { return lane->kernel.stamps; };
    api.free_stamps = [](Lane *lane, uint64_t number) { lane->stamps_read = number; };
    api.spans = [](const Lane *lane) -> const Span * { return lane->kernel.spans; };
    api.posts = [](const Lane *lane) -> const PostStamp * { return lane->kernel.post_stamps; };
    api.arrivals = [](const Lane *lane) -> const ArrivalStamp * { return lane->kernel.arrival_stamps; };
    api.settle = settle_all;
    api.sample = [](const Lane *lane) -> const uint16_t * { return lane->kernel.sample; };
    api.health = [](Lane *) -> const char * { return nullptr; };
    api.exchange = exchange;
    api.stop = [](Lane *lane) { lane->stop = 1; };
    api.bench_posters = bench_posters;
    api.is_idle = [](Lane *) { return true; };
    api.close = [](Lane *) {};
    return &api;
}

} // namespace efaprof::gpu
