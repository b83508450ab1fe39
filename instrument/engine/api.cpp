#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include <new>

#include "rank_engine.h"

using namespace efaprof::dispatch;
namespace protocol = efaprof::protocol;

struct efaprof_moe {
    RankEngine rank;
    char provider[64];
    char error[640];
};

namespace {

[[gnu::format(printf, 2, 3)]] int refuse(efaprof_moe &moe, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(moe.error, sizeof moe.error, format, arguments);
    va_end(arguments);
    return EFAPROF_MOE_REFUSED;
}

// What stopped the rank, as the caller reads it.
int stopped(efaprof_moe &moe) {
    const Stop &stop = moe.rank.stop();
    while (__atomic_load_n(&stop.taken, __ATOMIC_ACQUIRE) != 0 && __atomic_load_n(&stop.written, __ATOMIC_ACQUIRE) == 0)
        sched_yield();
    snprintf(moe.error, sizeof moe.error, "rank %u: %s%s", stop.rank,
             stop.cause == Cause::Mismatch ? "data does not verify: " : "", stop.message);
    return stop.cause == Cause::Refused ? EFAPROF_MOE_REFUSED : EFAPROF_MOE_FAILED;
}

template <typename Body> int call(efaprof_moe &moe, Body body) {
    Stop &stop = moe.rank.stop();
    moe.error[0] = 0;
    if (__atomic_load_n(&stop.stopped, __ATOMIC_ACQUIRE) != 0) return stopped(moe);
    return guarded(&stop, moe.rank.engine().rank, body) ? EFAPROF_MOE_OK : stopped(moe);
}

bool is_power(uint32_t value, uint32_t least, uint32_t most) {
    return value >= least && value <= most && (value & (value - 1)) == 0;
}

// Why these options cannot be, or null.
const char *fault_of(const efaprof_moe_options &asked) {
    if (asked.ranks < 2 || asked.ranks > protocol::MAX_RANKS) return "there must be 2 to 255 ranks";
    if (asked.rank >= asked.ranks) return "the rank is none of the job's";
    if (asked.tokens < 1 || asked.tokens > 65536) return "tokens must be 1 to 65536";
    if (asked.hidden < 1 || asked.hidden > UINT32_MAX / 16) return "hidden is out of range";
    if (asked.topk < 1 || asked.topk > protocol::MAX_TOPK) return "topk must be 1 to 32";
    if (asked.experts < asked.topk || asked.experts > 65535) return "there must be topk to 65535 experts";
    if (asked.experts % asked.ranks != 0) return "the experts cannot be shared out evenly over the ranks";
    if (asked.channels < 1 || asked.channels > protocol::MAX_CHANNELS) return "channels must be 1 to 254";
    if (asked.dtype > EFAPROF_MOE_BF16) return "dtype is unknown";
    if (asked.signal > EFAPROF_MOE_FENCE_BATCH) return "signal is unknown";
    if (asked.path > EFAPROF_MOE_GDAKI) return "path is unknown";
    if (asked.ring != 0 && !is_power(asked.ring, 2, 1u << 20)) return "ring must be a power of two, 2 to 1048576";
    if (asked.window != 0 && !is_power(asked.window, 1, protocol::WINDOW / 2))
        return "window must be a power of two, 1 to 256";
    if (asked.threads != 0 && asked.threads != 2 && asked.threads != 3) return "threads must be 2, 3 or 0";
    if (asked.provider == nullptr || strlen(asked.provider) >= sizeof efaprof_moe::provider)
        return "provider must be a name";
    if (asked.path == EFAPROF_MOE_GDAKI && strcmp(asked.provider, "efa-direct") != 0)
        return "path gdaki posts to an EFA device: its provider is efa-direct";
    return nullptr;
}

Options options_of(const efaprof_moe_options &asked, const char *provider) {
    Options options;
    options.shape = {asked.ranks,
                     asked.tokens,
                     asked.hidden,
                     asked.topk,
                     asked.experts,
                     asked.channels,
                     asked.dtype == EFAPROF_MOE_BF16 ? 2u : 4u};
    options.signal = static_cast<SignalMode>(asked.signal);
    options.path = static_cast<Path>(asked.path);
    options.provider = provider;
    options.threads = asked.threads;
    if (asked.ring != 0) options.ring = asked.ring;
    if (asked.window != 0) options.window = asked.window;
    if (asked.timeout_s != 0) options.timeout_s = asked.timeout_s;
    const efaprof_moe_inject &inject = asked.inject;
    options.inject = {inject.kernel_ns,    inject.ring_ns, inject.proxy_ns,
                      inject.libfabric_ns, inject.nic_ns,  inject.rx_ns};
    return options;
}

// Why this dispatch cannot be, or null.
const char *fault_of(const efaprof_moe &moe, uint32_t layer, uint32_t tokens, const int64_t *experts) {
    const protocol::Shape &shape = moe.rank.options().shape;
    if (!moe.rank.is_in_step()) return "no step has begun";
    if (layer > UINT16_MAX) return "layer must be below 65536";
    if (tokens > shape.tokens) return "more tokens than the handle was opened for";
    for (uint32_t token = 0; token < tokens; token++) {
        const int64_t *chosen = &experts[size_t{token} * shape.topk];
        for (uint32_t k = 0; k < shape.topk; k++) {
            if (chosen[k] < 0 || chosen[k] >= shape.experts) return "a token names an expert that does not exist";
            for (uint32_t before = 0; before < k; before++)
                if (chosen[before] == chosen[k]) return "a token names an expert twice";
        }
    }
    return nullptr;
}

} // namespace

