#include "rank.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../protocol/numerics.h"
#include "../proxy/make.h"
#include "../proxy/wait.h"
#include "library.h"

namespace efaprof::dispatch {

namespace {

GpuLane *running = nullptr;

// A kernel that waits for peers must not outlive its process: others share the GPU.
void stop_running() {
    running->stop();
}

int compare(const void *left, const void *right) {
    uint32_t a = *static_cast<const uint32_t *>(left), b = *static_cast<const uint32_t *>(right);
    return a < b ? -1 : a > b;
}

} // namespace

GpuSteps::GpuSteps(Engine &engine, const Job &job, const GdaQueues *queues)
    : engine_(engine), job_(job), options_(job.options), gpu_(gpu_library()) {
    for (uint32_t *&durations : durations_)
        durations = make<uint32_t>(size_t{options_.steps} * options_.layers);
    int count = gpu_.count();
    if (count < 1) fail(Cause::Refused, "--device cuda: there is no GPU here, or no driver for it");
    gpu::Setup setup = GpuLane::setup_for(engine, options_, engine.rank % static_cast<uint32_t>(count));
    setup.layers = options_.layers;
    setup.seed = options_.seed;
    setup.compute_ns = options_.compute_ns + options_.late_ns[engine.rank];
    if (options_.corrupt_step >= 0 && engine.rank == 0)
        setup.corrupt_step = static_cast<uint64_t>(options_.corrupt_step);
    setup.stamp_capacity = protocol::power_of_two(4ull * gpu::stamps_of_layer(engine.proxies) * options_.layers);
    if (queues != nullptr) setup.posting = posting_for(*queues, options_, reach().commands);
    lane_.open(engine, setup, job.ticks_per_ns, reach(), options_.warmup);
    running = &lane_;
    call_before_exit(stop_running);
}

GpuSteps::~GpuSteps() {
    call_before_exit(nullptr);
    lane_.close();
    for (uint32_t *durations : durations_)
        free(durations);
}

// Two steps: one is written down while the next runs.
GpuLane::Reach GpuSteps::reach() const {
    const protocol::Shape &shape = options_.shape;
    uint64_t signals = uint64_t{shape.ranks} * (shape.channels + 1) * 2,
             layer = signals + 2ull * shape.ranks * (shape.tokens + 1);
    // A kernel that posts may be a step ahead of what is written of it.
    uint32_t steps = options_.path == Path::Gdaki ? 4 : 2;
    return {2ull * steps * options_.layers + 8, steps * layer * options_.layers};
}

uint64_t GpuSteps::run() {
    uint32_t all = options_.warmup + options_.steps;
    lane_.start_clock();
    uint64_t start = efaprof_now();
    for (uint32_t step = 0; step < all; step++) {
        if (step == options_.warmup) start = efaprof_now();
        run_step(step);
    }
    uint64_t end = efaprof_now();
    check_sample(all - 1);
    write_records();
    lane_.write_end(all, end);
    compare_clocks();
    lane_.note_clock();
    return end - start;
}

void GpuSteps::run_step(uint32_t step) {
    check_gpu(gpu_.launch(lane_.lane()));
    write_records(); // of the step before
    wait_done(step);
    check_fault();
    keep_spans(step);
    if (step < options_.warmup) check_sample(step); // later, it would lie in a step's time
    if (!lane_.is_clock_due(efaprof_now())) return;
    write_records();
    compare_clocks();
}

void GpuSteps::wait_done(uint32_t step) {
    constexpr uint32_t HEALTH_LOOKS = 8192;
    for (Idle idle; protocol::load_acquire(&lane_.done().steps) <= step;) {
        idle.nothing();
        if (idle.polls() % HEALTH_LOOKS == 0) check_gpu(gpu_.health(lane_.lane()));
    }
}

void GpuSteps::keep_spans(uint32_t step) {
    if (step < options_.warmup) return;
    const gpu::Span *spans = gpu_.spans(lane_.lane());
    size_t first = size_t{step - options_.warmup} * options_.layers;
    for (uint32_t layer = 0; layer < options_.layers; layer++) {
        for (uint32_t phase = 0; phase < 2; phase++) {
            const gpu::Span &span = spans[layer * 2 + phase];
            durations_[phase][first + layer] = clip32(span.end - span.begin);
        }
    }
}

void GpuSteps::write_records() {
    uint64_t step_stamps = uint64_t{gpu::stamps_of_layer(engine_.proxies)} * options_.layers,
             read = lane_.stamps_read();
    if (lane_.done().stamps == read) return;
    for (uint64_t end = read + step_stamps; end <= lane_.done().stamps; end += step_stamps)
        lane_.write_records(end);
    record_counter("verify.tokens", static_cast<int64_t>(verified()), COUNT);
    record_counter("verify.mismatches", 0, COUNT);
}

void GpuSteps::compare_clocks() {
    lane_.settle();
    check_fault();
    for (Idle idle; !lane_.has_completed();)
        idle.nothing();
    lane_.compare_clocks();
}

void GpuSteps::check_fault() const {
    gpu::Fault fault = lane_.done().fault;
    if (fault.code != gpu::FaultCode::None) say(fault);
}

void GpuSteps::say(const gpu::Fault &fault) const {
    constexpr const char *WAITS[] = {"a barrier",
                                     "a channel's tail",
                                     "its own writes",
                                     "room in the ring",
                                     "a token to be packed",
                                     "its earlier writes to that rank",
                                     "an operation in flight to end",
                                     "space in the send queue",
                                     "its turn to ring the doorbell"};
    fail_posting(fault);
    unsigned step = fault.step, layer = fault.layer, rank = engine_.rank;
    switch (fault.code) {
    case gpu::FaultCode::Timeout:
        fail(Cause::Failed,
             "step %u layer %u: the kernel waited %u s for %s (rank %u channel %u); %llu commands completed", step,
             layer, options_.timeout_s, WAITS[static_cast<uint32_t>(fault.what) % 9], fault.a, fault.b,
             static_cast<unsigned long long>(lane_.completed()));
    case gpu::FaultCode::Stopped: leave_if_stopped(); fail(Cause::Failed, "the kernel was told to stop");
    case gpu::FaultCode::Notice:
        fail(Cause::Mismatch, "step %u layer %u: the notice from rank %u is of another layer", step, layer, fault.a);
    case gpu::FaultCode::Head:
        fail(Cause::Mismatch, "step %u layer %u: the token from rank %u in slot %u is not of this layer", step, layer,
             fault.a, fault.b);
    case gpu::FaultCode::Payload:
        fail(Cause::Mismatch,
             "step %u layer %u rank %u: byte %u of the token from rank %u in slot %u is not what was sent", step, layer,
             rank, fault.element, fault.a, fault.b);
    case gpu::FaultCode::Routes:
        fail(Cause::Mismatch,
             "step %u layer %u rank %u: the routes of the token from rank %u in slot %u are not its own", step, layer,
             rank, fault.a, fault.b);
    case gpu::FaultCode::Counts:
        fail(Cause::Mismatch, "step %u layer %u: rank %u announced other counts than its tokens carry", step, layer,
             fault.a);
    default:
        fail(Cause::Mismatch, "step %u layer %u rank %u token %u element %u: got %g, the reference is %g", step, layer,
             rank, fault.a, fault.element, static_cast<double>(fault.got), static_cast<double>(fault.expected));
    }
}

// The kernels compare everything with the reference, on the GPU; here a CPU does so for the last layer of a step: the
// tokens that came, bit by bit, and one result.
void GpuSteps::check_sample(uint32_t step) const {
    const protocol::Shape &shape = options_.shape;
    uint32_t layer = options_.layers - 1, token = step % shape.tokens;
    for (uint32_t src = 0; src < shape.ranks; src++)
        check_arrived(step, src);
    protocol::TokenId id = {options_.seed, step, layer, engine_.rank, token};
    protocol::Route route;
    protocol::route_token(id, shape.topk, shape.experts, route);
    float weights[protocol::MAX_TOPK];
    for (uint32_t choice = 0; choice < shape.topk; choice++)
        weights[choice] = protocol::route_weight(id, choice);
    auto *payload = make<uint8_t>(protocol::payload_bytes(shape));
    for (uint32_t group = 0; group < protocol::group_count(shape); group++)
        protocol::reference_group(shape, id, group, payload);
    const uint16_t *sample = gpu_.sample(lane_.lane());
    for (uint32_t element = 0; element < shape.hidden; element++) {
        double value = static_cast<double>(protocol::payload_value(shape, payload, element));
        protocol::Expected expected = protocol::expected_sum(shape, options_.seed, route, weights, element, value);
        double got = static_cast<double>(protocol::bf16_value(sample[element]));
        if (!(got >= expected.value - expected.tolerance && got <= expected.value + expected.tolerance))
            fail(Cause::Mismatch, "step %u rank %u token %u element %u: got %g, the CPU's reference is %g", step,
                 engine_.rank, token, element, got, expected.value);
    }
    free(payload);
}

void GpuSteps::check_arrived(uint32_t step, uint32_t src) const {
    const protocol::Shape &shape = options_.shape;
    uint32_t layer = options_.layers - 1, slot = 0;
    uint64_t bytes = protocol::payload_bytes(shape);
    auto *expected = make<uint8_t>(bytes);
    for (uint32_t token = 0; token < shape.tokens; token++) {
        protocol::TokenId id = {options_.seed, step, layer, src, token};
        protocol::Route route;
        protocol::route_token(id, shape.topk, shape.experts, route);
        if (!protocol::goes_to(route, shape.topk, shape.experts / shape.ranks, engine_.rank)) continue;
        for (uint32_t group = 0; group < protocol::group_count(shape); group++)
            protocol::reference_group(shape, id, group, expected);
        uint64_t at = engine_.heap.arrived + (uint64_t{src} * shape.tokens + slot++) * engine_.heap.token_units;
        if (memcmp(engine_.at(at) + sizeof(protocol::TokenHead), expected, bytes) != 0)
            fail(Cause::Mismatch, "step %u rank %u: token %u of rank %u is not what the CPU's reference says", step,
                 engine_.rank, token, src);
    }
    free(expected);
}

// Median and 99th percentile of the durations of every `stride`-th step from `first` on; sorts them.
GpuSteps::Spread GpuSteps::spread(uint32_t phase, uint32_t first, uint32_t stride) const {
    auto *some = make<uint32_t>(size_t{options_.steps} * options_.layers);
    size_t count = 0;
    for (uint32_t step = first; step < options_.steps; step += stride) {
        for (uint32_t layer = 0; layer < options_.layers; layer++)
            some[count++] = durations_[phase][size_t{step} * options_.layers + layer];
    }
    Spread found = {};
    if (count != 0) {
        qsort(some, count, sizeof *some, compare);
        found = {some[count / 2], some[count - 1 - count / 100]};
    }
    free(some);
    return found;
}

GpuTimes GpuSteps::times() const {
    GpuTimes times = {};
    uint32_t stride = options_.takes_turns ? 2 : 1, stamped = options_.takes_turns ? options_.warmup % 2 : 0;
    Spread dispatch = spread(0, stamped, stride), combine = spread(1, stamped, stride);
    times.dispatch_p50_ns = dispatch.p50;
    times.dispatch_p99_ns = dispatch.p99;
    times.combine_p50_ns = combine.p50;
    times.combine_p99_ns = combine.p99;
    if (options_.takes_turns) {
        times.bare_dispatch_p50_ns = spread(0, 1 - stamped, stride).p50;
        times.bare_combine_p50_ns = spread(1, 1 - stamped, stride).p50;
    }
    times.clock_error_ns = static_cast<uint32_t>(lane_.clock().error_ns());
    times.clock_samples = lane_.clock().samples();
    times.clock_drift_ppm = lane_.clock().drift_ppm();
    times.violations = lane_.violations();
    return times;
}

} // namespace efaprof::dispatch
