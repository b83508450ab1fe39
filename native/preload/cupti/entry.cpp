#include "cupti.h"

#include <core/note.h>
#include <core/writer.h>

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define EFAPROF_EXPORT extern "C" __attribute__((visibility("default")))

namespace efaprof::cuda {

enum State : uint32_t { IDLE, RUNNING, ENDED };

static uint32_t g_state = IDLE;
static pid_t g_process; // that CUPTI was attached in
static const Api *g_api;
static CUpti_SubscriberHandle g_subscriber;
static uint32_t g_window;   // graph launches whose nodes are told; 0: none, or all
static uint32_t g_launches; // of graphs, counted while a window is open

constexpr uint32_t FLUSH_MS = 100; // a killed program loses what its GPU did since
constexpr CUpti_ActivityKind KINDS[] = {CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL, CUPTI_ACTIVITY_KIND_MEMCPY,
                                        CUPTI_ACTIVITY_KIND_MEMSET};

// What record's --cuda asked for: "graph", "node" or "node:N".
struct Detail {
    bool tells_nodes;
    uint32_t launches;
};

static Detail asked_detail() {
    const char *text = getenv("EFAPROF_CUDA");
    if (!text || strncmp(text, "node", 4) != 0) return {false, 0};
    return {true, text[4] == ':' ? static_cast<uint32_t>(strtoul(text + 5, nullptr, 10)) : 0u};
}

static bool failed(CUptiResult result, const char *what) {
    if (result == CUPTI_SUCCESS) return false;
    const char *text = nullptr;
    g_api->result_text(result, &text);
    if (result == CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED) {
        const char *holder = known_profiler();
        note_degraded("CUPTI is held by ", holder ? holder : "another profiler", result);
    } else {
        note_degraded(what, text ? text : "", result);
    }
    return true;
}

static bool begin_activities(const Detail &detail) {
    if (failed(g_api->register_buffers(give_buffer, take_buffer), "CUPTI activities: ")) return false;
    if (failed(g_api->register_clock(ticks), "CUPTI's clock: ")) return false;
    for (CUpti_ActivityKind kind : KINDS)
        if (failed(g_api->enable(kind), "CUPTI activities: ")) return false;
    if (!detail.tells_nodes && failed(g_api->enable(CUPTI_ACTIVITY_KIND_GRAPH_TRACE), "CUPTI graphs: ")) return false;
    return !failed(g_api->flush_period(FLUSH_MS), "CUPTI's flush: ");
}

static void disable_activities() {
    for (CUpti_ActivityKind kind : KINDS)
        g_api->disable(kind);
    g_api->disable(CUPTI_ACTIVITY_KIND_GRAPH_TRACE);
}

static void end() {
    if (getpid() != g_process) return; // a forked child: CUDA does not work there, and CUPTI's locks may be held
    uint32_t running = RUNNING;
    if (!__atomic_compare_exchange_n(&g_state, &running, ENDED, false, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED)) return;
    g_api->flush(CUPTI_ACTIVITY_FLAG_FLUSH_FORCED);
    enable_calls(*g_api, g_subscriber, false);
    disable_activities();
    g_api->unsubscribe(g_subscriber);
}

// A profiler of the program wants CUPTI: it is the program's.
static void give_way(const void *caller) {
    if (__atomic_load_n(&g_state, __ATOMIC_ACQUIRE) != RUNNING) return;
    note_degraded("CUPTI given to ", library_of(caller), 0);
    end();
}

void launching_graph(uint32_t correlation) {
    if (g_window == 0 || __atomic_load_n(&g_launches, __ATOMIC_RELAXED) > g_window) return;
    if (__atomic_fetch_add(&g_launches, 1, __ATOMIC_RELAXED) != g_window) return;
    tell_whole_from(correlation);
    note_info("graphs are told as a whole from here", "", g_window);
}

static void begin() {
    const char *missing = nullptr;
    g_api = find_api(&missing);
    if (!g_api) return note_degraded("CUPTI is not to be had: ", missing, 0);
    set_api(g_api);
    if (failed(g_api->subscribe(&g_subscriber, on_call, nullptr), "CUPTI: ")) return;
    const Detail detail = asked_detail();
    g_window = detail.launches;
    if (!begin_activities(detail)) {
        disable_activities();
        g_api->unsubscribe(g_subscriber);
        return;
    }
    enable_calls(*g_api, g_subscriber, true);
    g_process = getpid();
    __atomic_store_n(&g_state, uint32_t{RUNNING}, __ATOMIC_RELEASE);
    atexit(end);
    uint32_t version = 0;
    g_api->version(&version);
    note_info(detail.tells_nodes ? "CUPTI attached: kernels of graphs told" : "CUPTI attached: graphs told as a whole",
              "", version);
}

// The library that the user had set before record set ours.
static int begin_next() {
    const char *path = getenv("EFAPROF_CUDA_INJECTION_NEXT");
    if (!path || !*path) return 1;
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    const auto next = library ? reinterpret_cast<int (*)()>(dlsym(library, "InitializeInjection")) : nullptr;
    if (!next) {
        note_degraded("CUDA_INJECTION64_PATH cannot be chained to: ", path, 0);
        return 1;
    }
    return next();
}

template <typename Function> static Function theirs(const char *name, const void *caller) {
    give_way(caller);
    return reinterpret_cast<Function>(loaded_function(name));
}

} // namespace efaprof::cuda

using namespace efaprof::cuda;

// Called by the CUDA driver at cuInit, for CUDA_INJECTION64_PATH. The user's own tool begins first, so that it finds
// CUPTI free.
EFAPROF_EXPORT int InitializeInjection(void) {
    static uint32_t once;
    if (__atomic_exchange_n(&once, 1u, __ATOMIC_ACQ_REL) != 0) return 1;
    efaprof_set_producer("cupti");
    const int result = begin_next();
    if (efaprof::process_find() && efaprof_recording()) begin();
    return result;
}

// These stand before CUPTI's own in a program that was linked with it.
#define EFAPROF_GIVE_WAY(name, params, args)                                                                           \
    EFAPROF_EXPORT CUptiResult CUPTIAPI name params {                                                                  \
        const auto real = theirs<decltype(&name)>(#name, __builtin_return_address(0));                                 \
        return real ? real args : CUPTI_ERROR_NOT_INITIALIZED;                                                         \
    }

EFAPROF_GIVE_WAY(cuptiSubscribe, (CUpti_SubscriberHandle * subscriber, CUpti_CallbackFunc callback, void *data),
                 (subscriber, callback, data))
EFAPROF_GIVE_WAY(cuptiActivityRegisterCallbacks,
                 (CUpti_BuffersCallbackRequestFunc requested, CUpti_BuffersCallbackCompleteFunc completed),
                 (requested, completed))
EFAPROF_GIVE_WAY(cuptiActivityRegisterTimestampCallback, (CUpti_TimestampCallbackFunc timestamp), (timestamp))
