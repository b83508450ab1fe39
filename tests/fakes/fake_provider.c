// A libfabric provider that moves nothing: every call answers at once. It exists to show an interposer things that real
// providers do rarely or nowhere on a test machine, and to make the interposer's own cost visible.
// Loaded by libfabric through FI_PROVIDER_PATH (libfake-fi.so, provider "fake"). FAKE_MODE holds words:
//   tables    every endpoint and queue has ops tables of its own (MANY of them)
//   const     tables lie in read-only memory
//   short     tables end early (their size says so), with garbage behind
//   swap      enabling an endpoint gives it, and the queues it is bound to, other tables
//   selfcall  read calls readfrom of the same queue
//   silent    no completions
//   eagain    each operation is refused FAKE_EAGAIN times first
#include "fake_provider.h"

#include <rdma/fi_cm.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_rma.h>
#include <rdma/fi_tagged.h>
#include <rdma/providers/fi_prov.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

enum { MANY = 40, DEPTH = 1024 };

static bool has_mode(const char *word) {
    const char *mode = getenv("FAKE_MODE");
    return mode && strstr(mode, word) != NULL;
}

struct fake_cq {
    struct fid_cq cq;
    enum fi_cq_format format;
    atomic_flag lock;
    _Atomic unsigned head, tail;
    struct fi_cq_tagged_entry entries[DEPTH];
};

struct fake_ep {
    struct fid_ep ep;
    struct fake_cq *tx, *rx;
    bool silent, selective, swap;
    _Atomic int refused; // times the operation at hand was refused
    int eagain;
};

// ---- completions
static void complete(struct fake_ep *ep, struct fake_cq *cq, void *context, uint64_t flags, size_t len, uint64_t data) {
    if (ep->silent || !cq) return;
    while (atomic_flag_test_and_set_explicit(&cq->lock, memory_order_acquire)) {
    }
    if (cq->head - cq->tail < DEPTH)
        cq->entries[cq->head++ % DEPTH] = (struct fi_cq_tagged_entry){context, flags, len, NULL, data, 0};
    atomic_flag_clear_explicit(&cq->lock, memory_order_release);
}

static ssize_t cq_readfrom(struct fid_cq *fid, void *buf, size_t count, fi_addr_t *src) {
    static const size_t bytes[] = {8, 8, 24, 40, 48};
    struct fake_cq *cq = (struct fake_cq *)fid;
    if (cq->head == cq->tail) return -FI_EAGAIN;
    size_t n = 0;
    while (atomic_flag_test_and_set_explicit(&cq->lock, memory_order_acquire)) {
    }
    for (; n < count && cq->tail != cq->head; ++n, ++cq->tail) {
        memcpy((char *)buf + n * bytes[cq->format], &cq->entries[cq->tail % DEPTH], bytes[cq->format]);
        if (src) src[n] = cq->tail;
    }
    atomic_flag_clear_explicit(&cq->lock, memory_order_release);
    return n ? (ssize_t)n : -FI_EAGAIN;
}

static ssize_t cq_read(struct fid_cq *cq, void *buf, size_t count) {
    return cq_readfrom(cq, buf, count, NULL);
}
static ssize_t cq_read_by_readfrom(struct fid_cq *cq, void *buf, size_t count) {
    return fi_cq_readfrom(cq, buf, count, NULL);
}
static ssize_t cq_readerr(struct fid_cq *cq, struct fi_cq_err_entry *entry, uint64_t flags) {
    (void)cq, (void)flags;
    memset(entry, 0, sizeof *entry);
    entry->op_context = (void *)0x1234;
    entry->err = FI_EIO;
    entry->flags = FI_SEND;
    entry->len = 77;
    return 1;
}

// ---- operations
static ssize_t take(struct fake_ep *ep) {
    if (!ep->eagain) return 0;
    if (ep->refused++ < ep->eagain) return -FI_EAGAIN;
    ep->refused = 0;
    return 0;
}

static ssize_t done(struct fid_ep *fid, void *context, uint64_t flags, size_t len, uint64_t data) {
    struct fake_ep *ep = (struct fake_ep *)fid;
    const ssize_t ret = take(ep);
    if (ret == 0 && !ep->selective) complete(ep, ep->tx, context, flags, len, data);
    return ret;
}

