/* Operations: messages, tagged messages, remote memory. */
#include "fishim.h"

/* A provider may leave out whole tables, where the inlines would call through a null pointer. */
#define NEEDS(table)                                                                                                   \
    if (ep->table == NULL) return -FI_ENOSYS

SHIM_API ssize_t efaprof_fi_recv(struct fid_ep *ep, void *into, size_t bytes, void *desc, uint64_t source,
                                 void *context) {
    NEEDS(msg);
    return fi_recv(ep, into, bytes, desc, source, context);
}
SHIM_API ssize_t efaprof_fi_send(struct fid_ep *ep, const void *from, size_t bytes, void *desc, uint64_t peer,
                                 void *context) {
    NEEDS(msg);
    return fi_send(ep, from, bytes, desc, peer, context);
}
SHIM_API ssize_t efaprof_fi_senddata(struct fid_ep *ep, const void *from, size_t bytes, void *desc, uint64_t data,
                                     uint64_t peer, void *context) {
    NEEDS(msg);
    return fi_senddata(ep, from, bytes, desc, data, peer, context);
}
SHIM_API ssize_t efaprof_fi_inject(struct fid_ep *ep, const void *from, size_t bytes, uint64_t peer) {
    NEEDS(msg);
    return fi_inject(ep, from, bytes, peer);
}

SHIM_API ssize_t efaprof_fi_trecv(struct fid_ep *ep, void *into, size_t bytes, void *desc, uint64_t source,
                                  uint64_t tag, uint64_t ignore, void *context) {
    NEEDS(tagged);
    return fi_trecv(ep, into, bytes, desc, source, tag, ignore, context);
}
SHIM_API ssize_t efaprof_fi_tsend(struct fid_ep *ep, const void *from, size_t bytes, void *desc, uint64_t peer,
                                  uint64_t tag, void *context) {
    NEEDS(tagged);
    return fi_tsend(ep, from, bytes, desc, peer, tag, context);
}
SHIM_API ssize_t efaprof_fi_tsenddata(struct fid_ep *ep, const void *from, size_t bytes, void *desc, uint64_t data,
                                      uint64_t peer, uint64_t tag, void *context) {
    NEEDS(tagged);
    return fi_tsenddata(ep, from, bytes, desc, data, peer, tag, context);
}
SHIM_API ssize_t efaprof_fi_tinject(struct fid_ep *ep, const void *from, size_t bytes, uint64_t peer, uint64_t tag) {
    NEEDS(tagged);
    return fi_tinject(ep, from, bytes, peer, tag);
}

SHIM_API ssize_t efaprof_fi_read(struct fid_ep *ep, void *into, size_t bytes, void *desc, uint64_t peer,
                                 uint64_t address, uint64_t key, void *context) {
    NEEDS(rma);
    return fi_read(ep, into, bytes, desc, peer, address, key, context);
}
SHIM_API ssize_t efaprof_fi_write(struct fid_ep *ep, const void *from, size_t bytes, void *desc, uint64_t peer,
                                  uint64_t address, uint64_t key, void *context) {
    NEEDS(rma);
    return fi_write(ep, from, bytes, desc, peer, address, key, context);
}
SHIM_API ssize_t efaprof_fi_writedata(struct fid_ep *ep, const void *from, size_t bytes, void *desc, uint64_t data,
                                      uint64_t peer, uint64_t address, uint64_t key, void *context) {
    NEEDS(rma);
    return fi_writedata(ep, from, bytes, desc, data, peer, address, key, context);
}
SHIM_API ssize_t efaprof_fi_inject_write(struct fid_ep *ep, const void *from, size_t bytes, uint64_t peer,
                                         uint64_t address, uint64_t key) {
    NEEDS(rma);
    return fi_inject_write(ep, from, bytes, peer, address, key);
}
SHIM_API ssize_t efaprof_fi_inject_writedata(struct fid_ep *ep, const void *from, size_t bytes, uint64_t data,
                                             uint64_t peer, uint64_t address, uint64_t key) {
    NEEDS(rma);
    return fi_inject_writedata(ep, from, bytes, data, peer, address, key);
}
