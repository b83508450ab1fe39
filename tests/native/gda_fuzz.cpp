// Two ranks whose lanes post by themselves, over a device in this process that does wrong what a case says: it
// reorders, delays, drops, errs, repeats, flips bits, writes garbage. Each case must end soon: with every token
// verified, or with one line that names what went wrong.
//
//   gda_fuzz FAULT FIRST_SEED CASES [entries] [counter] [cuda]
//     entries   the poster's own entries are spoiled, not the device's answers
//     counter   the device counts ends instead of telling of each; signals behind fences
//     cuda      the lanes are kernels of libefaprof-cuda.so
//
// Prints a line a case: "SEED FAULTS verified|named|wrong MS MESSAGE".
#include <new>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include <efaprof/trace.h>

#include "gda/carrier.h"
#include "gpu/library.h"
#include "gpu/rank.h"
#include "proxy/make.h"
#include "proxy/stop.h"
#include "workload/assemble.h"
#include "workload/job.h"
#include "workload/moe.h"

using namespace efaprof::dispatch;
using namespace efaprof;

namespace {

constexpr uint32_t RANKS = 2, ENTRIES = 32, COMPLETIONS = 256, STEPS = 6, MOST_OPS = 64, WINDOW = 16;
constexpr uint16_t QPN = 7;
constexpr uint32_t RKEY = 0x1234, LKEY = 0x77, QKEY = 0x99;
// Seconds that a lane waits: long where nothing is to go wrong and the machine may be busy.
constexpr double LONG_PATIENCE_S = 30, PATIENCE_S = 0.2;
constexpr size_t PAGE = 4096;

struct Op {
    softefa_wqe wqe;
    uint32_t wait; // turns of the device before it may go on
};

// One rank's queues, and what the device has taken from them.
struct Nic {
    // Pages of their own: a GPU maps them one by one.
    alignas(PAGE) uint64_t send[ENTRIES * protocol::WQE_WORDS];
    alignas(PAGE) uint64_t completions[COMPLETIONS * 4];
    alignas(PAGE) uint64_t counts[2]; // ended, failed
    alignas(PAGE) uint32_t doorbell;
    alignas(PAGE) uint32_t taken;
    uint64_t produced;
    Op ops[MOST_OPS];
    uint32_t op_count;
};

struct Device {
    Nic nics[RANKS];
    uint8_t *memory[RANKS];
    uint64_t memory_bytes;
    const char *fault;
    uint64_t random;
    uint32_t faults; // done
    uint32_t is_over;
    bool counts; // ends, instead of telling of each
};

// What a GPU maps of an engine lies in its pages alone.
struct alignas(PAGE) OwnEngine {
    Engine engine;
};

Device device;
Job *job;
OwnEngine engines[RANKS];
bool is_on_gpu;
pthread_mutex_t opening = PTHREAD_MUTEX_INITIALIZER; // nobody synchronizes with a GPU while another captures
pthread_barrier_t all_open;                          // memory is not taken from a GPU while a kernel waits for a peer

uint32_t draw(uint32_t below) {
    device.random = protocol::mix(device.random);
    return static_cast<uint32_t>(device.random >> 20) % below;
}
bool is(const char *fault) {
    return strcmp(device.fault, fault) == 0;
}
bool is_harmless() {
    return is("none") || is("reorder") || is("delay");
}
// Now and then, and never after three times: a case is to have an end of its own.
bool strikes(const char *fault) {
    if (!is(fault) || device.faults >= 3 || draw(40) != 0) return false;
    device.faults++;
    return true;
}

void write_completion(Nic &nic, softefa_cqe entry) {
    entry.qpn = entry.qpn == 0 ? QPN : entry.qpn;
    if (strikes("garbage")) {
        auto *bytes = reinterpret_cast<uint8_t *>(&entry);
        for (size_t i = 0; i < sizeof entry; i++)
            bytes[i] = static_cast<uint8_t>(draw(256));
        if (draw(2) == 0) entry.status = SOFTEFA_OK;
    }
    if (strikes("qpn")) entry.qpn ^= static_cast<uint16_t>(1 + draw(255));
    bool is_end = (entry.flags & SOFTEFA_CQE_QUEUE) >> SOFTEFA_CQE_QUEUE_SHIFT == SOFTEFA_SQ;
    if (is_end && strikes("request")) entry.req_id = static_cast<uint16_t>(WINDOW + draw(65536 - WINDOW));
    bool has_imm = (entry.flags & SOFTEFA_CQE_IMM) != 0;
    if (has_imm && strikes("immediate")) entry.imm ^= 1u << draw(32);
    uint64_t lap = nic.produced / COMPLETIONS & 1;
    entry.flags = static_cast<uint8_t>((entry.flags & ~SOFTEFA_CQE_PHASE) | (lap ^ 1));
    uint64_t words[4];
    memcpy(words, &entry, sizeof words);
    uint64_t *slot = &nic.completions[nic.produced++ % COMPLETIONS * 4];
    for (int i = 3; i > 0; i--)
        __atomic_store_n(slot + i, words[i], __ATOMIC_RELAXED);
    __atomic_store_n(slot, words[0], __ATOMIC_RELEASE);
}

// What the device says of an entry before it does anything.
uint8_t status_of(const softefa_wqe &wqe) {
    constexpr uint8_t WHOLE = SOFTEFA_CTRL2_FIRST | SOFTEFA_CTRL2_LAST;
    uint64_t local = static_cast<uint64_t>(wqe.u.rdma.local.addr_hi) << 32 | wqe.u.rdma.local.addr_lo;
    uint64_t there = static_cast<uint64_t>(wqe.u.rdma.remote.addr_hi) << 32 | wqe.u.rdma.remote.addr_lo;
    if ((wqe.meta.ctrl2 & WHOLE) != WHOLE || (wqe.meta.ctrl1 & SOFTEFA_CTRL1_META) == 0) return SOFTEFA_QP_INTERNAL;
    if ((wqe.meta.ctrl1 & SOFTEFA_CTRL1_OP) != SOFTEFA_WRITE) return SOFTEFA_UNSUPPORTED_OP;
    if (wqe.meta.ah >= RANKS) return SOFTEFA_INVALID_AH;
    if (wqe.meta.dest_qpn != QPN || wqe.meta.qkey != QKEY) return SOFTEFA_REMOTE_BAD_QPN;
    if (wqe.meta.length != 1 || wqe.u.rdma.local.length != wqe.u.rdma.remote.length) return SOFTEFA_BAD_LENGTH;
    uint64_t bytes = wqe.u.rdma.local.length;
    auto fits = [&](uint64_t at) { return bytes <= device.memory_bytes && at <= device.memory_bytes - bytes; };
    if (wqe.u.rdma.local.lkey != LKEY || !fits(local)) return SOFTEFA_INVALID_LKEY;
    if (wqe.u.rdma.remote.rkey != RKEY || !fits(there)) return SOFTEFA_REMOTE_BAD_ADDRESS;
    return SOFTEFA_OK;
}

void deliver(uint32_t rank, const softefa_wqe &wqe) {
    uint32_t target = wqe.meta.ah, bytes = wqe.u.rdma.local.length;
    uint8_t *to = device.memory[target] + wqe.u.rdma.remote.addr_lo;
    memcpy(to, device.memory[rank] + wqe.u.rdma.local.addr_lo, bytes);
    if (bytes >= 64 && strikes("flip")) to[draw(bytes)] ^= static_cast<uint8_t>(1u << draw(8));
    if ((wqe.meta.ctrl1 & SOFTEFA_CTRL1_IMM) == 0) return;
    softefa_cqe arrival = {};
    arrival.flags = static_cast<uint8_t>(SOFTEFA_RQ << SOFTEFA_CQE_QUEUE_SHIFT | SOFTEFA_CQE_IMM |
                                         SOFTEFA_WRITE << SOFTEFA_CQE_OP_SHIFT | SOFTEFA_CQE_UNSOLICITED);
    arrival.imm = wqe.meta.imm;
    write_completion(device.nics[target], arrival);
    if (strikes("repeat")) write_completion(device.nics[target], arrival);
}

void end_op(uint32_t rank, const softefa_wqe &wqe) {
    uint8_t status = status_of(wqe);
    if (strikes("drop")) return;
    if (status == SOFTEFA_OK && strikes("error")) status = static_cast<uint8_t>(1 + draw(20));
    if (status == SOFTEFA_OK) deliver(rank, wqe);
    if (strikes("lose")) return;
    if (device.counts) {
        __atomic_fetch_add(&device.nics[rank].counts[status == SOFTEFA_OK ? 0 : 1], 1, __ATOMIC_RELEASE);
        return;
    }
    softefa_cqe end = {};
    end.req_id = wqe.meta.req_id;
    end.status = status;
    end.flags = static_cast<uint8_t>(SOFTEFA_SQ << SOFTEFA_CQE_QUEUE_SHIFT | SOFTEFA_WRITE << SOFTEFA_CQE_OP_SHIFT);
    write_completion(device.nics[rank], end);
    if (strikes("twice")) write_completion(device.nics[rank], end);
}

bool take(uint32_t rank) {
    Nic &nic = device.nics[rank];
    auto announced = static_cast<uint16_t>(__atomic_load_n(&nic.doorbell, __ATOMIC_ACQUIRE) - nic.taken);
    bool did = false;
    for (uint16_t i = 0; i < announced && nic.op_count < MOST_OPS; i++) {
        Op &op = nic.ops[nic.op_count++];
        memcpy(&op.wqe, &nic.send[nic.taken % ENTRIES * protocol::WQE_WORDS], sizeof op.wqe);
        if ((op.wqe.meta.ctrl2 & SOFTEFA_CTRL2_PHASE) != (nic.taken / ENTRIES & 1)) op.wqe.meta.ctrl2 = 0;
        op.wait = is("delay") ? draw(100) : draw(8);
        nic.taken++;
        did = true;
    }
    return did;
}

// One operation, any of those that are there, whose wait is over.
bool proceed(uint32_t rank) {
    Nic &nic = device.nics[rank];
    if (nic.op_count == 0) return false;
    uint32_t at = is("none") ? 0 : draw(nic.op_count);
    if (nic.ops[at].wait-- > 1) return false;
    softefa_wqe wqe = nic.ops[at].wqe;
    memmove(&nic.ops[at], &nic.ops[at + 1], (--nic.op_count - at) * sizeof(Op));
    end_op(rank, wqe);
    return true;
}

void *serve(void *) {
    while (__atomic_load_n(&device.is_over, __ATOMIC_ACQUIRE) == 0) {
        bool did = false;
        for (uint32_t rank = 0; rank < RANKS; rank++)
            did = take(rank) | proceed(rank) | did;
        if (!did) sched_yield();
    }
    return nullptr;
}

// ---- a rank ------------------------------------------------------------------------------------------
struct Rank {
    uint32_t number;
    uint32_t spoiled; // of a thousand entries
    uint64_t seed;
    uint64_t verified;
    bool is_through;
};

GdaQueues queues_of(uint32_t rank, const protocol::Target *targets) {
    Nic &nic = device.nics[rank];
    GdaQueues queues = {};
    queues.send = {nic.send, &nic.doorbell, ENTRIES, 16, 0, 0};
    queues.completions = {reinterpret_cast<uint8_t *>(nic.completions), nullptr, COMPLETIONS, 32, 0, 0};
    if (device.counts) queues.counter = {&nic.counts[0], &nic.counts[1], 0, 0, 0};
    queues.targets = targets;
    queues.lkey = LKEY;
    queues.qpn = QPN;
    queues.is_unsolicited = true;
    return queues;
}

void run_steps(Lane &lane, Moe &moe) {
    for (uint32_t step = 0; step < STEPS; step++) {
        lane.mark({step, 0, EFAPROF_PHASE_STEP}, StepKind::Decode);
        moe.fill(step, 0);
        moe.dispatch();
        moe.experts();
        moe.combine();
        moe.verify();
    }
    lane.drain();
}

template <typename Watch> void run_lane(Rank &rank, GdaQueues &queues) {
    Engine &engine = engines[rank.number].engine;
    GdaCarrier<Watch> carrier(engine, queues, {8, rank.spoiled, rank.seed});
    double patience_s = is_harmless() && rank.spoiled == 0 ? LONG_PATIENCE_S : PATIENCE_S;
    Lane lane(engine, carrier, {job->options.signal, 1, job->ticks_per_ns * patience_s});
    Moe moe(engine, lane, job->options);
    rank.is_through = guarded(&job->stop, rank.number, [&] { run_steps(lane, moe); });
    rank.verified = moe.verified();
}

// The kernels keep a whole second's patience. What they hold is given back with care: they may still be waiting.
void run_kernels(Rank &rank, GdaQueues &queues) {
    GpuSteps *steps = nullptr;
    pthread_mutex_lock(&opening);
    bool is_open = guarded(&job->stop, rank.number, [&] {
        steps = new (make<GpuSteps>(1)) GpuSteps(engines[rank.number].engine, *job, &queues);
    });
    pthread_mutex_unlock(&opening);
    pthread_barrier_wait(&all_open);
    rank.is_through = is_open && guarded(&job->stop, rank.number, [&] { steps->run(); });
    if (steps == nullptr) return;
    rank.verified = steps->verified();
    if (!rank.is_through) steps->stop();
    steps->~GpuSteps();
    free(steps);
}

void *run(void *argument) {
    auto &rank = *static_cast<Rank *>(argument);
    protocol::Target targets[RANKS];
    for (uint16_t i = 0; i < RANKS; i++)
        targets[i] = {0, RKEY, QKEY, QPN, i};
    GdaQueues queues = queues_of(rank.number, targets);
    if (is_on_gpu)
        run_kernels(rank, queues);
    else if (device.counts)
        run_lane<protocol::CounterWatch>(rank, queues);
    else
        run_lane<protocol::CqWatch>(rank, queues);
    return nullptr;
}

void run_case(uint64_t seed, uint32_t spoiled) {
    job->stop = {};
    memset(&device.nics, 0, sizeof device.nics);
    device.random = seed;
    device.faults = device.is_over = 0;
    job->options.signal = seed % 2 == 0 && !device.counts ? SignalMode::Imm : SignalMode::Fence;
    job->options.posting.fuzz = spoiled;
    job->options.timeout_s = is_harmless() && spoiled == 0 ? static_cast<uint32_t>(LONG_PATIENCE_S) : 1;
    job->options.seed = seed;
    for (uint32_t rank = 0; rank < RANKS; rank++) {
        Engine &engine = engines[rank].engine;
        memset(static_cast<void *>(&engine), 0, sizeof engine);
        set_up(&engine, job->options, job->ticks_per_ns, rank);
        map_memory(engine);
        engine.has_imm = !device.counts;
        device.memory[rank] = engine.memory;
    }
    device.memory_bytes = engines[0].engine.memory_bytes();
    Rank ranks[RANKS] = {{0, spoiled, seed * 2, 0, false}, {1, spoiled, seed * 2 + 1, 0, false}};
    pthread_t threads[RANKS + 1];
    uint64_t begin = efaprof_now();
    pthread_create(&threads[RANKS], nullptr, serve, nullptr);
    for (uint32_t rank = 0; rank < RANKS; rank++)
        pthread_create(&threads[rank], nullptr, run, &ranks[rank]);
    for (uint32_t rank = 0; rank < RANKS; rank++)
        pthread_join(threads[rank], nullptr);
    double ms = static_cast<double>(efaprof_now() - begin) / job->ticks_per_ns / 1e6;
    __atomic_store_n(&device.is_over, 1u, __ATOMIC_RELEASE);
    pthread_join(threads[RANKS], nullptr);
    uint64_t tokens = ranks[0].verified + ranks[1].verified;
    bool is_whole = ranks[0].is_through && ranks[1].is_through;
    bool is_right = is_whole && tokens == uint64_t{RANKS} * job->options.shape.tokens * STEPS;
    bool is_named = !is_whole && job->stop.written != 0 && job->stop.message[0] != 0;
    printf("%llu %u %s %.1f %s\n", static_cast<unsigned long long>(seed), device.faults,
           is_right   ? "verified"
           : is_named ? "named"
                      : "wrong",
           ms, is_named ? job->stop.message : "-");
    fflush(stdout);
    for (OwnEngine &own : engines)
        take_down(own.engine);
}

} // namespace

