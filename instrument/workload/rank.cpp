#include "rank.h"

#include <pthread.h>
#include <stdio.h>
#include <sys/prctl.h>

#include "../gda/carrier.h"
#include "../gda/open.h"
#include "../gpu/pin.h"
#include "../gpu/rank.h"
#include "../proxy/loop.h"
#include "../proxy/wait.h"
#include "assemble.h"
#include "moe.h"

namespace efaprof::dispatch {

namespace {

uint64_t ticks(const Job &job, uint64_t ns) {
    return static_cast<uint64_t>(static_cast<double>(ns) * job.ticks_per_ns);
}

void connect(const Engine &engine, Job &job) {
    for (const Engine &one : engine.all())
        job.contacts[one.proxy][one.rank] = one.fabric.contact();
    meet(job);
    for (Engine &one : engine.all())
        one.fabric.connect(job.contacts[one.proxy], one.ranks);
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
    uint64_t checksum() const { return moe_.checksum(); }

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

void report(Job &job, const Engine &engine, const LaneCounts &counts, uint64_t verified, uint64_t wall,
            uint32_t threads) {
    Result &result = job.results[engine.rank];
    result.lane = counts;
    result.verified = verified;
    result.wall_ns = static_cast<uint64_t>(static_cast<double>(wall) / job.ticks_per_ns);
    result.threads = threads == 1 ? 1 : 1 + (threads - 1) * engine.proxies;
    result.has_imm = engine.has_imm;
}

// All steps over a lane; when it returns, every rank is through.
void run_steps(Job &job, Engine &engine, Carrier &carrier, uint32_t threads) {
    Lane lane(engine, carrier, {job.options.signal, job.options.timeout_s, job.ticks_per_ns});
    Steps steps(engine, lane, job);
    meet(job);
    uint64_t wall = steps.run();
    report(job, engine, lane.counts(), steps.verified(), wall, threads);
    job.results[engine.rank].checksum = steps.checksum();
    meet(job); // peers may need this rank's progress until they are done too
}

void name_provider(Job &job, const Engine &engine, const char *name) {
    Result &result = job.results[engine.rank];
    snprintf(result.provider, sizeof result.provider, "%s", name);
}

// The same with kernels on a GPU.
void run_gpu(Job &job, Engine &engine, uint32_t threads, const GdaQueues *queues) {
    GpuSteps steps(engine, job, queues);
    meet(job);
    uint64_t wall = steps.run();
    report(job, engine, steps.counts(), steps.verified(), wall, threads);
    job.results[engine.rank].gpu = steps.times();
    meet(job);
}

void run_proxy(Job &job, Engine &engine) {
    uint32_t threads = thread_count(job.options);
    if (job.options.is_pinned) pin_to_gpu(engine.rank);
    open_fabric(engine, job.options, threads);
    connect(engine, job);
    record_identity(engine, job.options);
    name_provider(job, engine, engine.fabric.provider_name());
    Threads others;
    others.start(engine, threads);
    if (job.options.device == Device::Cuda) {
        run_gpu(job, engine, threads, nullptr);
    } else {
        RingCarrier ring(engine);
        run_steps(job, engine, ring, threads);
    }
    for (Engine &one : engine.all())
        __atomic_store_n(&one.is_over, 1u, __ATOMIC_RELEASE);
    others.join();
}

template <typename Watch> void run_posting(Job &job, Engine &engine, GdaQueues &queues) {
    const Posting &posting = job.options.posting;
    GdaCarrier<Watch> carrier(engine, queues, {posting.batch, posting.fuzz, job.options.seed + engine.rank});
    run_steps(job, engine, carrier, 1);
}

void run_gdaki(Job &job, Engine &engine) {
    GdaQueuePair pair;
    if (job.options.is_pinned) pin_to_gpu(engine.rank);
    open_queues(engine, job.options, pair);
    job.contacts[0][engine.rank] = pair.contact();
    meet(job);
    pair.connect(job.contacts[0], engine.ranks, engine.rank);
    meet(job);
    record_identity(engine, job.options);
    char note[128];
    snprintf(note, sizeof note, "queues: %s on %s%s", pair.source_name(), pair.device_name(),
             pair.has_own_queue() ? ", cq_open_ext" : "");
    record_note(note, job.options.posting.counts ? 1 : 0);
    name_provider(job, engine, pair.source_name());
    if (job.options.device == Device::Cuda)
        run_gpu(job, engine, 1, &pair.queues());
    else if (job.options.posting.counts)
        run_posting<protocol::CounterWatch>(job, engine, pair.queues());
    else
        run_posting<protocol::CqWatch>(job, engine, pair.queues());
    meet(job);
    pair.close();
}

} // namespace

void run_rank(Job &job, uint32_t rank) {
    char name[16];
    snprintf(name, sizeof name, "lane%u", rank);
    pthread_setname_np(pthread_self(), name);
    prctl(PR_SET_TIMERSLACK, 1ul, 0ul, 0ul, 0ul); // waits of some 100 µs are to end on time
    set_stop(&job.stop, rank);
    efaprof_set_producer("dispatch");
    static Engine engines[protocol::MAX_PROXIES]; // zeroed, and far too large for a stack's taste
    Engine &engine = engines[0];
    set_up(engines, job.options, job.ticks_per_ns, rank);
    if (job.options.path == Path::Gdaki)
        run_gdaki(job, engine);
    else
        run_proxy(job, engine);
    meet(job);
    take_down(engine);
}

} // namespace efaprof::dispatch
