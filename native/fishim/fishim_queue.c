/* Completion queues. */
#include "fishim.h"

SHIM_API int efaprof_fi_cq_open(struct fid_domain *domain, size_t size, int format, int wait_obj, struct fid_cq **cq) {
    struct fi_cq_attr attr = {
        .size = size, .format = (enum fi_cq_format)format, .wait_obj = (enum fi_wait_obj)wait_obj};
    return fi_cq_open(domain, &attr, cq, NULL);
}
SHIM_API ssize_t efaprof_fi_cq_read(struct fid_cq *cq, void *entries, size_t count) {
    return fi_cq_read(cq, entries, count);
}
SHIM_API ssize_t efaprof_fi_cq_readfrom(struct fid_cq *cq, void *entries, size_t count, uint64_t *sources) {
    return fi_cq_readfrom(cq, entries, count, sources);
}
SHIM_API ssize_t efaprof_fi_cq_sread(struct fid_cq *cq, void *entries, size_t count, int timeout_ms) {
    return fi_cq_sread(cq, entries, count, NULL, timeout_ms);
}
SHIM_API int efaprof_fi_cq_signal(struct fid_cq *cq) {
    return fi_cq_signal(cq);
}

/* `err_data` has room for *`err_data_bytes`. Newer providers write an entry longer than our headers may know. */
SHIM_API ssize_t efaprof_fi_cq_readerr(struct fid_cq *cq, struct efaprof_fi_cq_error *into, void *err_data,
                                       size_t err_data_bytes) {
    union {
        struct fi_cq_err_entry entry;
        char room[256];
    } one;
    memset(&one, 0, sizeof one);
    one.entry.err_data = err_data;
    one.entry.err_data_size = err_data_bytes;
    ssize_t rc = fi_cq_readerr(cq, &one.entry, 0);
    if (rc < 0) return rc;
    const struct fi_cq_err_entry *e = &one.entry;
    *into = (struct efaprof_fi_cq_error){.op_context = e->op_context,
                                         .flags = e->flags,
                                         .len = e->len,
                                         .data = e->data,
                                         .tag = e->tag,
                                         .olen = e->olen,
                                         .err = e->err,
                                         .prov_errno = e->prov_errno,
                                         .err_data_size = e->err_data_size};
    /* A provider of the oldest API points at memory of its own. */
    if (e->err_data != NULL && e->err_data != err_data) {
        if (into->err_data_size > err_data_bytes) into->err_data_size = err_data_bytes;
        memcpy(err_data, e->err_data, into->err_data_size);
    }
    return rc;
}
SHIM_API const char *efaprof_fi_cq_strerror(struct fid_cq *cq, int prov_errno, const void *err_data, char *text,
                                            size_t bytes) {
    return fi_cq_strerror(cq, prov_errno, err_data, text, bytes);
}
