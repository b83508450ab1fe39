#include "waits.h"

#include <core/annotate.h>
#include <core/writer.h>

#include <string.h>

namespace efaprof::cuda {

static const Api *g_api;

// ---- which calls --------------------------------------------------------------------------------

#define EFAPROF_BOTH_STREAMS(name) CUPTI_DRIVER_TRACE_CBID_##name, CUPTI_DRIVER_TRACE_CBID_##name##_ptsz
constexpr CUpti_CallbackId LAUNCHES[] = {
    EFAPROF_BOTH_STREAMS(cuGraphLaunch),        EFAPROF_BOTH_STREAMS(cuLaunchKernel),
    EFAPROF_BOTH_STREAMS(cuLaunchKernelEx),     EFAPROF_BOTH_STREAMS(cuLaunchCooperativeKernel),
    EFAPROF_BOTH_STREAMS(cuMemcpyAsync),        EFAPROF_BOTH_STREAMS(cuMemcpyHtoDAsync_v2),
    EFAPROF_BOTH_STREAMS(cuMemcpyDtoHAsync_v2), EFAPROF_BOTH_STREAMS(cuMemcpyDtoDAsync_v2),
    EFAPROF_BOTH_STREAMS(cuMemcpy2DAsync_v2),   EFAPROF_BOTH_STREAMS(cuMemcpyPeerAsync),
    EFAPROF_BOTH_STREAMS(cuMemsetD8Async),      EFAPROF_BOTH_STREAMS(cuMemsetD16Async),
    EFAPROF_BOTH_STREAMS(cuMemsetD32Async),
};

void enable_calls(const Api &api, CUpti_SubscriberHandle subscriber, bool is_on) {
    g_api = &api;
    auto enable = [&](CUpti_CallbackId id) {
        api.enable_callback(is_on ? 1 : 0, subscriber, CUPTI_CB_DOMAIN_DRIVER_API, id);
    };
    for (CUpti_CallbackId id : LAUNCHES)
        enable(id);
    each_wait(enable);
}

static bool is_graph(CUpti_CallbackId id) {
    return id == CUPTI_DRIVER_TRACE_CBID_cuGraphLaunch || id == CUPTI_DRIVER_TRACE_CBID_cuGraphLaunch_ptsz;
}

static uint64_t graph_of(const CUpti_CallbackData &call) {
    const auto *params = static_cast<const cuGraphLaunch_params *>(call.functionParams);
    uint32_t id = 0;
    if (g_api->graph_id && g_api->graph_id(params->hGraph, &id) == CUPTI_SUCCESS) return id;
    return reinterpret_cast<uint64_t>(params->hGraph);
}

// ---- records --------------------------------------------------------------------------------------

static efaprof_range range_of(const CUpti_CallbackData &call, uint64_t t_end) {
    efaprof_range range = {};
    range.h.t_end = t_end;
    range.t_begin = *call.correlationData;
    range.name = name(call.functionName, strlen(call.functionName));
    range.source = EFAPROF_SOURCE_CUDA;
    range.correlation = call.correlationId;
    return range;
}

static void write_launch(const CUpti_CallbackData &call, bool launches_graph, uint64_t t_end) {
    efaprof_range range = range_of(call, t_end);
    if (launches_graph) {
        range.payload = graph_of(call);
        range.payload_type = EFAPROF_PAYLOAD_U64;
    }
    write_range(range, launches_graph ? EFAPROF_SPAN_GRAPH : EFAPROF_SPAN_LAUNCH);
}

static void write_wait(const CUpti_CallbackData &call, const Waited &waited, uint64_t t_end) {
    if (waited.what == Waiting::Nothing) return;
    efaprof_range range = range_of(call, t_end);
    range.payload = waited.payload;
    range.payload_type = waited.payload_type;
    range.category = waited.context;
    write_range(range, waited.what == Waiting::Marks ? EFAPROF_SPAN_EVENT : EFAPROF_SPAN_WAIT);
}

void on_call(void *, CUpti_CallbackDomain domain, CUpti_CallbackId id, const void *data) {
    if (domain != CUPTI_CB_DOMAIN_DRIVER_API) return;
    const auto &call = *static_cast<const CUpti_CallbackData *>(data);
    const bool launches_graph = is_graph(id), waits = is_wait(id);
    if (call.callbackSite == CUPTI_API_ENTER) {
        if (launches_graph) launching_graph(call.correlationId);
        if (waits) begin_wait(call, id);
        *call.correlationData = ticks();
        return;
    }
    const uint64_t t_end = ticks();
    if (*call.correlationData == 0) return; // we came while it was under way
    if (waits) return write_wait(call, end_wait(*g_api, call, id), t_end);
    write_launch(call, launches_graph, t_end);
}

} // namespace efaprof::cuda
