/* Objects: opening, binding, enabling, closing; addresses; memory. */
#include "fishim.h"

/* Version of the headers that this was built with, and of the functions below. */
SHIM_API uint32_t efaprof_fi_headers(void) {
    return FI_VERSION(FI_MAJOR_VERSION, FI_MINOR_VERSION);
}
SHIM_API uint32_t efaprof_fi_shim(void) {
    return 1;
}

SHIM_API int efaprof_fi_close(struct fid *fid) {
    return fi_close(fid);
}
SHIM_API int efaprof_fi_open_ops(struct fid *fid, const char *name, void **ops) {
    return fi_open_ops(fid, name, 0, ops, NULL);
}

SHIM_API int efaprof_fi_domain(struct fid_fabric *fabric, struct fi_info *info, struct fid_domain **domain) {
    return fi_domain(fabric, info, domain, NULL);
}
SHIM_API int efaprof_fi_query_atomic(struct fid_domain *domain, int datatype, int op, uint64_t flags, size_t *count,
                                     size_t *size) {
    struct fi_atomic_attr attr = {0};
    int rc = fi_query_atomic(domain, (enum fi_datatype)datatype, (enum fi_op)op, &attr, flags);
    *count = attr.count;
    *size = attr.size;
    return rc;
}

SHIM_API int efaprof_fi_endpoint(struct fid_domain *domain, struct fi_info *info, struct fid_ep **ep) {
    return fi_endpoint(domain, info, ep, NULL);
}
SHIM_API int efaprof_fi_ep_bind(struct fid_ep *ep, struct fid *other, uint64_t flags) {
    return fi_ep_bind(ep, other, flags);
}
SHIM_API int efaprof_fi_enable(struct fid_ep *ep) {
    return fi_enable(ep);
}
SHIM_API int efaprof_fi_getname(struct fid_ep *ep, void *address, size_t *bytes) {
    return ep->cm == NULL ? -FI_ENOSYS : fi_getname(&ep->fid, address, bytes);
}
SHIM_API ssize_t efaprof_fi_cancel(struct fid_ep *ep, void *context) {
    return fi_cancel(&ep->fid, context);
}

SHIM_API int efaprof_fi_av_open(struct fid_domain *domain, int type, size_t count, struct fid_av **av) {
    struct fi_av_attr attr = {.type = (enum fi_av_type)type, .count = count};
    return fi_av_open(domain, &attr, av, NULL);
}
SHIM_API int efaprof_fi_av_insert(struct fid_av *av, const void *address, uint64_t *fi_addr) {
    return fi_av_insert(av, address, 1, fi_addr, 0, NULL);
}
SHIM_API int efaprof_fi_av_remove(struct fid_av *av, uint64_t fi_addr) {
    return fi_av_remove(av, &fi_addr, 1, 0);
}
SHIM_API int efaprof_fi_av_lookup(struct fid_av *av, uint64_t fi_addr, void *address, size_t *bytes) {
    return fi_av_lookup(av, fi_addr, address, bytes);
}
SHIM_API const char *efaprof_fi_av_straddr(struct fid_av *av, const void *address, char *text, size_t *bytes) {
    return fi_av_straddr(av, address, text, bytes);
}

SHIM_API int efaprof_fi_mr_reg(struct fid_domain *domain, const void *start, size_t bytes, uint64_t access,
                               uint64_t key, struct fid_mr **mr) {
    return fi_mr_reg(domain, start, bytes, access, 0, key, 0, mr, NULL);
}
SHIM_API int efaprof_fi_mr_bind(struct fid_mr *mr, struct fid *other) {
    return fi_mr_bind(mr, other, 0);
}
SHIM_API int efaprof_fi_mr_enable(struct fid_mr *mr) {
    return fi_mr_enable(mr);
}
SHIM_API uint64_t efaprof_fi_mr_key(struct fid_mr *mr) {
    return fi_mr_key(mr);
}
SHIM_API void *efaprof_fi_mr_desc(struct fid_mr *mr) {
    return fi_mr_desc(mr);
}