int main(int count, char **words) {
    if (count < 4) return 2;
    Options options;
    options.shape = {RANKS, 6, 16, 2, 8, 2};
    options.window = WINDOW;
    options.compute_ns = 0;
    options.path = Path::Gdaki;
    options.layers = 1;
    options.steps = STEPS;
    options.warmup = 0;
    uint32_t spoiled = 0;
    for (int i = 4; i < count; i++) {
        if (strcmp(words[i], "entries") == 0) spoiled = 10;
        device.counts = device.counts || strcmp(words[i], "counter") == 0;
        is_on_gpu = is_on_gpu || strcmp(words[i], "cuda") == 0;
    }
    if (is_on_gpu) {
        char why[240];
        options.device = efaprof::dispatch::Device::Cuda;
        options.shape.element_bytes = 2;
        options.posting.batch = 8;
        setenv("CUDA_MODULE_LOADING", "EAGER", 1);
        pthread_barrier_init(&all_open, nullptr, RANKS);
        if (!open_gpu_library(why, sizeof why)) {
            fprintf(stderr, "gda_fuzz: %s\n", why);
            return 2;
        }
    }
    job = make_job(options);
    set_stop(&job->stop, 0);
    device.fault = words[1];
    uint64_t first = strtoull(words[2], nullptr, 10), cases = strtoull(words[3], nullptr, 10);
    for (uint64_t seed = first; seed < first + cases; seed++)
        run_case(seed, spoiled);
    return 0;
}
