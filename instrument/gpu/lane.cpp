#include "lane.h"

#include <new>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "../proxy/make.h"
#include "library.h"

namespace efaprof::dispatch {

namespace {

gpu::Fence fence_of(SignalMode mode) {
    return mode == SignalMode::Fence        ? gpu::Fence::EveryTail
           : mode == SignalMode::FenceBatch ? gpu::Fence::FirstTail
                                            : gpu::Fence::None;
}

} // namespace

gpu::Setup GpuLane::setup_for(const Engine &engine, const Options &options, uint32_t device) {
    gpu::Setup setup = {};
    setup.device = device;
    setup.rank = engine.rank;
    setup.shape = options.shape;
    setup.heap = engine.heap;
    setup.layers = 1;
    setup.kernel_delay = options.inject.kernel_ns;
    setup.timeout_ns = options.timeout_s * uint64_t{1000000000};
    setup.corrupt_step = UINT64_MAX;
    setup.fence = fence_of(options.signal);
    setup.has_sequenced_puts = options.signal == SignalMode::Imm;
    setup.has_imm = engine.has_imm;
    setup.has_stamps = options.has_stamps;
    setup.takes_turns = options.takes_turns;
    setup.memory = engine.memory;
    for (Engine &one : engine.all())
        setup.rings[one.proxy] = {one.commands, one.ring_tail, one.told, &one.completions};
    setup.proxies = engine.proxies;
    setup.ring_capacity = engine.ring_capacity;
    setup.told_bytes = sizeof(Told);
    setup.completions_bytes = sizeof engine.completions;
    static_assert(offsetof(Told, count) == 0 && offsetof(Completions, prefix) == 0, "what kernels look at comes first");
    return setup;
}

void GpuLane::open(Engine &engine, const gpu::Setup &setup, double ticks_per_ns, const Reach &reach, uint32_t warmup) {
    engine_ = &engine;
    stamp_mask_ = setup.stamp_capacity - 1;
    has_stamps_ = setup.has_stamps;
    clock_ = GpuClock(ticks_per_ns);
    records_ = new (make<GpuRecords>(1)) GpuRecords(engine, warmup, setup.is_model);
    for (Engine &one : engine.all())
        make_journal(one, reach, ticks_per_ns);
    check_gpu(gpu_library().open(&setup, &lane_));
    is_posting_ = setup.posting.is_on;
    if (is_posting_)
        posts_ = new (make<GpuPosts>(1))
            GpuPosts(engine, gpu_library().posts(lane_), gpu_library().arrivals(lane_), setup.posting.stamp_capacity);
    describe(setup.device);
}

void GpuLane::close() {
    if (lane_ != nullptr) gpu_library().close(lane_);
    lane_ = nullptr;
    if (posts_ != nullptr) posts_->~GpuPosts();
    free(posts_);
    free(records_);
    posts_ = nullptr;
    records_ = nullptr;
    if (engine_ == nullptr) return;
    for (Engine &one : engine_->all()) {
        Journal &journal = journals_[one.proxy];
        one.journal = nullptr;
        free(journal.handed);
        free(journal.moves);
        journal = {};
    }
}

void GpuLane::make_journal(Engine &engine, const Reach &reach, double ticks_per_ns) {
    Journal &journal = journals_[engine.proxy];
    journal.depth = reach.phases;
    journal.handed = make<Handover>(engine.word_index(engine.ranks, 0) * reach.phases);
    uint64_t moves = protocol::power_of_two(reach.commands);
    journal.moves = make<Move>(moves);
    journal.move_mask = moves - 1;
    journal.clock = {0, 0, ticks_per_ns};
    engine.journal = &journal;
}

// One line for all rings: nothing is on its way.
void GpuLane::share_clock() {
    for (const Engine &one : engine_->all())
        journals_[one.proxy].clock = journals_[0].clock;
}

uint64_t GpuLane::completed() const {
    if (is_posting_) return done().ended;
    uint64_t all = 0;
    for (const Engine &one : engine_->all())
        all += protocol::load_acquire(&one.completions.prefix);
    return all;
}

uint64_t GpuLane::violations() const {
    uint64_t all = records_->violations();
    for (const Engine &one : engine_->all())
        all += one.journal->violations;
    return all;
}

void GpuLane::describe(uint32_t device) const {
    gpu::DeviceFacts facts;
    check_gpu(gpu_library().facts(device, &facts));
    char text[120];
    snprintf(text, sizeof text, "GPU: %s", facts.name);
    record_note(text, static_cast<uint64_t>(facts.driver));
    record_note("gpu.timer_step_ns", facts.timer_step_ns);
    record_note("gpu.stamps", has_stamps_ ? 1 : 0);
}

LaneCounts GpuLane::counts() const {
    const gpu::StepDone &all = done();
    return {all.puts, all.notifies, all.signals, all.barriers};
}

void GpuLane::write_records(uint64_t end) {
    if (!has_stamps_ || end == stamps_read_) return;
    if (end - stamps_read_ > stamp_mask_ + 1) { // what follows could not be told from what is missing
        record_counter("gpu.stamps_lost", static_cast<int64_t>(end - stamps_read_ - stamp_mask_ - 1), COUNT);
        has_stamps_ = false;
        return;
    }
    if (is_posting_) posts_->write(done().head, done().arrivals); // waits are told by what let them go
    records_->write(gpu_library().stamps(lane_), stamp_mask_, stamps_read_, end);
    stamps_read_ = end;
    gpu_library().free_stamps(lane_, end);
}

void GpuLane::settle() {
    if (!is_posting_) return;
    check_gpu(gpu_library().settle(lane_));
    if (has_stamps_ && done().fault.code == gpu::FaultCode::None) posts_->write(done().head, done().arrivals);
}

void GpuLane::note_clock() const {
    record_note("gpu.clock_error_ns", clock_.error_ns());
    record_note("gpu.clock_samples", clock_.samples());
    record_counter("gpu.clock_violations", static_cast<int64_t>(violations()), COUNT);
}

void GpuLane::stop() const {
    if (lane_ == nullptr) return;
    gpu_library().stop(lane_);
    constexpr timespec NAP = {0, 1000000};
    for (int waited = 0; waited < 300 && !gpu_library().is_idle(lane_); waited++)
        nanosleep(&NAP, nullptr);
}

} // namespace efaprof::dispatch
