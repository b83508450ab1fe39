#include "rank.h"

#include <pthread.h>
#include <stdio.h>
#include <sys/prctl.h>

#include "../proxy/loop.h"
#include "../proxy/wait.h"
#include "assemble.h"
#include "moe.h"

namespace efaprof::dispatch {

namespace {

uint64_t ticks(const Job &job, uint64_t ns) {
    return static_cast<uint64_t>(static_cast<double>(ns) * job.ticks_per_ns);
}

void connect(Engine &engine, Job &job) {
    job.contacts[engine.rank] = engine.fabric.contact();
    meet(job);
    engine.fabric.connect(job.contacts, engine.ranks);
    meet(job);
}

class Steps {
public:
    Steps(Engine &engine, Lane &lane, const Job &job)
        : lane_(lane), job_(job), options_(job.options), moe_(engine, lane, options_),
          compute_(ticks(job, options_.compute_ns + options_.late_ns[engine.rank])) {}

    // Returns the wall time of the counted steps, in ticks.
    uint64_t run() {
        uint32_t all = options_.warmup + options_.steps;
        uint64_t start = efaprof_now();
        for (uint32_t step = 0; step < all; step++) {
            if (step == options_.warmup) start = efaprof_now();
            run_step(step);
        }
        uint64_t end = efaprof_now();
        lane_.mark({all, 0, EFAPROF_PHASE_STEP}, StepKind::Decode);
        lane_.drain();
        return end - start;
    }
    uint64_t verified() const { return moe_.verified(); }

private:
    void mark(uint32_t step, uint32_t layer, efaprof_phase phase) {
        lane_.mark({step, static_cast<uint16_t>(layer), phase},
                   step < options_.warmup ? StepKind::WarmUp : StepKind::Decode);
    }

    void run_step(uint32_t step) {
        mark(step, 0, EFAPROF_PHASE_STEP);
        for (uint32_t layer = 0; layer < options_.layers; layer++) {
            mark(step, layer, EFAPROF_PHASE_COMPUTE);
            stand_in(step, layer);
            mark(step, layer, EFAPROF_PHASE_DISPATCH);
            moe_.dispatch();
            mark(step, layer, EFAPROF_PHASE_COMPUTE);
            moe_.experts();
            mark(step, layer, EFAPROF_PHASE_COMBINE);
            moe_.combine();
            mark(step, layer, EFAPROF_PHASE_COMPUTE);
            moe_.verify();
        }
        record_counter("verify.tokens", static_cast<int64_t>(moe_.verified()), COUNT);
        record_counter("verify.mismatches", static_cast<int64_t>(moe_.mismatches()), COUNT);
    }

    void stand_in(uint32_t step, uint32_t layer) {
        uint64_t begin = efaprof_now();
        moe_.fill(step, layer);
        if (compute_ != 0) wait_until(begin + compute_, job_.ticks_per_ns);
        lane_.record_compute(EFAPROF_COMPUTE_STANDIN, begin, efaprof_now(), 0);
    }

    Lane &lane_;
    const Job &job_;
    const Options &options_;
    Moe moe_;
    uint64_t compute_; // ticks
};

void report(Job &job, const Engine &engine, const Lane &lane, const Steps &steps, uint64_t wall, uint32_t threads) {
    Result &result = job.results[engine.rank];
    result.lane = lane.counts();
    result.verified = steps.verified();
    result.wall_ns = static_cast<uint64_t>(static_cast<double>(wall) / job.ticks_per_ns);
    result.threads = threads;
    result.has_imm = engine.has_imm;
    snprintf(result.provider, sizeof result.provider, "%s", engine.fabric.provider_name());
}

} // namespace

void run_rank(Job &job, uint32_t rank) {
    char name[16];
    snprintf(name, sizeof name, "lane%u", rank);
    pthread_setname_np(pthread_self(), name);
    prctl(PR_SET_TIMERSLACK, 1ul, 0ul, 0ul, 0ul); // waits of some 100 µs are to end on time
    set_stop(&job.stop, rank);
    efaprof_set_producer("dispatch");
    uint32_t threads = thread_count(job.options);
    static Engine engine; // zeroed, and far too large for a stack's taste
    set_up(engine, job.options, job.ticks_per_ns, rank);
    open_fabric(engine, job.options, threads);
    connect(engine, job);
    record_identity(engine, job.options);
    Threads others;
    others.start(engine, threads);
    RingCarrier ring(engine);
    Lane lane(engine, ring, {job.options.signal, job.options.timeout_s, job.ticks_per_ns});
    Steps steps(engine, lane, job);
    meet(job);
    uint64_t wall = steps.run();
    report(job, engine, lane, steps, wall, threads);
    meet(job); // peers may need this rank's progress until they are done too
    __atomic_store_n(&engine.is_over, 1u, __ATOMIC_RELEASE);
    others.join();
    meet(job);
    take_down(engine);
}

} // namespace efaprof::dispatch
