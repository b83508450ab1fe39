// A libcupti without a GPU: one subscriber, activity buffers and launches that a test program asks for. It keeps the
// rules that matter to a tool: a second subscriber is refused (error 39), graph launches give one record each while
// GRAPH_TRACE is on and one per node otherwise, and times come from the clock that was registered last. What the GPU
// did is told FAKE_CUPTI_SHIFT ticks later than it was: a conversion of its times that is off.
#include "fake_cupti.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define NODES 3
#define CONTEXT 1
#define STREAM 7

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static CUpti_CallbackFunc subscriber;
static void *subscriber_data;
static CUpti_BuffersCallbackRequestFunc request;
static CUpti_BuffersCallbackCompleteFunc complete;
static CUpti_TimestampCallbackFunc clock_now;
static unsigned enabled[CUPTI_ACTIVITY_KIND_COUNT], calls_enabled[CUPTI_DRIVER_TRACE_CBID_SIZE];
static uint32_t correlation;

static union {
    CUpti_ActivityKernel10 kernel;
    CUpti_ActivityGraphTrace2 graph;
    CUpti_ActivityMemcpy6 copy;
} waiting[4096];
static size_t waiting_count;

static uint64_t now(void) {
    if (clock_now) return clock_now();
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

// Of the GPU, as it is told.
static uint64_t device_now(void) {
    const char *text = getenv("FAKE_CUPTI_SHIFT");
    return now() + (text ? (uint64_t)strtoll(text, NULL, 10) : 0);
}

CUptiResult cuptiSubscribe(CUpti_SubscriberHandle *handle, CUpti_CallbackFunc callback, void *data) {
    if (subscriber) return CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED;
    subscriber = callback;
    subscriber_data = data;
    *handle = (CUpti_SubscriberHandle)&subscriber;
    return CUPTI_SUCCESS;
}
CUptiResult cuptiUnsubscribe(CUpti_SubscriberHandle handle) {
    (void)handle;
    subscriber = NULL;
    return CUPTI_SUCCESS;
}
CUptiResult cuptiEnableCallback(uint32_t enable, CUpti_SubscriberHandle handle, CUpti_CallbackDomain domain,
                                CUpti_CallbackId id) {
    (void)handle;
    if (domain == CUPTI_CB_DOMAIN_DRIVER_API) calls_enabled[id] = enable;
    return CUPTI_SUCCESS;
}
CUptiResult cuptiActivityEnable(CUpti_ActivityKind kind) {
    enabled[kind] = 1;
    return CUPTI_SUCCESS;
}
CUptiResult cuptiActivityDisable(CUpti_ActivityKind kind) {
    enabled[kind] = 0;
    return CUPTI_SUCCESS;
}
CUptiResult cuptiActivityRegisterCallbacks(CUpti_BuffersCallbackRequestFunc asked,
                                           CUpti_BuffersCallbackCompleteFunc done) {
    request = asked;
    complete = done;
    return CUPTI_SUCCESS;
}
CUptiResult cuptiActivityRegisterTimestampCallback(CUpti_TimestampCallbackFunc timestamp) {
    clock_now = timestamp;
    return CUPTI_SUCCESS;
}
CUptiResult cuptiActivityFlushPeriod(uint32_t time) {
    (void)time;
    return CUPTI_SUCCESS;
}

static size_t size_of(const CUpti_Activity *activity) {
    return activity->kind == CUPTI_ACTIVITY_KIND_GRAPH_TRACE ? sizeof(CUpti_ActivityGraphTrace2)
           : activity->kind == CUPTI_ACTIVITY_KIND_MEMCPY    ? sizeof(CUpti_ActivityMemcpy6)
                                                             : sizeof(CUpti_ActivityKernel10);
}

CUptiResult cuptiActivityFlushAll(uint32_t flag) {
    (void)flag;
    pthread_mutex_lock(&lock);
    size_t next = 0;
    while (complete && next < waiting_count) {
        uint8_t *buffer = NULL;
        size_t size = 0, most = 0, used = 0;
        request(&buffer, &size, &most);
        while (next < waiting_count) {
            const size_t bytes = size_of((const CUpti_Activity *)&waiting[next]);
            if (used + bytes > size) break;
            memcpy(buffer + used, &waiting[next++], bytes);
            used += bytes;
        }
        complete(NULL, 0, buffer, size, used);
    }
    waiting_count = 0;
    pthread_mutex_unlock(&lock);
    return CUPTI_SUCCESS;
}
CUptiResult cuptiActivityGetNextRecord(uint8_t *buffer, size_t valid, CUpti_Activity **record) {
    uint8_t *next = *record ? (uint8_t *)*record + size_of(*record) : buffer;
    if (next >= buffer + valid) return CUPTI_ERROR_MAX_LIMIT_REACHED;
    *record = (CUpti_Activity *)next;
    return CUPTI_SUCCESS;
}
CUptiResult cuptiActivityGetNumDroppedRecords(CUcontext context, uint32_t stream, size_t *dropped) {
    (void)context, (void)stream;
    const char *text = getenv("FAKE_CUPTI_DROPPED");
    *dropped = text ? strtoul(text, NULL, 10) : 0;
    return CUPTI_SUCCESS;
}
CUptiResult cuptiGetTimestamp(uint64_t *timestamp) {
    *timestamp = now();
    return CUPTI_SUCCESS;
}
CUptiResult cuptiGetGraphExecId(CUgraphExec exec, uint32_t *id) {
    *id = (uint32_t)(uintptr_t)exec;
    return CUPTI_SUCCESS;
}
CUptiResult cuptiGetContextId(CUcontext context, uint32_t *id) {
    *id = (uint32_t)(uintptr_t)context;
    return CUPTI_SUCCESS;
}
CUptiResult cuptiGetStreamIdEx(CUcontext context, CUstream stream, uint8_t per_thread, uint32_t *id) {
    (void)context, (void)per_thread;
    *id = (uint32_t)(uintptr_t)stream;
    return CUPTI_SUCCESS;
}
CUptiResult cuptiGetResultString(CUptiResult result, const char **text) {
    *text = result == CUPTI_SUCCESS ? "CUPTI_SUCCESS" : "CUPTI_ERROR";
    return CUPTI_SUCCESS;
}
CUptiResult cuptiGetVersion(uint32_t *version) {
    *version = CUPTI_API_VERSION;
    return CUPTI_SUCCESS;
}

static CUresult returned;

static void call_back(CUpti_ApiCallbackSite site, CUpti_CallbackId id, const char *name, const void *params,
                      uint64_t *between) {
    if (!subscriber || !calls_enabled[id]) return;
    const CUpti_CallbackData data = {.callbackSite = site,
                                     .functionName = name,
                                     .functionParams = params,
                                     .functionReturnValue = &returned,
                                     .context = (CUcontext)(uintptr_t)CONTEXT,
                                     .contextUid = CONTEXT,
                                     .correlationData = between,
                                     .correlationId = correlation};
    subscriber(subscriber_data, CUPTI_CB_DOMAIN_DRIVER_API, id, &data);
}

static void add_kernel(const char *name, uint32_t graph) {
    const uint64_t begin = device_now();
    if (enabled[CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL] && waiting_count < sizeof waiting / sizeof *waiting)
        waiting[waiting_count++].kernel = (CUpti_ActivityKernel10){.kind = CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL,
                                                                   .start = begin,
                                                                   .end = device_now(),
                                                                   .contextId = CONTEXT,
                                                                   .streamId = STREAM,
                                                                   .correlationId = correlation,
                                                                   .graphId = graph,
                                                                   .name = name};
}

static void add_graph(uint32_t graph) {
    if (!enabled[CUPTI_ACTIVITY_KIND_GRAPH_TRACE]) {
        for (int node = 0; node < NODES; node++)
            add_kernel("_Z9fake_nodePf", graph);
        return;
    }
    const uint64_t begin = device_now();
    if (waiting_count < sizeof waiting / sizeof *waiting)
        waiting[waiting_count++].graph = (CUpti_ActivityGraphTrace2){.kind = CUPTI_ACTIVITY_KIND_GRAPH_TRACE,
                                                                     .start = begin,
                                                                     .end = device_now(),
                                                                     .contextId = CONTEXT,
                                                                     .streamId = STREAM,
                                                                     .correlationId = correlation,
                                                                     .graphId = graph};
}

void fake_launch_graph(uint32_t graph) {
    uint64_t between = 0;
    const cuGraphLaunch_params params = {.hGraph = (CUgraphExec)(uintptr_t)graph};
    correlation++;
    call_back(CUPTI_API_ENTER, CUPTI_DRIVER_TRACE_CBID_cuGraphLaunch, "cuGraphLaunch", &params, &between);
    call_back(CUPTI_API_EXIT, CUPTI_DRIVER_TRACE_CBID_cuGraphLaunch, "cuGraphLaunch", &params, &between);
    add_graph(graph);
}

void fake_launch_kernel(const char *name) {
    uint64_t between = 0;
    const cuLaunchKernel_params params = {0};
    correlation++;
    call_back(CUPTI_API_ENTER, CUPTI_DRIVER_TRACE_CBID_cuLaunchKernel, "cuLaunchKernel", &params, &between);
    call_back(CUPTI_API_EXIT, CUPTI_DRIVER_TRACE_CBID_cuLaunchKernel, "cuLaunchKernel", &params, &between);
    add_kernel(name, 0);
}

static void add_copy(void) {
    const uint64_t begin = device_now();
    if (enabled[CUPTI_ACTIVITY_KIND_MEMCPY] && waiting_count < sizeof waiting / sizeof *waiting)
        waiting[waiting_count++].copy = (CUpti_ActivityMemcpy6){.kind = CUPTI_ACTIVITY_KIND_MEMCPY,
                                                                .bytes = 64,
                                                                .start = begin,
                                                                .end = device_now(),
                                                                .contextId = CONTEXT,
                                                                .streamId = STREAM,
                                                                .correlationId = correlation};
}

// A blocking copy is made inside its call, another one after it.
void fake_copy_to_host(int is_blocking) {
    const CUpti_CallbackId id =
        is_blocking ? CUPTI_DRIVER_TRACE_CBID_cuMemcpyDtoH_v2 : CUPTI_DRIVER_TRACE_CBID_cuMemcpyDtoHAsync_v2;
    const char *name = is_blocking ? "cuMemcpyDtoH_v2" : "cuMemcpyDtoHAsync_v2";
    uint64_t between = 0;
    const cuMemcpyDtoHAsync_v2_params params = {0};
    correlation++;
    call_back(CUPTI_API_ENTER, id, name, &params, &between);
    if (is_blocking) add_copy();
    call_back(CUPTI_API_EXIT, id, name, &params, &between);
    if (!is_blocking) add_copy();
}

static void synchronize(CUpti_CallbackId id, const char *name, const void *params, CUresult result) {
    uint64_t between = 0;
    correlation++;
    call_back(CUPTI_API_ENTER, id, name, params, &between);
    returned = result;
    call_back(CUPTI_API_EXIT, id, name, params, &between);
    returned = CUDA_SUCCESS;
}

void fake_synchronize_stream(CUresult result) {
    const cuStreamSynchronize_params params = {.hStream = (CUstream)(uintptr_t)STREAM};
    synchronize(CUPTI_DRIVER_TRACE_CBID_cuStreamSynchronize, "cuStreamSynchronize", &params, result);
}

void fake_synchronize_context(void) {
    synchronize(CUPTI_DRIVER_TRACE_CBID_cuCtxSynchronize, "cuCtxSynchronize", NULL, CUDA_SUCCESS);
}

void fake_record_event(uintptr_t event) {
    const cuEventRecord_params params = {.hEvent = (CUevent)event, .hStream = (CUstream)(uintptr_t)STREAM};
    synchronize(CUPTI_DRIVER_TRACE_CBID_cuEventRecord, "cuEventRecord", &params, CUDA_SUCCESS);
}

void fake_synchronize_event(uintptr_t event) {
    const cuEventSynchronize_params params = {.hEvent = (CUevent)event};
    synchronize(CUPTI_DRIVER_TRACE_CBID_cuEventSynchronize, "cuEventSynchronize", &params, CUDA_SUCCESS);
}

void fake_destroy_event(uintptr_t event) {
    const cuEventDestroy_v2_params params = {.hEvent = (CUevent)event};
    synchronize(CUPTI_DRIVER_TRACE_CBID_cuEventDestroy_v2, "cuEventDestroy_v2", &params, CUDA_SUCCESS);
}
