#include "calls.h"
#include "rank_engine.h"

using namespace efaprof::dispatch;
namespace protocol = efaprof::protocol;

struct efaprof_moe : Handle<RankEngine> {};

namespace {

// Why a CPU cannot serve these options, or null.
const char *fault_on_cpu(const efaprof_moe_options &asked) {
    if (const char *fault = fault_of(asked)) return fault;
    return asked.dtype == EFAPROF_MOE_FP8 ? "a CPU moves f32 or bf16; fp8 needs kernels on a GPU" : nullptr;
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
    auto open = [&](RankEngine &rank, const Options &options) { rank.open(options, asked->rank); };
    return open_handle(asked, fault_on_cpu(*asked), result, error, error_bytes, open, efaprof_moe_close);
}

int efaprof_moe_contact(efaprof_moe *moe, void *contact) {
    return moe->call([&] { moe->rank.contact(contact); });
}

int efaprof_moe_connect(efaprof_moe *moe, const void *contacts) {
    if (moe->rank.is_connected()) return moe->refuse("the ranks are connected already");
    return moe->call([&] { moe->rank.connect(contacts); });
}

int efaprof_moe_begin_step(efaprof_moe *moe, uint32_t step, int kind) {
    if (!moe->rank.is_connected()) return moe->refuse("the ranks are not connected");
    if (kind < EFAPROF_MOE_DECODE || kind > EFAPROF_MOE_PAUSE) return moe->refuse("%d is no kind of step", kind);
    return moe->call([&] { moe->rank.begin_step(step, static_cast<StepKind>(kind), kind == EFAPROF_MOE_PAUSE); });
}

int efaprof_moe_end_step(efaprof_moe *moe) {
    if (!moe->rank.is_in_step()) return moe->refuse("no step has begun");
    return moe->call([&] { moe->rank.end_step(); });
}

int efaprof_moe_dispatch(efaprof_moe *moe, uint32_t layer, uint32_t tokens, const void *x, const int64_t *experts,
                         const float *weights, void *recv_x, int32_t *recv_experts, float *recv_weights,
                         int32_t *received) {
    const char *fault = fault_of(*moe, layer, tokens, experts);
    if (fault != nullptr) return moe->refuse("%s", fault);
    return moe->call([&] {
        moe->rank.dispatch(layer, {tokens, x, experts, weights}, {recv_x, recv_experts, recv_weights, received});
    });
}

int efaprof_moe_combine(efaprof_moe *moe, const void *y, void *out) {
    if (!moe->rank.has_tokens()) return moe->refuse("nothing was dispatched in this step");
    return moe->call([&] { moe->rank.combine(y, out); });
}

void efaprof_moe_counts(const efaprof_moe *moe, uint64_t counts[4]) {
    write_counts(moe->rank.is_connected() ? moe->rank.counts() : LaneCounts{}, counts);
}

const char *efaprof_moe_error(const efaprof_moe *moe) {
    return moe->error;
}

void efaprof_moe_close(efaprof_moe *moe) {
    close_handle(moe);
}
