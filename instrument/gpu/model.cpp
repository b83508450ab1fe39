#include "model.h"

#include <stdio.h>

#include "../engine/card.h"
#include "../gda/open.h"
#include "../proxy/record.h"
#include "../workload/assemble.h"
#include "../workload/job.h"
#include "library.h"
#include "posts.h"

namespace efaprof::dispatch {

namespace {

constexpr uint64_t STAMPS = 1 << 16;
// Of what was launched since records were written down last: a few steps of any model.
constexpr GpuLane::Reach REACH = {8192, 1 << 18};

} // namespace

void GpuModel::open(const Options &options, uint32_t rank, uint32_t device) {
    char why[240];
    if (!open_gpu_library(why, sizeof why)) fail(Cause::Refused, "%s", why);
    if (gpu_library().count() <= static_cast<int>(device)) fail(Cause::Refused, "there is no GPU %u here", device);
    options_ = options;
    device_ = device;
    ticks_per_ns_ = measure_ticks();
    thread_count_ = options_.threads == 0 ? 3 : options_.threads; // the third is the caller's, and asleep meanwhile
    efaprof_set_producer("dispatch");
    options_.device = Device::Cuda;
    set_up(&engine_, options_, ticks_per_ns_, rank);
    engine_.stop = &stop_;
    if (is_posting())
        open_queues(engine_, options_, pair_);
    else
        open_fabric(engine_, options_, thread_count_);
}

void GpuModel::contact(void *bytes) const {
    write_card(options_, engine_.rank, is_posting() ? pair_.contact() : engine_.fabric.contact(), bytes);
}

void GpuModel::connect(const void *contacts) {
    Contact reach[protocol::MAX_RANKS];
    Identity identities[protocol::MAX_RANKS];
    read_cards(options_, engine_.rank, contacts, reach, identities);
    if (is_posting())
        pair_.connect(reach, engine_.ranks, engine_.rank);
    else
        engine_.fabric.connect(reach, engine_.ranks);
    record_identity(engine_, options_);
    gpu::Setup setup = GpuLane::setup_for(engine_, options_, device_);
    setup.is_model = true;
    setup.stamp_capacity = STAMPS;
    if (is_posting()) {
        char note[EFAPROF_NAME_MAX];
        record_note("path: gdaki", 1);
        snprintf(note, sizeof note, "queues: %s on %s", pair_.source_name(), pair_.device_name());
        record_note(note, 0);
        setup.posting = posting_for(pair_.queues(), options_, REACH.commands);
    }
    lane_.open(engine_, setup, ticks_per_ns_, REACH, 0);
    lane_.start_clock();
    if (!is_posting()) {
        threads_.start(engine_, thread_count_);
        has_threads_ = true;
    }
    watch_.start(stop_, engine_.rank, identities, engine_.ranks);
}

// What has gone wrong by now: in a kernel, with a peer, or in a proxy.
void GpuModel::look() {
    if (is_stopped()) lane_.stop();
    leave_if_stopped();
    gpu::Fault fault = lane_.done().fault;
    if (fault.code == gpu::FaultCode::None) return;
    fail_posting(fault);
    if (fault.code == gpu::FaultCode::Expert)
        fail(Cause::Failed, "step %u layer %u: choice %u of token %u names an expert that does not exist", fault.step,
             fault.layer, fault.b, fault.a);
    fail(Cause::Failed, "step %u layer %u: the kernels stopped: %s (rank %u channel %u)", fault.step, fault.layer,
         fault.code == gpu::FaultCode::Timeout ? "a wait took too long" : "what came is not of this layer", fault.a,
         fault.b);
}

// Nothing runs, and nothing is on its way: kernels that post by themselves are asked to look.
bool GpuModel::is_quiet() {
    if (protocol::load_acquire(&lane_.done().steps) != ended_) return false;
    lane_.settle();
    return lane_.has_completed();
}

void GpuModel::begin_step(uint32_t step, uint32_t kind, void *stream) {
    look();
    lane_.write_records(lane_.done().stamps);
    if (lane_.is_clock_due(efaprof_now()) && is_quiet()) lane_.compare_clocks();
    step_ = step;
    check_gpu(gpu_library().begin_step(lane_.lane(), step, kind, stream));
}

void GpuModel::end_step(void *stream) {
    check_gpu(gpu_library().end_step(lane_.lane(), stream));
    ended_++;
}

void GpuModel::dispatch(const gpu::DispatchCall &call, void *stream) {
    look();
    check_gpu(gpu_library().dispatch(lane_.lane(), &call, stream));
}

void GpuModel::combine(const gpu::CombineCall &call, void *stream) {
    check_gpu(gpu_library().combine(lane_.lane(), &call, stream));
}

void GpuModel::part() {
    check_gpu(gpu_library().part(lane_.lane()));
    look();
    lane_.write_records(lane_.done().stamps);
    lane_.write_end(step_ + 1, efaprof_now());
    if (lane_.has_completed()) lane_.compare_clocks();
    lane_.note_clock();
}

void GpuModel::close() {
    lane_.stop();
    __atomic_store_n(&engine_.is_over, 1u, __ATOMIC_RELEASE);
    if (has_threads_) threads_.join();
    watch_.stop();
    lane_.close();
    if (is_posting()) pair_.close();
    take_down(engine_);
}

} // namespace efaprof::dispatch
