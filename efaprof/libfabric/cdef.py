"""C declarations of libfabric and of our shim, for cffi.

Every struct is read only, and only as far as the library's own version has it: libfabric appends fields at the end.
"""

from __future__ import annotations

from functools import cache

from cffi import FFI

# The first release that has these fields of fi_domain_attr, at its end.
APPENDED_TO_DOMAIN = {
    "max_ep_auth_key": (1, 20),
    "max_group_id": (2, 0),
    "max_cntr_value": (2, 5),
    "max_err_cntr_value": (2, 5),
}

STRUCTS = """
struct fi_tx_attr {
    uint64_t caps, mode, op_flags, msg_order, comp_order;
    size_t inject_size, size, iov_limit, rma_iov_limit;
    uint32_t tclass;
};
struct fi_rx_attr {
    uint64_t caps, mode, op_flags, msg_order, comp_order;
    size_t total_buffered_recv, size, iov_limit;
};
struct fi_ep_attr {
    int type;
    uint32_t protocol, protocol_version;
    size_t max_msg_size, msg_prefix_size, max_order_raw_size, max_order_war_size, max_order_waw_size;
    uint64_t mem_tag_format;
    size_t tx_ctx_cnt, rx_ctx_cnt, auth_key_size;
    uint8_t *auth_key;
};
struct fi_domain_attr {
    struct fid_domain *domain;
    char *name;
    int threading, control_progress, data_progress, resource_mgmt, av_type, mr_mode;
    size_t mr_key_size, cq_data_size, cq_cnt, ep_cnt, tx_ctx_cnt, rx_ctx_cnt, max_ep_tx_ctx, max_ep_rx_ctx,
        max_ep_stx_ctx, max_ep_srx_ctx, cntr_cnt, mr_iov_limit;
    uint64_t caps, mode;
    uint8_t *auth_key;
    size_t auth_key_size, max_err_data, mr_cnt;
    uint32_t tclass;
    size_t max_ep_auth_key;
    uint32_t max_group_id;
    uint64_t max_cntr_value, max_err_cntr_value;
};
struct fi_fabric_attr {
    struct fid_fabric *fabric;
    char *name, *prov_name;
    uint32_t prov_version, api_version;
};
struct fi_info {
    struct fi_info *next;
    uint64_t caps, mode;
    uint32_t addr_format;
    size_t src_addrlen, dest_addrlen;
    void *src_addr, *dest_addr, *handle;
    struct fi_tx_attr *tx_attr;
    struct fi_rx_attr *rx_attr;
    struct fi_ep_attr *ep_attr;
    struct fi_domain_attr *domain_attr;
    struct fi_fabric_attr *fabric_attr;
    struct fid_nic *nic;
};
struct fi_device_attr { char *name, *device_id, *device_version, *vendor_id, *driver, *firmware; };
struct fi_link_attr { char *address; size_t mtu, speed; int state; char *network_type; };
struct fid { size_t fclass; void *context, *ops; };
struct fid_nic {
    struct fid fid;
    struct fi_device_attr *device_attr;
    void *bus_attr;
    struct fi_link_attr *link_attr;
    void *prov_attr;
};
struct fi_cq_tagged_entry { void *op_context; uint64_t flags; size_t len; void *buf; uint64_t data, tag; };
"""

_FUNCTIONS = """
uint32_t fi_version(void);
const char *fi_strerror(int errnum);
char *fi_tostr(const void *data, int datatype);
int fi_getinfo(uint32_t version, const char *node, const char *service, uint64_t flags, const struct fi_info *hints,
               struct fi_info **info);
void fi_freeinfo(struct fi_info *info);
struct fi_info *fi_dupinfo(const struct fi_info *info);
char *strdup(const char *text); /* of libc, which every libfabric brings along */
int fi_fabric(struct fi_fabric_attr *attr, struct fid_fabric **fabric, void *context);
"""