static ssize_t rma_write(struct fid_ep *ep, const void *buf, size_t len, void *desc, fi_addr_t peer, uint64_t addr,
                         uint64_t key, void *context) {
    (void)buf, (void)desc, (void)peer, (void)addr, (void)key;
    return done(ep, context, FI_RMA | FI_WRITE, len, 0);
}
static ssize_t rma_read(struct fid_ep *ep, void *buf, size_t len, void *desc, fi_addr_t peer, uint64_t addr,
                        uint64_t key, void *context) {
    (void)buf, (void)desc, (void)peer, (void)addr, (void)key;
    return done(ep, context, FI_RMA | FI_READ, len, 0);
}
static ssize_t rma_writemsg(struct fid_ep *fid, const struct fi_msg_rma *msg, uint64_t flags) {
    struct fake_ep *ep = (struct fake_ep *)fid;
    const ssize_t ret = take(ep);
    if (ret == 0 && (!ep->selective || (flags & FI_COMPLETION)))
        complete(ep, ep->tx, msg->context, FI_RMA | FI_WRITE, msg->msg_iov[0].iov_len, 0);
    return ret;
}
static ssize_t rma_inject(struct fid_ep *fid, const void *buf, size_t len, fi_addr_t peer, uint64_t addr,
                          uint64_t key) {
    (void)buf, (void)len, (void)peer, (void)addr, (void)key;
    return take((struct fake_ep *)fid);
}
static ssize_t msg_send(struct fid_ep *ep, const void *buf, size_t len, void *desc, fi_addr_t peer, void *context) {
    (void)buf, (void)desc, (void)peer;
    return done(ep, context, FI_MSG | FI_SEND, len, 0);
}
static ssize_t msg_recv(struct fid_ep *fid, void *buf, size_t len, void *desc, fi_addr_t peer, void *context) {
    struct fake_ep *ep = (struct fake_ep *)fid;
    (void)buf, (void)desc, (void)peer;
    complete(ep, ep->rx, context, FI_MSG | FI_RECV, len, 0);
    return 0;
}
static ssize_t tagged_send(struct fid_ep *ep, const void *buf, size_t len, void *desc, fi_addr_t peer, uint64_t tag,
                           void *context) {
    (void)buf, (void)desc, (void)peer, (void)tag;
    return done(ep, context, FI_TAGGED | FI_SEND, len, 0);
}

// ---- tables: one writable set, one read-only set, and many. Members that are not named stay null.
static int fake_bind(struct fid *fid, struct fid *bound, uint64_t flags);
static int fake_control(struct fid *fid, int command, void *argument);
static ssize_t ep_cancel(fid_t fid, void *context);
static int ep_setopt(fid_t fid, int level, int name, const void *value, size_t bytes);
static int ep_getname(fid_t fid, void *addr, size_t *bytes);

#define RMA_OPS                                                                                                        \
    { sizeof(struct fi_ops_rma), .read = rma_read, .write = rma_write, .writemsg = rma_writemsg, .inject = rma_inject }
#define MSG_OPS                                                                                                        \
    { sizeof(struct fi_ops_msg), .recv = msg_recv, .send = msg_send }
#define TAGGED_OPS                                                                                                     \
    { sizeof(struct fi_ops_tagged), .send = tagged_send }
#define EP_OPS                                                                                                         \
    { sizeof(struct fi_ops_ep), .cancel = ep_cancel, .setopt = ep_setopt }
#define CQ_OPS                                                                                                         \
    { sizeof(struct fi_ops_cq), .read = cq_read, .readfrom = cq_readfrom, .readerr = cq_readerr }
#define FID_OPS                                                                                                        \
    { sizeof(struct fi_ops), .close = fake_close, .bind = fake_bind, .control = fake_control }

struct tables {
    struct fi_ops_rma rma;
    struct fi_ops_msg msg;
    struct fi_ops_tagged tagged;
    struct fi_ops_ep ep;
    struct fi_ops_cq cq;
    struct fi_ops fid;
};
#define ALL_OPS                                                                                                        \
    { RMA_OPS, MSG_OPS, TAGGED_OPS, EP_OPS, CQ_OPS, FID_OPS }
