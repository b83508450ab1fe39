// The fake provider's address vectors, scalable endpoints, shared contexts, memory regions and extensions.
#include "fake_provider.h"

#include "fake_gda.h"

#include <rdma/fi_errno.h>
#include <stdlib.h>
#include <string.h>

static struct fi_ops plain_fid_ops = {sizeof(struct fi_ops), .close = fake_close};

static void *make(size_t bytes, size_t fclass, void *context) {
    struct fid *made = calloc(1, bytes);
    *made = (struct fid){fclass, context, &plain_fid_ops};
    return made;
}

// ---- address vectors
static int number(fi_addr_t *fi_addr, size_t count) {
    for (size_t i = 0; fi_addr && i < count; ++i)
        fi_addr[i] = 100 + i;
    return (int)count;
}
static int av_insert(struct fid_av *av, const void *addr, size_t count, fi_addr_t *fi_addr, uint64_t flags,
                     void *context) {
    (void)av, (void)addr, (void)flags, (void)context;
    return number(fi_addr, count);
}
static int av_insertsvc(struct fid_av *av, const char *node, const char *service, fi_addr_t *fi_addr, uint64_t flags,
                        void *context) {
    (void)av, (void)node, (void)service, (void)flags, (void)context;
    return number(fi_addr, 1);
}
static int av_insertsym(struct fid_av *av, const char *node, size_t nodes, const char *service, size_t services,
                        fi_addr_t *fi_addr, uint64_t flags, void *context) {
    (void)av, (void)node, (void)service, (void)flags, (void)context;
    return number(fi_addr, nodes * services);
}
static int av_remove(struct fid_av *av, fi_addr_t *fi_addr, size_t count, uint64_t flags) {
    (void)av, (void)fi_addr, (void)count, (void)flags;
    return 0;
}
static int av_lookup(struct fid_av *av, fi_addr_t fi_addr, void *addr, size_t *bytes) { // 16 bytes of its number
    (void)av;
    memset(addr, (int)fi_addr, *bytes < 16 ? *bytes : 16);
    *bytes = 16;
    return 0;
}
static struct fi_ops_av av_ops = {sizeof(struct fi_ops_av),  .insert = av_insert, .insertsvc = av_insertsvc,
                                  .insertsym = av_insertsym, .remove = av_remove, .lookup = av_lookup};

int fake_av_open(struct fid_domain *domain, struct fi_av_attr *attr, struct fid_av **av, void *context) {
    (void)domain, (void)attr;
    *av = make(sizeof **av, FI_CLASS_AV, context);
    (*av)->ops = &av_ops;
    return 0;
}

// ---- scalable endpoints: their contexts are endpoints of another class
static int open_context(struct fid_ep **ep, size_t fclass, void *context) {
    const int ret = fake_endpoint(NULL, NULL, ep, context);
    if (ret == 0) (*ep)->fid.fclass = fclass;
    return ret;
}
static int tx_ctx(struct fid_ep *sep, int index, struct fi_tx_attr *attr, struct fid_ep **ep, void *context) {
    (void)sep, (void)index, (void)attr;
    return open_context(ep, FI_CLASS_TX_CTX, context);
}
static int rx_ctx(struct fid_ep *sep, int index, struct fi_rx_attr *attr, struct fid_ep **ep, void *context) {
    (void)sep, (void)index, (void)attr;
    return open_context(ep, FI_CLASS_RX_CTX, context);
}
static struct fi_ops_ep sep_ops = {sizeof(struct fi_ops_ep), .tx_ctx = tx_ctx, .rx_ctx = rx_ctx};

int fake_scalable_ep(struct fid_domain *domain, struct fi_info *info, struct fid_ep **sep, void *context) {
    (void)domain, (void)info;
    *sep = make(sizeof **sep, FI_CLASS_SEP, context);
    (*sep)->ops = &sep_ops;
    // Only its own table is a scalable endpoint's: the others are not to be read.
    (*sep)->msg = (void *)16, (*sep)->rma = (void *)16, (*sep)->tagged = (void *)16, (*sep)->atomic = (void *)16;
    return 0;
}

