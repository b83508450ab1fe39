#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

#include <new>

#include "efaprof_moe_gpu.h"
#include "model.h"

using namespace efaprof::dispatch;
namespace gpu = efaprof::gpu;
namespace protocol = efaprof::protocol;

struct efaprof_moe_gpu {
    GpuModel model;
    char provider[64];
    char error[640];
};

namespace {

// Runs `body`; what stopped the rank becomes text for the caller.
template <typename Body> int call(efaprof_moe_gpu &moe, Body body) {
    Stop &stop = moe.model.stop();
    moe.error[0] = 0;
    bool is_well = __atomic_load_n(&stop.stopped, __ATOMIC_ACQUIRE) == 0;
    if (is_well && guarded(&stop, moe.model.rank(), body)) return EFAPROF_MOE_OK;
    while (__atomic_load_n(&stop.taken, __ATOMIC_ACQUIRE) != 0 && __atomic_load_n(&stop.written, __ATOMIC_ACQUIRE) == 0)
        sched_yield();
    snprintf(moe.error, sizeof moe.error, "rank %u: %s", stop.rank, stop.message);
    return stop.cause == Cause::Refused ? EFAPROF_MOE_REFUSED : EFAPROF_MOE_FAILED;
}

int refuse(efaprof_moe_gpu &moe, const char *why) {
    snprintf(moe.error, sizeof moe.error, "%s", why);
    return EFAPROF_MOE_REFUSED;
}

bool is_power(uint32_t value, uint32_t least, uint32_t most) {
    return value >= least && value <= most && (value & (value - 1)) == 0;
}

// Why kernels cannot serve these options, or null.
const char *fault_of(const efaprof_moe_options &asked) {
    if (asked.struct_bytes != sizeof asked) return "the options are of another version";
    if (asked.ranks < 2 || asked.ranks > protocol::MAX_RANKS || asked.rank >= asked.ranks)
        return "there must be 2 to 255 ranks, and the rank one of them";
    if (asked.dtype != EFAPROF_MOE_BF16) return "kernels on a GPU move bfloat16";
    if (asked.hidden < 8 || asked.hidden % 8 != 0 || asked.hidden > 32768)
        return "hidden must be a multiple of 8 up to 32768 on a GPU";
    if (asked.tokens < 1 || asked.tokens > 65536) return "tokens must be 1 to 65536";
    if (asked.topk < 1 || asked.topk > protocol::MAX_TOPK || asked.experts < asked.topk || asked.experts > 65535 ||
        asked.experts % asked.ranks != 0)
        return "topk must be 1 to 32, and at most the experts, which must be shared out evenly over the ranks";
    if (asked.channels < 1 || asked.channels > protocol::MAX_CHANNELS) return "channels must be 1 to 254";
    if (asked.signal > EFAPROF_MOE_FENCE_BATCH) return "signal is unknown";
    if (asked.ring != 0 && !is_power(asked.ring, 64, 1u << 20)) return "ring must be a power of two, 64 to 1048576";
    if (asked.window != 0 && !is_power(asked.window, 1, protocol::WINDOW / 2))
        return "window must be a power of two, 1 to 256";
    if (asked.threads != 0 && asked.threads != 2 && asked.threads != 3) return "threads must be 2, 3 or 0";
    if (asked.provider == nullptr || strlen(asked.provider) >= sizeof efaprof_moe_gpu::provider)
        return "provider must be a name";
    return nullptr;
}

Options options_of(const efaprof_moe_options &asked, const char *provider) {
    Options options;
    options.shape = {asked.ranks, asked.tokens, asked.hidden, asked.topk, asked.experts, asked.channels, 2};
    options.device = Device::Cuda;
    options.signal = static_cast<SignalMode>(asked.signal);
    options.provider = provider;
    options.threads = asked.threads;
    if (asked.ring != 0) options.ring = asked.ring;
    if (asked.window != 0) options.window = asked.window;
    if (asked.timeout_s != 0) options.timeout_s = asked.timeout_s;
    options.inject = {asked.inject.kernel_ns,    asked.inject.ring_ns, asked.inject.proxy_ns,
                      asked.inject.libfabric_ns, asked.inject.nic_ns,  asked.inject.rx_ns};
    return options;
}

} // namespace

