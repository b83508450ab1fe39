#include "cupti.h"

#include <core/note.h>
#include <core/writer.h>

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

namespace efaprof::cuda {

constexpr size_t BUFFER_BYTES = 1 << 20;
constexpr size_t ALIGNMENT = 64;

static const Api *g_api;
void set_api(const Api *api) {
    g_api = api;
}

uint64_t ticks() {
    return now();
}

// ---- names of kernels ---------------------------------------------------------------------------
// CUPTI hands out one string per kernel and keeps it; demangling it at every record would cost more than all the rest.

static const char *demangled(const char *text, char *room, size_t *bytes) {
    using Demangle = char *(*)(const char *, char *, size_t *, int *);
    // The program's own C++ run time, if it has one: this library brings none.
    static const auto demangle = reinterpret_cast<Demangle>(dlsym(RTLD_DEFAULT, "__cxa_demangle"));
    int status = -1;
    char *plain = demangle ? demangle(text, nullptr, nullptr, &status) : nullptr;
    if (!plain) {
        *bytes = strlen(text);
        return text;
    }
    const char *begin = strncmp(plain, "void ", 5) == 0 ? plain + 5 : plain;
    size_t length = strlen(begin);
    *bytes = length < EFAPROF_NAME_MAX ? length : EFAPROF_NAME_MAX;
    memcpy(room, begin, *bytes);
    free(plain);
    return room;
}

static uint64_t kernel_name(const char *text) {
    constexpr size_t CAPACITY = 1024;
    static __thread struct {
        const char *text;
        uint64_t generation; // of the ring that holds its NAME record
        uint64_t id;
    } known[CAPACITY];
    if (!text) return 0;
    auto &entry = known[reinterpret_cast<uintptr_t>(text) / sizeof(void *) % CAPACITY];
    const uint64_t generation = t_state.generation;
    if (entry.text == text && entry.generation == generation && generation != 0) return entry.id;
    char room[EFAPROF_NAME_MAX];
    size_t bytes = 0;
    const char *plain = demangled(text, room, &bytes);
    const uint64_t id = name(plain, bytes);
    entry = {text, t_state.generation, id};
    return id;
}

// ---- records ------------------------------------------------------------------------------------

static void write_device(efaprof_device record, uint8_t what, uint32_t device, uint64_t begin, uint64_t end) {
    if (begin == 0 || end < begin) return; // CUPTI could not tell when it ran
    if (!wanted_at(begin)) return;         // it tells late: recording may have ended since
    const uint64_t dur = end - begin;
    record.h = {end, dur > UINT32_MAX ? UINT32_MAX : static_cast<uint32_t>(dur),
                EFAPROF_KIND(EFAPROF_SHAPE_DEVICE, what), static_cast<uint16_t>(device)};
    record.t_begin = begin;
    constexpr uint32_t slots = sizeof record / EFAPROF_SLOT_BYTES;
    void *room = reserve(slots);
    if (!room) return;
    memcpy(room, &record, sizeof record);
    publish(room, slots);
}

// ---- graphs whose kernels are not told one by one -------------------------------------------------

static uint32_t g_whole_from; // correlation of the first launch that is told as a whole; 0: none is
void tell_whole_from(uint32_t correlation) {
    __atomic_store_n(&g_whole_from, correlation, __ATOMIC_RELAXED);
}

// The graph launch whose kernels are being read, within one buffer: one that CUPTI tells in two buffers becomes two.
struct Whole {
    efaprof_device record;
    uint32_t device;
    uint64_t begin, end;
};

static void finish(Whole &whole) {
    if (whole.end != 0) write_device(whole.record, EFAPROF_DEVICE_GRAPH, whole.device, whole.begin, whole.end);
    whole = {};
}

static bool is_whole(const CUpti_ActivityKernel10 &kernel) {
    const uint32_t from = __atomic_load_n(&g_whole_from, __ATOMIC_RELAXED);
    return from != 0 && kernel.graphId != 0 && kernel.correlationId >= from && kernel.start != 0;
}

static void add_to(Whole &whole, const CUpti_ActivityKernel10 &kernel) {
    if (whole.record.correlation != kernel.correlationId) finish(whole);
    if (whole.end == 0) {
        whole.record.correlation = kernel.correlationId;
        whole.record.stream = kernel.streamId;
        whole.record.graph = kernel.graphId;
        whole.record.context = kernel.contextId;
        whole.device = kernel.deviceId;
        whole.begin = kernel.start;
    }
    if (kernel.start < whole.begin) whole.begin = kernel.start;
    if (kernel.end > whole.end) whole.end = kernel.end;
}

static void write_kernel(const CUpti_ActivityKernel10 &kernel, Whole &whole) {
    if (is_whole(kernel)) return add_to(whole, kernel);
    efaprof_device record = {};
    record.name = kernel_name(kernel.name);
    record.correlation = kernel.correlationId;
    record.stream = kernel.streamId;
    record.graph = kernel.graphId;
    record.context = kernel.contextId;
    write_device(record, EFAPROF_DEVICE_KERNEL, kernel.deviceId, kernel.start, kernel.end);
}

static void write_graph(const CUpti_ActivityGraphTrace2 &graph) {
    efaprof_device record = {};
    record.correlation = graph.correlationId;
    record.stream = graph.streamId;
    record.graph = graph.graphId;
    record.context = graph.contextId;
    write_device(record, EFAPROF_DEVICE_GRAPH, graph.deviceId, graph.start, graph.end);
}

template <typename Activity> static void write_memory(const Activity &moved, uint8_t what) {
    efaprof_device record = {};
    record.correlation = moved.correlationId;
    record.stream = moved.streamId;
    record.graph = moved.graphId;
    record.context = moved.contextId;
    record.bytes = moved.bytes;
    write_device(record, what, moved.deviceId, moved.start, moved.end);
}

static void write_activity(const CUpti_Activity *activity, Whole &whole) {
    switch (activity->kind) {
    case CUPTI_ACTIVITY_KIND_KERNEL:
    case CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL:
        return write_kernel(*reinterpret_cast<const CUpti_ActivityKernel10 *>(activity), whole);
    case CUPTI_ACTIVITY_KIND_GRAPH_TRACE:
        return write_graph(*reinterpret_cast<const CUpti_ActivityGraphTrace2 *>(activity));
    case CUPTI_ACTIVITY_KIND_MEMCPY:
        return write_memory(*reinterpret_cast<const CUpti_ActivityMemcpy6 *>(activity), EFAPROF_DEVICE_COPY);
    case CUPTI_ACTIVITY_KIND_MEMSET:
        return write_memory(*reinterpret_cast<const CUpti_ActivityMemset4 *>(activity), EFAPROF_DEVICE_SET);
    default: return;
    }
}

// ---- buffers ------------------------------------------------------------------------------------

void give_buffer(uint8_t **buffer, size_t *size, size_t *most_records) {
    *buffer = static_cast<uint8_t *>(aligned_alloc(ALIGNMENT, BUFFER_BYTES));
    *size = *buffer ? BUFFER_BYTES : 0;
    *most_records = 0; // as many as fit
}

static void tell_dropped(CUcontext context, uint32_t stream) {
    size_t dropped = 0;
    if (g_api->dropped(context, stream, &dropped) == CUPTI_SUCCESS && dropped != 0)
        note_degraded("CUPTI lost records of the GPU", "", dropped);
}

void take_buffer(CUcontext context, uint32_t stream, uint8_t *buffer, size_t, size_t valid) {
    CUpti_Activity *activity = nullptr;
    Whole whole = {};
    while (valid != 0 && g_api->next_record(buffer, valid, &activity) == CUPTI_SUCCESS)
        write_activity(activity, whole);
    finish(whole);
    tell_dropped(context, stream);
    free(buffer);
}

} // namespace efaprof::cuda
