// For LD_PRELOAD: libfabric as it is, but that no endpoint takes a message over EFAPROF_TEST_LIMIT bytes.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <rdma/fabric.h>
#include <rdma/fi_endpoint.h>
#include <stdlib.h>

typedef int getinfo_fn(uint32_t, const char *, const char *, uint64_t, const struct fi_info *, struct fi_info **);

__attribute__((visibility("default"))) int fi_getinfo(uint32_t version, const char *node, const char *service,
                                                      uint64_t flags, const struct fi_info *hints,
                                                      struct fi_info **info) {
    getinfo_fn *real;
    *(void **)&real = dlsym(RTLD_NEXT, "fi_getinfo");
    const char *limit = getenv("EFAPROF_TEST_LIMIT");
    int ret = real(version, node, service, flags, hints, info);
    for (struct fi_info *one = ret == 0 && limit != NULL ? *info : NULL; one != NULL; one = one->next)
        one->ep_attr->max_msg_size = strtoul(limit, NULL, 10);
    return ret;
}
