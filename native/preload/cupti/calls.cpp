#include "cupti.h"

#include <core/annotate.h>
#include <core/writer.h>

#include <string.h>

namespace efaprof::cuda {

static const Api *g_api;

void enable_calls(const Api &api, CUpti_SubscriberHandle subscriber, bool is_on) {
    g_api = &api;
    static const CUpti_CallbackId launches[] = {
        CUPTI_DRIVER_TRACE_CBID_cuGraphLaunch,
        CUPTI_DRIVER_TRACE_CBID_cuGraphLaunch_ptsz,
        CUPTI_DRIVER_TRACE_CBID_cuLaunchKernel,
        CUPTI_DRIVER_TRACE_CBID_cuLaunchKernel_ptsz,
        CUPTI_DRIVER_TRACE_CBID_cuLaunchKernelEx,
        CUPTI_DRIVER_TRACE_CBID_cuLaunchKernelEx_ptsz,
        CUPTI_DRIVER_TRACE_CBID_cuLaunchCooperativeKernel,
        CUPTI_DRIVER_TRACE_CBID_cuLaunchCooperativeKernel_ptsz,
    };
    for (CUpti_CallbackId id : launches)
        api.enable_callback(is_on ? 1 : 0, subscriber, CUPTI_CB_DOMAIN_DRIVER_API, id);
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

static void write_call(const CUpti_CallbackData &call, bool launches_graph, uint64_t t_end) {
    efaprof_range range = {};
    range.h.t_end = t_end;
    range.t_begin = *call.correlationData;
    range.name = name(call.functionName, strlen(call.functionName));
    range.source = EFAPROF_SOURCE_CUDA;
    range.correlation = call.correlationId;
    if (launches_graph) {
        range.payload = graph_of(call);
        range.payload_type = EFAPROF_PAYLOAD_U64;
    }
    write_range(range, launches_graph ? EFAPROF_SPAN_GRAPH : EFAPROF_SPAN_LAUNCH);
}

void on_call(void *, CUpti_CallbackDomain domain, CUpti_CallbackId id, const void *data) {
    if (domain != CUPTI_CB_DOMAIN_DRIVER_API) return;
    const auto &call = *static_cast<const CUpti_CallbackData *>(data);
    const bool launches_graph = is_graph(id);
    if (call.callbackSite == CUPTI_API_ENTER) {
        if (launches_graph) launching_graph(call.correlationId);
        *call.correlationData = ticks();
        return;
    }
    const uint64_t t_end = ticks();
    if (*call.correlationData != 0) write_call(call, launches_graph, t_end); // else we came while it was under way
}

} // namespace efaprof::cuda
