#include "../engine/calls.h"
#include "efaprof_moe_gpu.h"
#include "model.h"

using namespace efaprof::dispatch;
namespace gpu = efaprof::gpu;

struct efaprof_moe_gpu : Handle<GpuModel> {};

namespace {

// Why kernels cannot serve these options, or null.
const char *fault_on_gpu(const efaprof_moe_options &asked) {
    if (const char *fault = fault_of(asked)) return fault;
    if (asked.dtype == EFAPROF_MOE_F32) return "kernels on a GPU move bf16 or fp8";
    if (asked.dtype == EFAPROF_MOE_FP8 && asked.hidden % 128 != 0)
        return "hidden must be a multiple of 128 where tokens travel as fp8 with a scale for each 128";
    if (asked.hidden % 8 != 0 || asked.hidden > 32768) return "hidden must be a multiple of 8 up to 32768 on a GPU";
    if (asked.ring != 0 && asked.ring < 64)
        return "ring must be 64 or more on a GPU: a warp pushes 32 commands at a time";
    return nullptr;
}

} // namespace

efaprof_moe_gpu *efaprof_moe_gpu_open(const efaprof_moe_options *asked, uint32_t device, int *result, char *error,
                                      size_t error_bytes) {
    auto open = [&](GpuModel &rank, const Options &options) { rank.open(options, asked->rank, device); };
    return open_handle(asked, fault_on_gpu(*asked), result, error, error_bytes, open, efaprof_moe_gpu_close);
}

int efaprof_moe_gpu_contact(efaprof_moe_gpu *moe, void *contact) {
    return moe->call([&] { moe->rank.contact(contact); });
}

int efaprof_moe_gpu_connect(efaprof_moe_gpu *moe, const void *contacts) {
    if (moe->rank.is_connected()) return moe->refuse("the ranks are connected already");
    return moe->call([&] { moe->rank.connect(contacts); });
}

int efaprof_moe_gpu_begin_step(efaprof_moe_gpu *moe, uint32_t step, int kind, void *stream) {
    if (!moe->rank.is_connected()) return moe->refuse("the ranks are not connected");
    if (kind < EFAPROF_MOE_DECODE || kind > EFAPROF_MOE_PAUSE) return moe->refuse("there is no such kind of step");
    return moe->call([&] { moe->rank.begin_step(step, static_cast<uint32_t>(kind), stream); });
}

int efaprof_moe_gpu_end_step(efaprof_moe_gpu *moe, void *stream) {
    if (!moe->rank.is_connected()) return moe->refuse("the ranks are not connected");
    return moe->call([&] { moe->rank.end_step(stream); });
}

int efaprof_moe_gpu_dispatch(efaprof_moe_gpu *moe, uint32_t layer, uint32_t tokens, const void *x,
                             const int64_t *experts, const float *weights, void *recv_x, int32_t *recv_experts,
                             float *recv_weights, int32_t *received, void *stream) {
    if (!moe->rank.is_connected()) return moe->refuse("the ranks are not connected");
    if (layer > UINT16_MAX || tokens > moe->rank.options().shape.tokens)
        return moe->refuse("layers must be below 65536, and tokens no more than the handle was opened for");
    return moe->call([&] {
        moe->rank.dispatch({layer, tokens, x, experts, weights, recv_x, recv_experts, recv_weights, received}, stream);
    });
}

int efaprof_moe_gpu_combine(efaprof_moe_gpu *moe, uint32_t layer, uint32_t tokens, const void *y, void *out,
                            void *stream) {
    if (!moe->rank.is_connected()) return moe->refuse("the ranks are not connected");
    if (tokens > moe->rank.options().shape.tokens) return moe->refuse("more tokens than were dispatched");
    return moe->call([&] { moe->rank.combine({layer, tokens, y, out}, stream); });
}

void efaprof_moe_gpu_counts(const efaprof_moe_gpu *moe, uint64_t counts[4]) {
    write_counts(moe->rank.is_connected() ? moe->rank.counts() : LaneCounts{}, counts);
}

const char *efaprof_moe_gpu_error(const efaprof_moe_gpu *moe) {
    return moe->error;
}

void efaprof_moe_gpu_close(efaprof_moe_gpu *moe) {
    close_handle(moe);
}
