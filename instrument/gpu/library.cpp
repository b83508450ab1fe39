#include "library.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#include "../proxy/stop.h"

namespace efaprof::dispatch {

namespace {

const gpu::Api *calls = nullptr;

// Beside the program or library that this is part of, or where the loader looks.
void *open_library() {
    char path[4096];
    Dl_info here;
    if (dladdr(&calls, &here) != 0 && strlen(here.dli_fname) < sizeof path) {
        strcpy(path, here.dli_fname);
        char *name = strrchr(path, '/');
        size_t room = name == nullptr ? 0 : sizeof path - static_cast<size_t>(name + 1 - path);
        if (name != nullptr && snprintf(name + 1, room, "%s", gpu::LIBRARY) < static_cast<int>(room)) {
            if (void *found = dlopen(path, RTLD_NOW | RTLD_LOCAL)) return found;
        }
    }
    return dlopen(gpu::LIBRARY, RTLD_NOW | RTLD_LOCAL);
}

} // namespace

bool open_gpu_library(char *why, size_t bytes) {
    void *library = open_library();
    if (library == nullptr) {
        snprintf(why, bytes, "--device cuda: this installation was built without CUDA (%s)", dlerror());
        return false;
    }
    void *symbol = dlsym(library, gpu::ENTRY);
    gpu::Entry entry = nullptr;
    memcpy(&entry, &symbol, sizeof entry);
    if (entry == nullptr || entry()->version != gpu::API_VERSION) {
        snprintf(why, bytes, "--device cuda: %s is of another version", gpu::LIBRARY);
        return false;
    }
    calls = entry();
    return true;
}

const gpu::Api &gpu_library() {
    return *calls;
}

void check_gpu(const char *why) {
    if (why != nullptr) fail(Cause::Failed, "GPU: %s", why);
}

} // namespace efaprof::dispatch
