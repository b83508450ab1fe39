#include "cupti.h"

#include <dlfcn.h>
#include <link.h>
#include <stdlib.h>
#include <string.h>

namespace efaprof::cuda {

static const char *base_name(const char *path) {
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

struct Search {
    const char *part; // of a file name
    const char *path; // of the library that was found
};

static int match(dl_phdr_info *info, size_t, void *data) {
    auto *search = static_cast<Search *>(data);
    if (!info->dlpi_name || !strstr(base_name(info->dlpi_name), search->part)) return 0;
    search->path = info->dlpi_name;
    return 1;
}

static const char *loaded(const char *part) {
    Search search = {part, nullptr};
    dl_iterate_phdr(match, &search);
    return search.path;
}

static void *open_loaded() {
    const char *path = loaded("libcupti.so");
    return path ? dlopen(path, RTLD_LAZY | RTLD_NOLOAD) : nullptr;
}

static void *open_any() {
    if (void *library = open_loaded()) return library;
    const char *asked = getenv("EFAPROF_CUPTI");
    const char *names[] = {asked, "libcupti.so.13", "libcupti.so.12", "libcupti.so"};
    for (const char *name : names)
        if (name && *name)
            if (void *library = dlopen(name, RTLD_LAZY | RTLD_LOCAL)) return library;
    return nullptr;
}

void *loaded_function(const char *name) {
    void *library = open_loaded();
    return library ? dlsym(library, name) : nullptr;
}

const char *library_of(const void *address) {
    Dl_info info;
    return dladdr(address, &info) && info.dli_fname ? base_name(info.dli_fname) : "the program";
}

const char *known_profiler() {
    static const struct {
        const char *part, *name;
    } known[] = {
        {"ToolsInjection", "Nsight Systems"}, {"TreeLauncher", "Nsight Compute"}, {"libkineto", "torch.profiler"}};
    for (const auto &one : known)
        if (loaded(one.part)) return one.name;
    return nullptr;
}

template <typename Function>
static bool resolve(void *library, Function &function, const char *name, const char **missing) {
    function = reinterpret_cast<Function>(dlsym(library, name));
    if (!function) *missing = name;
    return function != nullptr;
}

static bool resolve_all(void *library, Api &api, const char **missing) {
    const char *absent = nullptr;
    resolve(library, api.graph_id, "cuptiGetGraphExecId", &absent);
    resolve(library, api.context_id, "cuptiGetContextId", &absent);
    resolve(library, api.stream_id, "cuptiGetStreamIdEx", &absent);
    return resolve(library, api.subscribe, "cuptiSubscribe", missing) &&
           resolve(library, api.unsubscribe, "cuptiUnsubscribe", missing) &&
           resolve(library, api.enable_callback, "cuptiEnableCallback", missing) &&
           resolve(library, api.enable, "cuptiActivityEnable", missing) &&
           resolve(library, api.disable, "cuptiActivityDisable", missing) &&
           resolve(library, api.register_buffers, "cuptiActivityRegisterCallbacks", missing) &&
           resolve(library, api.register_clock, "cuptiActivityRegisterTimestampCallback", missing) &&
           resolve(library, api.flush, "cuptiActivityFlushAll", missing) &&
           resolve(library, api.flush_period, "cuptiActivityFlushPeriod", missing) &&
           resolve(library, api.next_record, "cuptiActivityGetNextRecord", missing) &&
           resolve(library, api.dropped, "cuptiActivityGetNumDroppedRecords", missing) &&
           resolve(library, api.result_text, "cuptiGetResultString", missing) &&
           resolve(library, api.version, "cuptiGetVersion", missing);
}

const Api *find_api(const char **missing) {
    static Api api;
    void *library = open_any();
    if (!library) {
        *missing = "libcupti.so";
        return nullptr;
    }
    return resolve_all(library, api, missing) ? &api : nullptr;
}

} // namespace efaprof::cuda