efaprof_moe_gpu *efaprof_moe_gpu_open(const efaprof_moe_options *asked, uint32_t device, int *result, char *error,
                                      size_t error_bytes) {
    *result = EFAPROF_MOE_REFUSED;
    if (const char *fault = fault_of(*asked)) {
        snprintf(error, error_bytes, "%s", fault);
        return nullptr;
    }
    // Zeroed, and aligned as the engine's words want it.
    void *memory = mmap(nullptr, sizeof(efaprof_moe_gpu), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) {
        *result = EFAPROF_MOE_FAILED;
        snprintf(error, error_bytes, "out of memory");
        return nullptr;
    }
    auto *moe = new (memory) efaprof_moe_gpu();
    snprintf(moe->provider, sizeof moe->provider, "%s", asked->provider);
    Options options = options_of(*asked, moe->provider);
    *result = call(*moe, [&] { moe->model.open(options, asked->rank, device); });
    if (*result == EFAPROF_MOE_OK) return moe;
    snprintf(error, error_bytes, "%s", moe->error);
    efaprof_moe_gpu_close(moe);
    return nullptr;
}

int efaprof_moe_gpu_contact(efaprof_moe_gpu *moe, void *contact) {
    return call(*moe, [&] { moe->model.contact(contact); });
}

int efaprof_moe_gpu_connect(efaprof_moe_gpu *moe, const void *contacts) {
    if (moe->model.is_connected()) return refuse(*moe, "the ranks are connected already");
    return call(*moe, [&] { moe->model.connect(contacts); });
}

int efaprof_moe_gpu_begin_step(efaprof_moe_gpu *moe, uint32_t step, int kind, void *stream) {
    if (!moe->model.is_connected()) return refuse(*moe, "the ranks are not connected");
    if (kind < EFAPROF_MOE_DECODE || kind > EFAPROF_MOE_PAUSE) return refuse(*moe, "there is no such kind of step");
    return call(*moe, [&] { moe->model.begin_step(step, static_cast<uint32_t>(kind), stream); });
}

int efaprof_moe_gpu_end_step(efaprof_moe_gpu *moe, void *stream) {
    if (!moe->model.is_connected()) return refuse(*moe, "the ranks are not connected");
    return call(*moe, [&] { moe->model.end_step(stream); });
}

int efaprof_moe_gpu_dispatch(efaprof_moe_gpu *moe, uint32_t layer, uint32_t tokens, const void *x,
                             const int64_t *experts, const float *weights, void *recv_x, int32_t *recv_experts,
                             float *recv_weights, int32_t *received, void *stream) {
    if (!moe->model.is_connected()) return refuse(*moe, "the ranks are not connected");
    if (layer > UINT16_MAX || tokens > moe->model.options().shape.tokens)
        return refuse(*moe, "layers must be below 65536, and tokens no more than the handle was opened for");
    return call(*moe, [&] {
        moe->model.dispatch({layer, tokens, x, experts, weights, recv_x, recv_experts, recv_weights, received}, stream);
    });
}

int efaprof_moe_gpu_combine(efaprof_moe_gpu *moe, uint32_t layer, uint32_t tokens, const void *y, void *out,
                            void *stream) {
    if (!moe->model.is_connected()) return refuse(*moe, "the ranks are not connected");
    if (tokens > moe->model.options().shape.tokens) return refuse(*moe, "more tokens than were dispatched");
    return call(*moe, [&] { moe->model.combine({layer, tokens, y, out}, stream); });
}

void efaprof_moe_gpu_counts(const efaprof_moe_gpu *moe, uint64_t counts[4]) {
    LaneCounts all = moe->model.is_connected() ? moe->model.counts() : LaneCounts{};
    counts[0] = all.puts;
    counts[1] = all.notifies;
    counts[2] = all.signals;
    counts[3] = all.barriers;
}

const char *efaprof_moe_gpu_error(const efaprof_moe_gpu *moe) {
    return moe->error;
}

void efaprof_moe_gpu_close(efaprof_moe_gpu *moe) {
    if (moe == nullptr) return;
    if (moe->model.is_connected()) call(*moe, [&] { moe->model.part(); }); // a failure changes nothing any more
    moe->model.close();
    moe->~efaprof_moe_gpu();
    munmap(moe, sizeof *moe);
}
