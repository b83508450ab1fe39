#include "cupti.h"

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
// Of copies only those to the host: others may return before they are made.
constexpr CUpti_CallbackId WAITS[] = {
    EFAPROF_BOTH_STREAMS(cuStreamSynchronize),    CUPTI_DRIVER_TRACE_CBID_cuCtxSynchronize,
    CUPTI_DRIVER_TRACE_CBID_cuCtxSynchronize_v2,  CUPTI_DRIVER_TRACE_CBID_cuMemcpyDtoH_v2,
    CUPTI_DRIVER_TRACE_CBID_cuMemcpyDtoH_v2_ptds,
};

void enable_calls(const Api &api, CUpti_SubscriberHandle subscriber, bool is_on) {
    g_api = &api;
    for (CUpti_CallbackId id : LAUNCHES)
        api.enable_callback(is_on ? 1 : 0, subscriber, CUPTI_CB_DOMAIN_DRIVER_API, id);
    for (CUpti_CallbackId id : WAITS)
        api.enable_callback(is_on ? 1 : 0, subscriber, CUPTI_CB_DOMAIN_DRIVER_API, id);
}

static bool is_graph(CUpti_CallbackId id) {
    return id == CUPTI_DRIVER_TRACE_CBID_cuGraphLaunch || id == CUPTI_DRIVER_TRACE_CBID_cuGraphLaunch_ptsz;
}

static bool is_wait(CUpti_CallbackId id) {
    for (CUpti_CallbackId one : WAITS)
        if (one == id) return true;
    return false;
}

// ---- what they were about -------------------------------------------------------------------------

static uint64_t graph_of(const CUpti_CallbackData &call) {
    const auto *params = static_cast<const cuGraphLaunch_params *>(call.functionParams);
    uint32_t id = 0;
    if (g_api->graph_id && g_api->graph_id(params->hGraph, &id) == CUPTI_SUCCESS) return id;
    return reinterpret_cast<uint64_t>(params->hGraph);
}

// The streams of a context that a call waited for.
struct Waited {
    uint32_t context;
    uint64_t stream; // or EFAPROF_EVERY_STREAM
};

static bool whole_context(CUcontext context, Waited &waited) {
    waited.stream = EFAPROF_EVERY_STREAM;
    return g_api->context_id && g_api->context_id(context, &waited.context) == CUPTI_SUCCESS;
}

static bool one_stream(CUcontext context, CUstream stream, uint8_t per_thread, Waited &waited) {
    uint32_t id = 0;
    if (!whole_context(context, waited) || !g_api->stream_id) return false;
    if (g_api->stream_id(context, stream, per_thread, &id) != CUPTI_SUCCESS) return false;
    waited.stream = id;
    return true;
}

// False when that cannot be told. Its work is then waited for by nobody, as far as the records say.
static bool waited_for(const CUpti_CallbackData &call, CUpti_CallbackId id, Waited &waited) {
    switch (id) {
    case CUPTI_DRIVER_TRACE_CBID_cuCtxSynchronize: return whole_context(call.context, waited);
    case CUPTI_DRIVER_TRACE_CBID_cuCtxSynchronize_v2: {
        CUcontext asked = static_cast<const cuCtxSynchronize_v2_params *>(call.functionParams)->ctx;
        return whole_context(asked ? asked : call.context, waited);
    }
    case CUPTI_DRIVER_TRACE_CBID_cuStreamSynchronize:
        return one_stream(call.context, static_cast<const cuStreamSynchronize_params *>(call.functionParams)->hStream,
                          0, waited);
    case CUPTI_DRIVER_TRACE_CBID_cuStreamSynchronize_ptsz:
        return one_stream(call.context,
                          static_cast<const cuStreamSynchronize_ptsz_params *>(call.functionParams)->hStream, 1,
                          waited);
    default: return false;
    }
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

static void write_wait(const CUpti_CallbackData &call, CUpti_CallbackId id, uint64_t t_end) {
    const auto *result = static_cast<const CUresult *>(call.functionReturnValue);
    if (!result || *result != CUDA_SUCCESS) return; // it has waited for nothing
    efaprof_range range = range_of(call, t_end);
    const bool is_copy =
        id == CUPTI_DRIVER_TRACE_CBID_cuMemcpyDtoH_v2 || id == CUPTI_DRIVER_TRACE_CBID_cuMemcpyDtoH_v2_ptds;
    Waited waited = {};
    if (!is_copy) {
        if (!waited_for(call, id, waited)) return;
        range.payload = waited.stream;
        range.payload_type = EFAPROF_PAYLOAD_U64;
        range.category = waited.context;
    }
    write_range(range, EFAPROF_SPAN_WAIT);
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
    if (*call.correlationData == 0) return; // we came while it was under way
    if (is_wait(id)) return write_wait(call, id, t_end);
    write_launch(call, launches_graph, t_end);
}

} // namespace efaprof::cuda