static struct tables many[MANY + 1] = {[0 ... MANY] = ALL_OPS}; // the last one is for whoever asks for none of its own
static struct tables swapped = ALL_OPS;
static const struct tables constant = ALL_OPS;
static struct fi_ops_cm cm_ops = {sizeof(struct fi_ops_cm), .getname = ep_getname};

static struct tables *next_tables(void) {
    static int used;
    if (has_mode("const")) return (struct tables *)&constant;
    if (has_mode("tables")) return &many[used++ % MANY];
    struct tables *tables = &many[MANY];
    if (has_mode("short")) { // the table ends before inject, and what lies behind is no function
        tables->rma.size = offsetof(struct fi_ops_rma, inject);
        memset(&tables->rma.inject, 0x5a, sizeof tables->rma - offsetof(struct fi_ops_rma, inject));
    }
    if (has_mode("selfcall")) tables->cq.read = cq_read_by_readfrom;
    return tables;
}

// ---- objects
int fake_close(struct fid *fid) {
    free(fid);
    return 0;
}

static int fake_bind(struct fid *fid, struct fid *bound, uint64_t flags) {
    struct fake_ep *ep = (struct fake_ep *)fid;
    if (bound->fclass != FI_CLASS_CQ) return 0;
    if (flags & FI_TRANSMIT) ep->tx = (struct fake_cq *)bound;
    if (flags & FI_RECV) ep->rx = (struct fake_cq *)bound;
    if (flags & FI_SELECTIVE_COMPLETION) ep->selective = true;
    return 0;
}

static int fake_control(struct fid *fid, int command, void *argument) {
    struct fake_ep *ep = (struct fake_ep *)fid;
    (void)argument;
    if (command == FI_ENABLE && ep->swap) {
        ep->ep.rma = &swapped.rma;
        ep->ep.msg = &swapped.msg;
        if (ep->tx) ep->tx->cq.ops = &swapped.cq;
        if (ep->rx) ep->rx->cq.ops = &swapped.cq;
    }
    return 0;
}

static ssize_t ep_cancel(fid_t fid, void *context) {
    (void)fid, (void)context;
    return 0;
}

static int ep_setopt(fid_t fid, int level, int name, const void *value, size_t bytes) {
    struct fake_ep *ep = (struct fake_ep *)fid;
    (void)level, (void)name, (void)value, (void)bytes;
    ep->ep.rma = &swapped.rma; // options may choose another path
    return 0;
}

static int ep_getname(fid_t fid, void *addr, size_t *bytes) {
    (void)fid;
    memset(addr, 7, *bytes < 16 ? *bytes : 16);
    *bytes = 16;
    return 0;
}

int fake_cq_open(struct fid_domain *domain, struct fi_cq_attr *attr, struct fid_cq **cq, void *context) {
    struct fake_cq *made = calloc(1, sizeof *made);
    struct tables *tables = next_tables();
    (void)domain;
    made->cq.fid = (struct fid){FI_CLASS_CQ, context, &tables->fid};
    made->cq.ops = &tables->cq;
    made->format = attr->format ? attr->format : FI_CQ_FORMAT_CONTEXT;
    *cq = &made->cq;
    return 0;
}

int fake_endpoint(struct fid_domain *domain, struct fi_info *info, struct fid_ep **ep, void *context) {
    struct fake_ep *made = calloc(1, sizeof *made);
    struct tables *tables = next_tables();
    const char *eagain = getenv("FAKE_EAGAIN");
    (void)domain, (void)info;
    made->ep.fid = (struct fid){FI_CLASS_EP, context, &tables->fid};
    made->ep.ops = &tables->ep;
    made->ep.cm = &cm_ops;
    made->ep.msg = &tables->msg;
    made->ep.rma = &tables->rma;
    made->ep.tagged = &tables->tagged;
    made->silent = has_mode("silent");
    made->swap = has_mode("swap");
    made->eagain = has_mode("eagain") && eagain ? atoi(eagain) : 0;
    *ep = &made->ep;
    return 0;
}