uint32_t efaprof_moe_version(void) {
    return EFAPROF_MOE_VERSION;
}

efaprof_moe *efaprof_moe_open(const efaprof_moe_options *asked, int *result, char *error, size_t error_bytes) {
    *result = EFAPROF_MOE_REFUSED;
    const char *fault = asked->struct_bytes != sizeof *asked ? "the options are of another version" : fault_of(*asked);
    if (fault != nullptr) {
        snprintf(error, error_bytes, "%s", fault);
        return nullptr;
    }
    // Zeroed, and aligned as the engine's words want it.
    void *memory = mmap(nullptr, sizeof(efaprof_moe), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) {
        *result = EFAPROF_MOE_FAILED;
        snprintf(error, error_bytes, "out of memory");
        return nullptr;
    }
    auto *moe = new (memory) efaprof_moe();
    snprintf(moe->provider, sizeof moe->provider, "%s", asked->provider);
    Options options = options_of(*asked, moe->provider);
    *result = call(*moe, [&] { moe->rank.open(options, asked->rank); });
    if (*result == EFAPROF_MOE_OK) return moe;
    snprintf(error, error_bytes, "%s", moe->error);
    efaprof_moe_close(moe);
    return nullptr;
}

int efaprof_moe_contact(efaprof_moe *moe, void *contact) {
    return call(*moe, [&] { moe->rank.contact(contact); });
}

int efaprof_moe_connect(efaprof_moe *moe, const void *contacts) {
    if (moe->rank.is_connected()) return refuse(*moe, "the ranks are connected already");
    return call(*moe, [&] { moe->rank.connect(contacts); });
}

int efaprof_moe_begin_step(efaprof_moe *moe, uint32_t step, int kind) {
    if (!moe->rank.is_connected()) return refuse(*moe, "the ranks are not connected");
    if (kind < EFAPROF_MOE_DECODE || kind > EFAPROF_MOE_PAUSE) return refuse(*moe, "%d is no kind of step", kind);
    return call(*moe, [&] { moe->rank.begin_step(step, static_cast<StepKind>(kind), kind == EFAPROF_MOE_PAUSE); });
}

int efaprof_moe_end_step(efaprof_moe *moe) {
    if (!moe->rank.is_in_step()) return refuse(*moe, "no step has begun");
    return call(*moe, [&] { moe->rank.end_step(); });
}

int efaprof_moe_dispatch(efaprof_moe *moe, uint32_t layer, uint32_t tokens, const void *x, const int64_t *experts,
                         const float *weights, void *recv_x, int32_t *recv_experts, float *recv_weights,
                         int32_t *received) {
    const char *fault = fault_of(*moe, layer, tokens, experts);
    if (fault != nullptr) return refuse(*moe, "%s", fault);
    return call(*moe, [&] {
        moe->rank.dispatch(layer, {tokens, x, experts, weights}, {recv_x, recv_experts, recv_weights, received});
    });
}

int efaprof_moe_combine(efaprof_moe *moe, const void *y, void *out) {
    if (!moe->rank.has_tokens()) return refuse(*moe, "nothing was dispatched in this step");
    return call(*moe, [&] { moe->rank.combine(y, out); });
}

void efaprof_moe_counts(const efaprof_moe *moe, uint64_t counts[4]) {
    LaneCounts all = moe->rank.is_connected() ? moe->rank.counts() : LaneCounts{};
    counts[0] = all.puts;
    counts[1] = all.notifies;
    counts[2] = all.signals;
    counts[3] = all.barriers;
}

const char *efaprof_moe_error(const efaprof_moe *moe) {
    return moe->error;
}

void efaprof_moe_close(efaprof_moe *moe) {
    if (moe == nullptr) return;
    if (moe->rank.is_connected()) call(*moe, [&] { moe->rank.part(); }); // a failure changes nothing any more
    moe->rank.close();
    moe->~efaprof_moe();
    munmap(moe, sizeof *moe);
}
