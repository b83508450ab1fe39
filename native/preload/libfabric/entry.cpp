// The two ways in: preloaded, fi_fabric stands in front of libfabric's; as a hook provider (FI_HOOK=efaprof), libfabric
// itself shows us each fabric, however the program found libfabric.
#include "open.h"
#include "tables.h"

#include <core/process.h>

#include <dlfcn.h>
#include <rdma/fi_errno.h>
#include <rdma/providers/fi_prov.h>

#define EFAPROF_EXPORT extern "C" __attribute__((visibility("default")))

namespace efaprof::ofi {
namespace {

using FabricFn = int(fi_fabric_attr *, fid_fabric **, void *);
using Fabric2Fn = int(fi_info *, fid_fabric **, uint64_t, void *);

// The function that the caller would have got without us. Not remembered: several libfabrics may live in one process,
// each private to the module that brought it (dlopen without RTLD_GLOBAL), where RTLD_NEXT does not see it.
void *real_function(const char *name, const char *version, const void *caller) {
    if (void *found = dlsym(RTLD_NEXT, name)) return found;
    Dl_info info;
    void *found = nullptr;
    const char *const files[] = {dladdr(caller, &info) ? info.dli_fname : nullptr, "libfabric.so.1"};
    for (const char *file : files) {
        void *handle = file && !found ? dlopen(file, RTLD_LAZY | RTLD_NOLOAD) : nullptr;
        if (!handle) continue;
        found = dlvsym(handle, name, version);
        dlclose(handle);
    }
    return found;
}

bool is_wanted() {
    const Process *process = process_find();
    return process && process->recording;
}

// Says once which libfabric a process uses.
void note_library(const void *function) {
    constexpr unsigned kMost = 8;
    static uint64_t noted[kMost]; // NAME ids of their paths
    static uint32_t generation;
    Dl_info info;
    if (!dladdr(function, &info) || !info.dli_fname) return;
    uint32_t version = 0;
    if (void *handle = dlopen(info.dli_fname, RTLD_LAZY | RTLD_NOLOAD)) {
        if (void *symbol = dlsym(handle, "fi_version")) version = reinterpret_cast<uint32_t (*)()>(symbol)();
        dlclose(handle);
    }
    const uint64_t id = name_of(info.dli_fname);
    libfabric_version(version);
    const RegistryLock lock;
    if (generation != *fork_word) {
        generation = *fork_word;
        for (uint64_t &entry : noted)
            entry = 0;
    }
    for (uint64_t &entry : noted) {
        if (entry == id) return;
        if (entry) continue;
        entry = id;
        return note_info("libfabric ", info.dli_fname, version);
    }
}

// ---- hook provider
int hook_fabric(fi_fabric_attr *attr, fid_fabric **fabric, void *context) {
    *fabric = attr->fabric; // the very fabric that we were given: we wrap nothing
    if (!is_wanted() || !attr->fabric) return 0;
    Thread *thread = thread_now();
    if (!thread) return 0;
    const ErrnoKept kept;
    const auto *hooked = static_cast<const fi_provider *>(context);
    const uint8_t nest = nest_of(thread->depth - (thread->fabrics ? 1 : 0));
    const uint64_t t = now();
    note_library(__builtin_return_address(0));
    opened_fabric({*thread, t, t, nest, &attr->fabric->fid, nullptr}, hooked ? hooked->name : nullptr, nullptr);
    return 0;
}

void hook_cleanup() {}

__attribute__((constructor)) void start() {
    clock_find();
    efaprof_set_producer("fi");
}

__attribute__((destructor)) void stop() {
    const ErrnoKept kept;
    flush_at_exit();
}

} // namespace
} // namespace efaprof::ofi

using namespace efaprof;
using namespace efaprof::ofi;

EFAPROF_EXPORT int fi_fabric(fi_fabric_attr *attr, fid_fabric **fabric, void *context) {
    void *symbol = real_function("fi_fabric", "FABRIC_1.1", __builtin_return_address(0));
    auto *real = reinterpret_cast<FabricFn *>(symbol);
    if (!real) return -FI_ENOSYS;
    Thread *thread = is_wanted() ? thread_now() : nullptr;
    if (!thread) return real(attr, fabric, context);
    ++thread->fabrics;
    const int ret = open_object(
        nullptr, fabric, [&] { return real(attr, fabric, context); },
        [&](const Opened &opened) {
            note_library(symbol);
            opened_fabric(opened, attr->prov_name, attr->name);
        });
    --thread->fabrics;
    return ret;
}

// libfabric does this by fi_fabric, which is ours; only a build that binds that inner call to itself leaves work here.
EFAPROF_EXPORT int fi_fabric2(fi_info *info, fid_fabric **fabric, uint64_t flags, void *context) {
    void *symbol = real_function("fi_fabric2", "FABRIC_1.8", __builtin_return_address(0));
    auto *real = reinterpret_cast<Fabric2Fn *>(symbol);
    if (!real) return -FI_ENOSYS;
    Thread *thread = is_wanted() ? thread_now() : nullptr;
    if (!thread) return real(info, fabric, flags, context);
    thread->opened = 0;
    const uint64_t t_begin = now();
    const int ret = real(info, fabric, flags, context);
    const uint64_t t_end = now();
    if (ret == 0) {
        const ErrnoKept kept;
        note_library(symbol);
        opened_fabric({*thread, t_begin, t_end, nest_of(thread->depth), &(*fabric)->fid, nullptr},
                      info->fabric_attr->prov_name, info->fabric_attr->name);
    }
    return ret;
}

// libfabric keeps state of its own in what we return, so every libfabric of the process gets another one.
EFAPROF_EXPORT fi_provider *fi_prov_ini() {
    constexpr unsigned kMost = 8;
    static fi_provider providers[kMost];
    static unsigned given;
    const unsigned number = __atomic_fetch_add(&given, 1, __ATOMIC_RELAXED);
    if (number >= kMost) return nullptr;
    fi_provider &provider = providers[number];
    provider.version = FI_VERSION(0, 1);
    provider.fi_version = FI_VERSION(FI_MAJOR_VERSION, FI_MINOR_VERSION);
    provider.name = "ofi_hook_efaprof";
    provider.fabric = hook_fabric; // no getinfo: that is what makes it a hook
    provider.cleanup = hook_cleanup;
    return &provider;
}
