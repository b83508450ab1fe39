// Calls that wait for a GPU, or that record the events that can be waited for: what they wait for.
#pragma once

#include "cupti.h"

#include <efaprof/format.h>

namespace efaprof::cuda {

// Calls `each` with the number of every such call. Of copies only those to the host that wait: others may return before
// they are made. The end of an event is looked at because its address is used again.
template <typename Each> void each_wait(Each each) {
    constexpr CUpti_CallbackId ALL[] = {
        CUPTI_DRIVER_TRACE_CBID_cuStreamSynchronize,
        CUPTI_DRIVER_TRACE_CBID_cuStreamSynchronize_ptsz,
        CUPTI_DRIVER_TRACE_CBID_cuCtxSynchronize,
        CUPTI_DRIVER_TRACE_CBID_cuCtxSynchronize_v2,
        CUPTI_DRIVER_TRACE_CBID_cuEventSynchronize,
        CUPTI_DRIVER_TRACE_CBID_cuEventRecord,
        CUPTI_DRIVER_TRACE_CBID_cuEventRecord_ptsz,
        CUPTI_DRIVER_TRACE_CBID_cuEventRecordWithFlags,
        CUPTI_DRIVER_TRACE_CBID_cuEventRecordWithFlags_ptsz,
        CUPTI_DRIVER_TRACE_CBID_cuEventDestroy_v2,
        CUPTI_DRIVER_TRACE_CBID_cuMemcpyDtoH_v2,
        CUPTI_DRIVER_TRACE_CBID_cuMemcpyDtoH_v2_ptds,
    };
    for (CUpti_CallbackId id : ALL)
        each(id);
}
bool is_wait(CUpti_CallbackId id);

enum class Waiting { Nothing, Waits, Marks };

// What a call has waited for, or what the event that it recorded stands for; as format.h says of WAIT and EVENT.
struct Waited {
    Waiting what; // Nothing: nothing that can be told
    uint8_t payload_type;
    uint32_t context;
    uint64_t payload;
};

// At the call's begin and at its end.
void begin_wait(const CUpti_CallbackData &call, CUpti_CallbackId id);
Waited end_wait(const Api &api, const CUpti_CallbackData &call, CUpti_CallbackId id);

} // namespace efaprof::cuda
