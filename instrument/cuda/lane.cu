// The host side of a lane on a GPU: memory, the graph of a step, the clocks.
#include "lane.h"

#include <stdlib.h>
#include <time.h>

#include "memory.cuh"
#include "model.cuh"
#include "poster.cuh"
#include "posters.cuh"
#include "rings.cuh"
#include "verify.cuh"

namespace efaprof::gpu {

namespace {

constexpr uint32_t PACKING_BLOCKS = 32; // beside the one that issues
constexpr uint64_t EXCHANGE_NS = 2000000000;

bool counts(const Lane &lane) {
    return lane.setup.posting.counter.done != nullptr;
}

template <template <bool> class CarrierOf, bool STAMPS> void enqueue_layer(const Lane &lane, uint32_t layer) {
    const protocol::Shape &shape = lane.setup.shape;
    uint32_t tokens = shape.tokens, packing = tokens < PACKING_BLOCKS ? tokens : PACKING_BLOCKS;
    auto payload_bytes = static_cast<uint32_t>(protocol::payload_bytes(shape));
    const Kernel &k = lane.kernel;
    cudaStream_t stream = lane.stream;
    fill<STAMPS><<<tokens, BLOCK, 0, stream>>>(k, layer);
    layout<STAMPS><<<1, LAYOUT_BLOCK, 0, stream>>>(k);
    dispatch<CarrierOf, STAMPS><<<1 + packing, BLOCK, 0, stream>>>(k, layer);
    experts<STAMPS><<<shape.ranks * tokens, BLOCK, 0, stream>>>(k, layer);
    combine<CarrierOf, STAMPS><<<1, WARP, 0, stream>>>(k, layer);
    reduce<STAMPS><<<tokens, BLOCK, 0, stream>>>(k);
    verify<STAMPS><<<shape.ranks * tokens + tokens + shape.ranks, BLOCK, payload_bytes, stream>>>(k, layer);
}

// A kernel that were loaded only when it is launched could wait for one that already spins for it.
template <typename Kernel> const char *load(Kernel kernel) {
    cudaFuncAttributes attributes;
    return check(cudaFuncGetAttributes(&attributes, kernel), "cudaFuncGetAttributes");
}

template <template <bool> class CarrierOf, bool STAMPS>
const char *capture(Lane &lane, cudaGraph_t &graph, cudaGraphExec_t &step) {
    auto payload_bytes = static_cast<int>(protocol::payload_bytes(lane.setup.shape));
    EFAPROF_CUDA(cudaFuncSetAttribute(verify<STAMPS>, cudaFuncAttributeMaxDynamicSharedMemorySize, payload_bytes));
    EFAPROF_CUDA(cudaStreamBeginCapture(lane.stream, cudaStreamCaptureModeThreadLocal));
    for (uint32_t layer = 0; layer < lane.setup.layers; layer++)
        enqueue_layer<CarrierOf, STAMPS>(lane, layer);
    end_step<<<1, 1, 0, lane.stream>>>(lane.kernel);
    EFAPROF_CUDA(cudaStreamEndCapture(lane.stream, &graph));
    EFAPROF_CUDA(cudaGraphInstantiate(&step, graph, 0));
    // Loaded now: a kernel that is loaded while another one spins for it would never start.
    EFAPROF_CUDA(cudaGraphUpload(step, lane.stream));
    EFAPROF_TRY(load(exchange_clocks));
    EFAPROF_CUDA(cudaStreamSynchronize(lane.stream));
    return nullptr;
}

template <bool STAMPS> const char *load_stamped() {
    EFAPROF_TRY(load(open_step<STAMPS>));
    EFAPROF_TRY(load(close_step<STAMPS>));
    EFAPROF_TRY(load(layout<STAMPS>));
    EFAPROF_TRY(load(dispatch<RingCarrier, STAMPS>));
    EFAPROF_TRY(load(dispatch<PostingCarrier, STAMPS>));
    EFAPROF_TRY(load(settle<PostingCarrier, STAMPS>));
    EFAPROF_TRY(load(gather<STAMPS>));
    EFAPROF_TRY(load(combine<RingCarrier, STAMPS>));
    EFAPROF_TRY(load(combine<PostingCarrier, STAMPS>));
    return load(reduce<STAMPS>);
}

const char *open_model(Lane &lane) {
    if (lane.setup.posting.is_on) EFAPROF_TRY(open_posting(lane));
    EFAPROF_TRY(load(take_routes));
    EFAPROF_TRY(load(add_up));
    EFAPROF_TRY(load(part<RingCarrier>));
    EFAPROF_TRY(load(part<PostingCarrier>));
    EFAPROF_TRY(load(end_step));
    EFAPROF_TRY(load(exchange_clocks));
    return lane.setup.has_stamps ? load_stamped<true>() : load_stamped<false>();
}

template <template <bool> class CarrierOf> const char *capture_posting(Lane &lane) {
    if (!lane.setup.has_stamps) {
        EFAPROF_TRY(load(settle<CarrierOf, false>));
        return capture<CarrierOf, false>(lane, lane.graphs[0], lane.steps[0]);
    }
    EFAPROF_TRY(load(settle<CarrierOf, true>));
    return capture<CarrierOf, true>(lane, lane.graphs[0], lane.steps[0]);
}

const char *build_posting(Lane &lane) {
    EFAPROF_TRY(open_posting(lane));
    return counts(lane) ? capture_posting<CountingCarrier>(lane) : capture_posting<PostingCarrier>(lane);
}

template <template <bool> class CarrierOf> const char *capture_pushing(Lane &lane) {
    if (!lane.setup.has_stamps) return capture<CarrierOf, false>(lane, lane.graphs[0], lane.steps[0]);
    EFAPROF_TRY((capture<CarrierOf, true>(lane, lane.graphs[0], lane.steps[0])));
    return lane.setup.takes_turns ? capture<CarrierOf, false>(lane, lane.graphs[1], lane.steps[1]) : nullptr;
}

const char *build(Lane &lane) {
    EFAPROF_CUDA(cudaSetDevice(static_cast<int>(lane.setup.device)));
    EFAPROF_CUDA(cudaStreamCreateWithFlags(&lane.stream, cudaStreamNonBlocking));
    EFAPROF_TRY(allocate(lane));
    EFAPROF_TRY(pin_all(lane));
    if (lane.setup.is_model) lane.kernel.spans = nullptr; // one graph may run for any number of layers
    if (lane.setup.is_model) return open_model(lane);
    if (lane.setup.posting.is_on) return build_posting(lane);
    return lane.setup.proxies > 1 ? capture_pushing<RingsCarrier>(lane) : capture_pushing<RingCarrier>(lane);
}

int64_t monotonic_ns() {
    timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * 1000000000 + time.tv_nsec;
}

} // namespace

const char *open_lane(const Setup *setup, Lane **lane) {
    auto *made = static_cast<Lane *>(calloc(1, sizeof(Lane)));
    if (made == nullptr) return failed("out of memory");
    made->setup = made->kernel.setup = *setup;
    const char *why = build(*made);
    if (why != nullptr)
        free(made); // what it holds goes with the process, which ends now
    else
        *lane = made;
    return why;
}

namespace {

const char *run_posters(Lane &lane, const PosterOptions &options, protocol::PostsSeen &seen) {
    const protocol::PostPlan &plan = options.plan;
    PostBench bench = {
        plan, options.send, options.completions, options.words, nullptr, nullptr, 0, options.timeout_ns, {}, 0};
    EFAPROF_CUDA(cudaSetDevice(static_cast<int>(options.device)));
    EFAPROF_CUDA(cudaStreamCreateWithFlags(&lane.stream, cudaStreamNonBlocking));
    EFAPROF_TRY(pin(lane, bench.words, protocol::post_bytes(plan)));
    EFAPROF_TRY(pin_posting(lane, bench.send, bench.completions));
    EFAPROF_TRY(take(lane, bench.arrivals, plan.entries));
    EFAPROF_TRY(take(lane, bench.ends, plan.entries));
    PostBench *there = nullptr;
    EFAPROF_TRY(take(lane, there, 1));
    EFAPROF_CUDA(cudaMemcpy(there, &bench, sizeof bench, cudaMemcpyHostToDevice));
    post_from_warps<<<1, WARP *(1 + options.posters), 0, lane.stream>>>(there);
    EFAPROF_CUDA(cudaGetLastError());
    EFAPROF_CUDA(cudaStreamSynchronize(lane.stream));
    EFAPROF_CUDA(cudaMemcpy(options.arrivals, bench.arrivals, plan.entries * sizeof(uint32_t), cudaMemcpyDeviceToHost));
    EFAPROF_CUDA(cudaMemcpy(options.ends, bench.ends, plan.entries * sizeof(uint16_t), cudaMemcpyDeviceToHost));
    EFAPROF_CUDA(cudaMemcpy(&bench, there, sizeof bench, cudaMemcpyDeviceToHost));
    seen = bench.seen;
    seen.has_given_up = bench.has_given_up != 0;
    return nullptr;
}

} // namespace

const char *bench_posters(const PosterOptions *options, protocol::PostsSeen *seen) {
    auto *lane = static_cast<Lane *>(calloc(1, sizeof(Lane)));
    if (lane == nullptr) return failed("out of memory");
    const char *why = run_posters(*lane, *options, *seen);
    if (why == nullptr) close_lane(lane);
    return why; // what a failed one holds goes with the process, which ends now
}

const char *launch_step(Lane *lane) {
    return check(cudaGraphLaunch(lane->steps[lane->setup.takes_turns ? lane->launched++ % 2 : 0], lane->stream),
                 "cudaGraphLaunch");
}

const StepDone *done_of(const Lane *lane) {
    return lane->done;
}
const Stamp *stamps_of(const Lane *lane) {
    return lane->kernel.stamps;
}
void free_stamps(Lane *lane, uint64_t number) {
    protocol::store_release(lane->stamps_read, number);
}
const Span *spans_of(const Lane *lane) {
    return lane->kernel.spans;
}
const PostStamp *posts_of(const Lane *lane) {
    return lane->kernel.post_stamps;
}
const ArrivalStamp *arrivals_of(const Lane *lane) {
    return lane->kernel.arrival_stamps;
}

template <template <bool> class CarrierOf> static void enqueue_settle(const Lane &lane) {
    if (lane.setup.has_stamps)
        settle<CarrierOf, true><<<1, WARP, 0, lane.stream>>>(lane.kernel);
    else
        settle<CarrierOf, false><<<1, WARP, 0, lane.stream>>>(lane.kernel);
}

const char *settle_lane(Lane *lane) {
    if (counts(*lane))
        enqueue_settle<CountingCarrier>(*lane);
    else
        enqueue_settle<PostingCarrier>(*lane);
    EFAPROF_CUDA(cudaGetLastError());
    EFAPROF_CUDA(cudaStreamSynchronize(lane->stream));
    return nullptr;
}

const uint16_t *sample_of(const Lane *lane) {
    return lane->kernel.sample;
}

const char *health_of(Lane *lane) {
    cudaError_t result = cudaStreamQuery(lane->stream);
    return result == cudaErrorNotReady ? nullptr : check(result, "a kernel");
}

const char *exchange(Lane *lane, uint64_t (*now)(), Trip *trips, uint32_t count) {
    if (count > MOST_TRIPS) return failed("at most %u round trips at once", MOST_TRIPS);
    ClockWords &words = *lane->clocks;
    uint64_t first = protocol::load_relaxed(&words.ping);
    protocol::store_relaxed(&words.pong, first);
    protocol::store_relaxed(&words.count, 0);
    exchange_clocks<<<1, 1, 0, lane->stream>>>(lane->clocks, lane->trips, count, EXCHANGE_NS);
    EFAPROF_CUDA(cudaGetLastError());
    int64_t give_up = monotonic_ns() + static_cast<int64_t>(EXCHANGE_NS);
    for (uint32_t trip = 0; trip < count; trip++) {
        for (uint32_t looks = 1; protocol::load_acquire(&words.ping) != first + trip + 1; looks++) {
            if (looks % 65536 == 0 && monotonic_ns() > give_up) return failed("the device did not answer");
        }
        trips[trip].seen = now();
        protocol::store_release(&words.pong, first + trip + 1);
    }
    EFAPROF_CUDA(cudaStreamSynchronize(lane->stream));
    if (protocol::load_acquire(&words.count) != count) return failed("the exchange of clocks took too long");
    for (uint32_t trip = 0; trip < count; trip++) {
        trips[trip].sent = lane->trips[trip].sent;
        trips[trip].back = lane->trips[trip].back;
    }
    return nullptr;
}

void stop_lane(Lane *lane) {
    protocol::store_release(lane->stop, 1);
}

bool is_idle(Lane *lane) {
    return cudaStreamQuery(lane->stream) != cudaErrorNotReady;
}

void close_lane(Lane *lane) {
    cudaStreamSynchronize(lane->stream);
    for (int i = 0; i < 2; i++) {
        if (lane->steps[i] != nullptr) cudaGraphExecDestroy(lane->steps[i]);
        if (lane->graphs[i] != nullptr) cudaGraphDestroy(lane->graphs[i]);
    }
    for (uint32_t i = 0; i < lane->registered_count; i++)
        cudaHostUnregister(lane->registered[i]);
    for (uint32_t i = 0; i < lane->hosted_count; i++)
        cudaFreeHost(lane->hosted[i]);
    for (uint32_t i = 0; i < lane->owned_count; i++)
        cudaFree(lane->owned[i]);
    cudaStreamDestroy(lane->stream);
    free(lane);
}

namespace {

template <bool STAMPS> void enqueue_dispatch(const Lane &lane, const DispatchCall &call, cudaStream_t stream) {
    const protocol::Shape &shape = lane.setup.shape;
    Kernel k = lane.kernel;
    k.tokens = call.tokens;
    k.x = static_cast<__nv_bfloat16 *>(const_cast<void *>(call.x));
    uint32_t choices = call.tokens * shape.topk, packing = call.tokens < PACKING_BLOCKS ? call.tokens : PACKING_BLOCKS;
    ReceivedRows rows = {static_cast<__nv_bfloat16 *>(call.recv_x), call.recv_experts, call.recv_weights,
                         call.received};
    take_routes<<<(choices + BLOCK) / BLOCK, BLOCK, 0, stream>>>(k, call.layer, call.experts, call.weights);
    layout<STAMPS><<<1, LAYOUT_BLOCK, 0, stream>>>(k);
    if (lane.setup.posting.is_on)
        dispatch<PostingCarrier, STAMPS><<<1 + packing, BLOCK, 0, stream>>>(k, call.layer);
    else
        dispatch<RingCarrier, STAMPS><<<1 + packing, BLOCK, 0, stream>>>(k, call.layer);
    gather<STAMPS><<<shape.ranks * shape.tokens, BLOCK, 0, stream>>>(k, call.layer, rows);
}

template <bool STAMPS> void enqueue_combine(const Lane &lane, const CombineCall &call, cudaStream_t stream) {
    Kernel k = lane.kernel;
    k.tokens = call.tokens;
    k.results = static_cast<__nv_bfloat16 *>(call.out);
    add_up<<<lane.setup.shape.ranks * lane.setup.shape.tokens, BLOCK, 0, stream>>>(
        k, static_cast<const __nv_bfloat16 *>(call.answers));
    if (lane.setup.posting.is_on)
        combine<PostingCarrier, STAMPS><<<1, WARP, 0, stream>>>(k, call.layer);
    else
        combine<RingCarrier, STAMPS><<<1, WARP, 0, stream>>>(k, call.layer);
    if (call.tokens != 0) reduce<STAMPS><<<call.tokens, BLOCK, 0, stream>>>(k);
}

} // namespace

const char *begin_step(Lane *lane, uint32_t step, uint32_t kind, void *stream) {
    auto *into = static_cast<cudaStream_t>(stream);
    if (lane->setup.has_stamps)
        open_step<true><<<1, 1, 0, into>>>(lane->kernel, step, kind);
    else
        open_step<false><<<1, 1, 0, into>>>(lane->kernel, step, kind);
    return check(cudaGetLastError(), "the begin of a step");
}

const char *dispatch_call(Lane *lane, const DispatchCall *call, void *stream) {
    auto *into = static_cast<cudaStream_t>(stream);
    if (lane->setup.has_stamps)
        enqueue_dispatch<true>(*lane, *call, into);
    else
        enqueue_dispatch<false>(*lane, *call, into);
    return check(cudaGetLastError(), "dispatch");
}

const char *combine_call(Lane *lane, const CombineCall *call, void *stream) {
    auto *into = static_cast<cudaStream_t>(stream);
    if (lane->setup.has_stamps)
        enqueue_combine<true>(*lane, *call, into);
    else
        enqueue_combine<false>(*lane, *call, into);
    return check(cudaGetLastError(), "combine");
}

const char *end_of_step(Lane *lane, void *stream) {
    auto *into = lane->callers = static_cast<cudaStream_t>(stream);
    lane->has_callers = true;
    if (lane->setup.has_stamps)
        close_step<true><<<1, 1, 0, into>>>(lane->kernel);
    else
        close_step<false><<<1, 1, 0, into>>>(lane->kernel);
    end_step<<<1, 1, 0, into>>>(lane->kernel);
    return check(cudaGetLastError(), "the end of a step");
}

const char *part_lane(Lane *lane) {
    // Not the whole device: another rank of this process may be waiting for this one already.
    if (lane->has_callers) EFAPROF_CUDA(cudaStreamSynchronize(lane->callers));
    if (lane->setup.posting.is_on)
        part<PostingCarrier><<<1, WARP, 0, lane->stream>>>(lane->kernel);
    else
        part<RingCarrier><<<1, WARP, 0, lane->stream>>>(lane->kernel);
    EFAPROF_CUDA(cudaGetLastError());
    end_step<<<1, 1, 0, lane->stream>>>(lane->kernel);
    EFAPROF_CUDA(cudaStreamSynchronize(lane->stream));
    return nullptr;
}

} // namespace efaprof::gpu