static uint64_t cntr_read(struct fid_cntr *cntr) {
    (void)cntr;
    return 5;
}
static struct fi_ops_cntr cntr_ops = {sizeof(struct fi_ops_cntr), .read = cntr_read};

int fake_cntr_open(struct fid_domain *domain, struct fi_cntr_attr *attr, struct fid_cntr **cntr, void *context) {
    struct fid_cntr *made = calloc(1, sizeof *made);
    (void)domain, (void)attr;
    made->fid = (struct fid){FI_CLASS_CNTR, context, &many[MANY].fid};
    made->ops = &cntr_ops;
    *cntr = made;
    return 0;
}

static struct fi_ops_domain domain_ops = {
    sizeof(struct fi_ops_domain),    .av_open = fake_av_open,     .cq_open = fake_cq_open, .endpoint = fake_endpoint,
    .scalable_ep = fake_scalable_ep, .cntr_open = fake_cntr_open, .stx_ctx = fake_stx,     .srx_ctx = fake_srx};
static struct fi_ops domain_fid_ops = {sizeof(struct fi_ops), .close = fake_close, .ops_open = fake_ops_open};

static int open_domain(struct fid_fabric *fabric, struct fi_info *info, struct fid_domain **domain, void *context) {
    struct fid_domain *made = calloc(1, sizeof *made);
    (void)fabric, (void)info;
    made->fid = (struct fid){FI_CLASS_DOMAIN, context, &domain_fid_ops};
    made->ops = &domain_ops;
    made->mr = &fake_mr_ops;
    *domain = made;
    return 0;
}
static struct fi_ops_fabric fabric_ops = {sizeof(struct fi_ops_fabric), .domain = open_domain};

static int open_fabric(struct fi_fabric_attr *attr, struct fid_fabric **fabric, void *context) {
    struct fid_fabric *made = calloc(1, sizeof *made);
    (void)attr;
    made->fid = (struct fid){FI_CLASS_FABRIC, context, &many[MANY].fid};
    made->ops = &fabric_ops;
    *fabric = made;
    return 0;
}

// Structs grow between releases; libfabric may copy more than this header knows of.
static void *roomy(size_t bytes) {
    return calloc(1, bytes + 256);
}

static int get_info(uint32_t version, const char *node, const char *service, uint64_t flags,
                    const struct fi_info *hints, struct fi_info **info) {
    (void)version, (void)node, (void)service, (void)flags;
    // Nothing for utility providers to layer on.
    if (hints && hints->ep_attr && hints->ep_attr->type != FI_EP_UNSPEC && hints->ep_attr->type != FI_EP_RDM)
        return -FI_ENODATA;
    struct fi_info *made = roomy(sizeof *made);
    made->caps = FI_MSG | FI_RMA | FI_TAGGED | FI_SOURCE | FI_HMEM;
    made->addr_format = FI_SOCKADDR_IN;
    made->tx_attr = roomy(sizeof *made->tx_attr);
    made->rx_attr = roomy(sizeof *made->rx_attr);
    made->ep_attr = roomy(sizeof *made->ep_attr);
    made->domain_attr = roomy(sizeof *made->domain_attr);
    made->fabric_attr = roomy(sizeof *made->fabric_attr);
    made->tx_attr->caps = made->rx_attr->caps = made->caps;
    made->tx_attr->op_flags = FI_DELIVERY_COMPLETE;
    made->tx_attr->inject_size = 64;
    made->ep_attr->type = FI_EP_RDM;
    made->ep_attr->max_msg_size = 1u << 20;
    made->domain_attr->name = strdup("fake0");
    made->domain_attr->cq_data_size = 4;
    made->fabric_attr->name = strdup("fakenet");
    *info = made;
    return 0;
}

static void cleanup(void) {}

struct fi_provider *fi_prov_ini(void);
__attribute__((visibility("default"))) struct fi_provider *fi_prov_ini(void) {
    static struct fi_provider provider = {.version = FI_VERSION(1, 0),
                                          .fi_version = FI_VERSION(FI_MAJOR_VERSION, FI_MINOR_VERSION),
                                          .name = "fake",
                                          .getinfo = get_info,
                                          .fabric = open_fabric,
                                          .cleanup = cleanup};
    return &provider;
}
