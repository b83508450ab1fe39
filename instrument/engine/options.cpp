#include "options.h"

#include <string.h>

namespace efaprof::dispatch {

namespace {

constexpr uint32_t ELEMENT_BYTES[] = {4, 2, 1}; // by enum efaprof_moe_dtype

bool is_power(uint32_t value, uint32_t least, uint32_t most) {
    return value >= least && value <= most && (value & (value - 1)) == 0;
}

} // namespace

const char *fault_of(const efaprof_moe_options &asked) {
    if (asked.struct_bytes != sizeof asked) return "the options are of another version";
    if (asked.ranks < 2 || asked.ranks > protocol::MAX_RANKS) return "there must be 2 to 255 ranks";
    if (asked.rank >= asked.ranks) return "the rank is none of the job's";
    if (asked.tokens < 1 || asked.tokens > 65536) return "tokens must be 1 to 65536";
    if (asked.hidden < 1 || asked.hidden > UINT32_MAX / 16) return "hidden is out of range";
    if (asked.topk < 1 || asked.topk > protocol::MAX_TOPK) return "topk must be 1 to 32";
    if (asked.experts < asked.topk || asked.experts > 65535) return "there must be topk to 65535 experts";
    if (asked.experts % asked.ranks != 0) return "the experts cannot be shared out evenly over the ranks";
    if (asked.channels < 1 || asked.channels > protocol::MAX_CHANNELS) return "channels must be 1 to 254";
    if (asked.dtype > EFAPROF_MOE_FP8) return "dtype is unknown";
    if (asked.signal > EFAPROF_MOE_FENCE_BATCH) return "signal is unknown";
    if (asked.path > EFAPROF_MOE_GDAKI) return "path is unknown";
    if (asked.ring != 0 && !is_power(asked.ring, 2, 1u << 20)) return "ring must be a power of two, 2 to 1048576";
    if (asked.window != 0 && !is_power(asked.window, 1, protocol::WINDOW / 2))
        return "window must be a power of two, 1 to 256";
    if (asked.threads != 0 && asked.threads != 2 && asked.threads != 3) return "threads must be 2, 3 or 0";
    if (asked.provider == nullptr || strlen(asked.provider) >= PROVIDER_BYTES) return "provider must be a name";
    if (asked.path == EFAPROF_MOE_GDAKI && strcmp(asked.provider, "efa-direct") != 0)
        return "path gdaki posts to an EFA device: its provider is efa-direct";
    return nullptr;
}

Options options_of(const efaprof_moe_options &asked, const char *provider) {
    Options options;
    options.shape = {
        asked.ranks, asked.tokens, asked.hidden, asked.topk, asked.experts, asked.channels, ELEMENT_BYTES[asked.dtype]};
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

} // namespace efaprof::dispatch
