#include "waits.h"

namespace efaprof::cuda {

bool is_wait(CUpti_CallbackId id) {
    bool found = false;
    each_wait([&](CUpti_CallbackId one) { found |= one == id; });
    return found;
}

// ---- events ---------------------------------------------------------------------------------------
// Which call recorded an event last. One word a slot: what tells events apart (32 bits) and the call's correlation, so
// that threads never see half of it. A slot that another event took is forgotten.

constexpr uint32_t SLOTS = 4096;
static uint64_t g_events[SLOTS];
static __thread uint32_t
    t_event; // that this thread is waiting for: correlation of the call that recorded it, 0 unknown

static uint32_t tag_of(CUevent event) {
    return static_cast<uint32_t>(reinterpret_cast<uintptr_t>(event) >> 4);
}

static uint64_t &slot_of(CUevent event) {
    return g_events[tag_of(event) * 2654435761u >> 20];
}
static_assert(SLOTS == 1u << (32 - 20), "the hash's upper bits number the slots");

static void remember(CUevent event, uint32_t correlation) {
    __atomic_store_n(&slot_of(event), static_cast<uint64_t>(tag_of(event)) << 32 | correlation, __ATOMIC_RELAXED);
}

static uint32_t recorded_by(CUevent event) {
    const uint64_t found = __atomic_load_n(&slot_of(event), __ATOMIC_RELAXED);
    return found >> 32 == tag_of(event) ? static_cast<uint32_t>(found) : 0;
}

static void forget(CUevent event) {
    if (recorded_by(event) != 0) __atomic_store_n(&slot_of(event), 0, __ATOMIC_RELAXED);
}

// ---- calls ----------------------------------------------------------------------------------------

template <typename Params> static const Params &params_of(const CUpti_CallbackData &call) {
    return *static_cast<const Params *>(call.functionParams);
}

void begin_wait(const CUpti_CallbackData &call, CUpti_CallbackId id) {
    if (id == CUPTI_DRIVER_TRACE_CBID_cuEventSynchronize)
        t_event = recorded_by(params_of<cuEventSynchronize_params>(call).hEvent);
    else if (id == CUPTI_DRIVER_TRACE_CBID_cuEventDestroy_v2)
        forget(params_of<cuEventDestroy_v2_params>(call).hEvent);
}

static Waited whole_context(const Api &api, CUcontext context) {
    Waited waited = {Waiting::Nothing, EFAPROF_PAYLOAD_U64, 0, EFAPROF_EVERY_STREAM};
    if (api.context_id && api.context_id(context, &waited.context) == CUPTI_SUCCESS) waited.what = Waiting::Waits;
    return waited;
}

static Waited one_stream(const Api &api, CUcontext context, CUstream stream, bool is_per_thread) {
    Waited waited = whole_context(api, context);
    uint32_t id = 0;
    if (!api.stream_id || api.stream_id(context, stream, is_per_thread ? 1 : 0, &id) != CUPTI_SUCCESS)
        waited.what = Waiting::Nothing;
    waited.payload = id;
    return waited;
}

template <typename Params> static Waited stream_of(const Api &api, const CUpti_CallbackData &call, bool is_per_thread) {
    return one_stream(api, call.context, params_of<Params>(call).hStream, is_per_thread);
}

template <typename Params> static Waited marked(const Api &api, const CUpti_CallbackData &call, bool is_per_thread) {
    Waited waited = stream_of<Params>(api, call, is_per_thread);
    if (waited.what == Waiting::Nothing) {
        forget(params_of<Params>(call).hEvent); // it stands for something else from now on
        return waited;
    }
    remember(params_of<Params>(call).hEvent, call.correlationId);
    waited.what = Waiting::Marks;
    return waited;
}

// One that is asked for from outside may be recorded by a graph, whenever that is launched.
template <typename Params>
static Waited marked_with_flags(const Api &api, const CUpti_CallbackData &call, bool is_per_thread) {
    if (params_of<Params>(call).flags == 0) return marked<Params>(api, call, is_per_thread);
    forget(params_of<Params>(call).hEvent);
    return {};
}

static Waited for_event() {
    return {t_event != 0 ? Waiting::Waits : Waiting::Nothing, EFAPROF_PAYLOAD_U32, 0, t_event};
}

Waited end_wait(const Api &api, const CUpti_CallbackData &call, CUpti_CallbackId id) {
    const auto *result = static_cast<const CUresult *>(call.functionReturnValue);
    if (!result || *result != CUDA_SUCCESS) return {}; // it has waited for nothing
    switch (id) {
    case CUPTI_DRIVER_TRACE_CBID_cuStreamSynchronize: return stream_of<cuStreamSynchronize_params>(api, call, false);
    case CUPTI_DRIVER_TRACE_CBID_cuStreamSynchronize_ptsz:
        return stream_of<cuStreamSynchronize_ptsz_params>(api, call, true);
    case CUPTI_DRIVER_TRACE_CBID_cuCtxSynchronize: return whole_context(api, call.context);
    case CUPTI_DRIVER_TRACE_CBID_cuCtxSynchronize_v2: {
        CUcontext asked = params_of<cuCtxSynchronize_v2_params>(call).ctx;
        return whole_context(api, asked ? asked : call.context);
    }
    case CUPTI_DRIVER_TRACE_CBID_cuEventRecord: return marked<cuEventRecord_params>(api, call, false);
    case CUPTI_DRIVER_TRACE_CBID_cuEventRecord_ptsz: return marked<cuEventRecord_ptsz_params>(api, call, true);
    case CUPTI_DRIVER_TRACE_CBID_cuEventRecordWithFlags:
        return marked_with_flags<cuEventRecordWithFlags_params>(api, call, false);
    case CUPTI_DRIVER_TRACE_CBID_cuEventRecordWithFlags_ptsz:
        return marked_with_flags<cuEventRecordWithFlags_ptsz_params>(api, call, true);
    case CUPTI_DRIVER_TRACE_CBID_cuEventSynchronize: return for_event();
    case CUPTI_DRIVER_TRACE_CBID_cuMemcpyDtoH_v2:
    case CUPTI_DRIVER_TRACE_CBID_cuMemcpyDtoH_v2_ptds: return {Waiting::Waits, EFAPROF_PAYLOAD_NONE, 0, 0};
    default: return {};
    }
}

} // namespace efaprof::cuda