# native/fishim defines these: change both.
_SHIM = """
struct efaprof_fi_context { uint64_t words[8]; };
struct efaprof_fi_cq_error {
    void *op_context;
    uint64_t flags, len, data, tag, olen;
    int32_t err, prov_errno;
    uint64_t err_data_size;
};
struct efaprof_fi_loop { uint64_t completed, again, elapsed_ns, idle_ns; };
uint32_t efaprof_fi_headers(void);
uint32_t efaprof_fi_shim(void);
int efaprof_fi_close(void *fid);
int efaprof_fi_open_ops(void *fid, const char *name, void **ops);
int efaprof_fi_domain(void *fabric, struct fi_info *info, void **domain);
int efaprof_fi_query_atomic(void *domain, int datatype, int op, uint64_t flags, size_t *count, size_t *size);
int efaprof_fi_endpoint(void *domain, struct fi_info *info, void **ep);
int efaprof_fi_ep_bind(void *ep, void *other, uint64_t flags);
int efaprof_fi_enable(void *ep);
int efaprof_fi_getname(void *ep, void *address, size_t *bytes);
ssize_t efaprof_fi_cancel(void *ep, void *context);
int efaprof_fi_av_open(void *domain, int type, size_t count, void **av);
int efaprof_fi_av_insert(void *av, const void *address, uint64_t *fi_addr);
int efaprof_fi_av_remove(void *av, uint64_t fi_addr);
int efaprof_fi_av_lookup(void *av, uint64_t fi_addr, void *address, size_t *bytes);
const char *efaprof_fi_av_straddr(void *av, const void *address, char *text, size_t *bytes);
int efaprof_fi_mr_reg(void *domain, const void *start, size_t bytes, uint64_t access, uint64_t key, void **mr);
int efaprof_fi_mr_bind(void *mr, void *other);
int efaprof_fi_mr_enable(void *mr);
uint64_t efaprof_fi_mr_key(void *mr);
void *efaprof_fi_mr_desc(void *mr);
int efaprof_fi_cq_open(void *domain, size_t size, int format, int wait_obj, void **cq);
ssize_t efaprof_fi_cq_read(void *cq, void *entries, size_t count);
ssize_t efaprof_fi_cq_readfrom(void *cq, void *entries, size_t count, uint64_t *sources);
ssize_t efaprof_fi_cq_sread(void *cq, void *entries, size_t count, int timeout_ms);
int efaprof_fi_cq_signal(void *cq);
ssize_t efaprof_fi_cq_readerr(void *cq, struct efaprof_fi_cq_error *into, void *err_data, size_t err_data_bytes);
const char *efaprof_fi_cq_strerror(void *cq, int prov_errno, const void *err_data, char *text, size_t bytes);
ssize_t efaprof_fi_recv(void *ep, void *into, size_t bytes, void *desc, uint64_t source, void *context);
ssize_t efaprof_fi_send(void *ep, const void *from, size_t bytes, void *desc, uint64_t peer, void *context);
ssize_t efaprof_fi_senddata(void *ep, const void *from, size_t bytes, void *desc, uint64_t data, uint64_t peer,
                            void *context);
ssize_t efaprof_fi_inject(void *ep, const void *from, size_t bytes, uint64_t peer);
ssize_t efaprof_fi_trecv(void *ep, void *into, size_t bytes, void *desc, uint64_t source, uint64_t tag,
                         uint64_t ignore, void *context);
ssize_t efaprof_fi_tsend(void *ep, const void *from, size_t bytes, void *desc, uint64_t peer, uint64_t tag,
                         void *context);
ssize_t efaprof_fi_tsenddata(void *ep, const void *from, size_t bytes, void *desc, uint64_t data, uint64_t peer,
                             uint64_t tag, void *context);
ssize_t efaprof_fi_tinject(void *ep, const void *from, size_t bytes, uint64_t peer, uint64_t tag);
ssize_t efaprof_fi_read(void *ep, void *into, size_t bytes, void *desc, uint64_t peer, uint64_t address, uint64_t key,
                        void *context);
ssize_t efaprof_fi_write(void *ep, const void *from, size_t bytes, void *desc, uint64_t peer, uint64_t address,
                         uint64_t key, void *context);
ssize_t efaprof_fi_writedata(void *ep, const void *from, size_t bytes, void *desc, uint64_t data, uint64_t peer,
                             uint64_t address, uint64_t key, void *context);
ssize_t efaprof_fi_inject_write(void *ep, const void *from, size_t bytes, uint64_t peer, uint64_t address,
                                uint64_t key);
int efaprof_fi_write_loop(void *ep, void *cq, size_t entry_bytes, const void *from, size_t bytes, void *desc,
                          uint64_t peer, uint64_t address, uint64_t key, uint32_t window, char *contexts,
                          void **free_contexts, uint64_t duration_ns, uint64_t drain_ns,
                          struct efaprof_fi_loop *result);
ssize_t efaprof_fi_inject_writedata(void *ep, const void *from, size_t bytes, uint64_t data, uint64_t peer,
                                    uint64_t address, uint64_t key);
"""


@cache
def ffi() -> FFI:
    """The one FFI of the binding: handles of one cannot be given to another."""
    one = FFI()
    one.cdef(STRUCTS + _FUNCTIONS + _SHIM)
    return one
