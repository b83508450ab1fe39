/* What every file of the shim needs. Each function but the loop does one call of libfabric and returns what that
 * returned; handles are libfabric's own. efaprof/libfabric/cdef.py declares the same functions: change both. */
#ifndef EFAPROF_FISHIM_H
#define EFAPROF_FISHIM_H

#include <rdma/fabric.h>
#include <rdma/fi_atomic.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_eq.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_rma.h>
#include <rdma/fi_tagged.h>

#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/types.h>

#define SHIM_API __attribute__((visibility("default")))

/* A completion in error, the same in every version of libfabric. */
struct efaprof_fi_cq_error {
    void *op_context;
    uint64_t flags, len, data, tag, olen;
    int32_t err, prov_errno;
    uint64_t err_data_size; /* bytes of err_data that the provider filled */
};

/* What a loop of writes did in its time; the drain after it is not counted. */
struct efaprof_fi_loop {
    uint64_t completed, again, elapsed_ns;
    uint64_t idle_ns; /* of it: nothing could be posted and nothing completed */
};

#endif