// ---- shared contexts
int fake_stx(struct fid_domain *domain, struct fi_tx_attr *attr, struct fid_stx **stx, void *context) {
    (void)domain, (void)attr;
    *stx = make(sizeof **stx, FI_CLASS_STX_CTX, context);
    return 0;
}

// Without attributes as with FI_PEER: the caller brings the context along, nothing is made.
int fake_srx(struct fid_domain *domain, struct fi_rx_attr *attr, struct fid_ep **ep, void *context) {
    (void)domain;
    return attr ? open_context(ep, FI_CLASS_SRX_CTX, context) : 0;
}

// ---- memory
static int open_region(struct fid_mr **mr, uint64_t key, void *context) {
    *mr = make(sizeof **mr, FI_CLASS_MR, context);
    (*mr)->key = key;
    return 0;
}
static int reg(struct fid *fid, const void *buf, size_t len, uint64_t access, uint64_t offset, uint64_t key,
               uint64_t flags, struct fid_mr **mr, void *context) {
    (void)fid, (void)buf, (void)len, (void)access, (void)offset, (void)flags;
    return open_region(mr, key, context);
}
static int regv(struct fid *fid, const struct iovec *iov, size_t count, uint64_t access, uint64_t offset, uint64_t key,
                uint64_t flags, struct fid_mr **mr, void *context) {
    (void)fid, (void)iov, (void)count, (void)access, (void)offset, (void)flags;
    return open_region(mr, key, context);
}
static int regattr(struct fid *fid, const struct fi_mr_attr *attr, uint64_t flags, struct fid_mr **mr) {
    (void)fid, (void)flags;
    return open_region(mr, attr->requested_key, attr->context);
}
struct fi_ops_mr fake_mr_ops = {sizeof(struct fi_ops_mr), .reg = reg, .regv = regv, .regattr = regattr};

// ---- extensions
static int query_addr(struct fid_ep *ep, fi_addr_t addr, uint16_t *handle, uint16_t *queue_pair, uint32_t *key) {
    (void)ep;
    *handle = 1, *queue_pair = (uint16_t)addr, *key = 3;
    return 0;
}
static int query_qp_wqs(struct fid_ep *ep, void *send, void *receive) {
    (void)ep;
    return send && receive ? 0 : -FI_EINVAL;
}
static int query_cq(struct fid_cq *cq, void *attr) {
    (void)cq;
    return attr ? 0 : -FI_EINVAL;
}
static int cq_open_ext(struct fid_domain *domain, struct fi_cq_attr *attr, void *memory, struct fid_cq **cq,
                       void *context) {
    (void)memory;
    return fake_cq_open(domain, attr, cq, context);
}
static uint64_t get_mr_lkey(struct fid_mr *mr) {
    return mr->key;
}
static int cntr_open_ext(struct fid_domain *domain, struct fi_cntr_attr *attr, struct fid_cntr **cntr, void *context,
                         void *memory) {
    (void)memory;
    return fake_cntr_open(domain, attr, cntr, context);
}
static struct gda_ops gda_ops = {query_addr, query_qp_wqs, query_cq, cq_open_ext, get_mr_lkey, cntr_open_ext};
static struct gda_ops other_ops = {query_addr, query_qp_wqs, query_cq, cq_open_ext, get_mr_lkey, cntr_open_ext};

int fake_ops_open(struct fid *fid, const char *name, uint64_t flags, void **ops, void *context) {
    (void)fid, (void)flags, (void)context;
    if (strcmp(name, "efa gda ops") == 0)
        *ops = &gda_ops;
    else if (strcmp(name, "fake ops") == 0)
        *ops = &other_ops;
    else
        return -FI_EINVAL;
    return 0;
}
