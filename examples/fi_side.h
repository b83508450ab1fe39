// One side of a transfer: the libfabric objects of one process, and what it counts about its own calls.
// Everything that this program knows about itself is counted here, so that a recording of it can be checked.
#pragma once

#include <rdma/fabric.h>
#include <rdma/fi_atomic.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_rma.h>
#include <rdma/fi_tagged.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum op { OP_WRITE, OP_WRITEDATA, OP_READ, OP_SEND, OP_SENDDATA, OP_TAGGED, OP_ATOMIC, OP_CANCEL, OPS };

struct test_case {
    int op;         // enum op
    int format;     // enum fi_cq_format
    uint64_t size;  // bytes of one operation
    uint64_t count; // operations
    int window;     // outstanding operations per thread
    int threads;    // that post
    bool inject, selective, counter, more, wait;
};

struct slot { // one outstanding operation: its address is the context
    struct fi_context2 reserved;
    uint64_t index; // of the operation
    atomic_int busy;
    char *buffer;
};

struct counts { // of this process's own calls
    _Atomic uint64_t posts, eagain, completions, errors, empties, checksum;
};

struct side {
    const struct test_case *test;
    struct fi_info *info;
    struct fid_fabric *fabric;
    struct fid_domain *domain;
    struct fid_ep *ep;
    struct fid_cq *cq;
    struct fid_cntr *cntr;
    struct fid_av *av;
    struct fid_mr *mr, *local_mr;
    fi_addr_t peer;
    char *region; // the peer's operations go here
    size_t region_bytes;
    struct slot *slots;
    char *buffers;
    size_t slot_count;
    struct counts counts;
    void (*completed)(struct side *, struct slot *, uint64_t flags, uint64_t data); // of a CQ entry
};

#define TRY(call)                                                                                                      \
    do {                                                                                                               \
        long try_ret = (call);                                                                                         \
        if (try_ret < 0) die(#call, try_ret);                                                                          \
    } while (0)

static inline _Noreturn void die(const char *what, long ret) {
    fprintf(stderr, "fi_client: %s: %s (%ld)\n", what, fi_strerror((int)-ret), ret);
    exit(1);
}

// Waiting gives the processor away now and then: the peer may need the core that we spin on.
static inline void pause_now_and_then(unsigned *spins) {
    if (++*spins % 64 == 0) sched_yield();
}

// What the operation needs of a provider. NULL: it has nothing of the kind.
static inline struct fi_info *find_info(const char *provider, const struct test_case *test) {
    struct fi_info *hints = fi_allocinfo(), *info = NULL;
    hints->caps = test->op <= OP_READ ? FI_RMA | FI_MSG : test->op == OP_TAGGED ? FI_TAGGED : FI_MSG;
    if (test->op == OP_ATOMIC) hints->caps = FI_ATOMIC | FI_MSG;
    hints->mode = FI_CONTEXT | FI_CONTEXT2;
    hints->ep_attr->type = FI_EP_RDM;
    hints->domain_attr->mr_mode = FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY;
    hints->domain_attr->threading = test->threads > 1 ? FI_THREAD_SAFE : FI_THREAD_DOMAIN;
    hints->fabric_attr->prov_name = strdup(provider);
    // Providers of one host name their endpoints by themselves.
    const bool names_itself = strncmp(provider, "shm", 3) == 0 || strncmp(provider, "sm2", 3) == 0;
    const char *node = names_itself ? NULL : "127.0.0.1";
    const int ret =
        fi_getinfo(FI_VERSION(FI_MAJOR_VERSION, FI_MINOR_VERSION), node, NULL, node ? FI_SOURCE : 0, hints, &info);
    fi_freeinfo(hints);
    return ret == 0 ? info : NULL;
}

static inline void open_side(struct side *side, struct fi_info *info, const struct test_case *test) {
    memset(side, 0, sizeof *side);
    side->test = test;
    side->info = info;
    TRY(fi_fabric(info->fabric_attr, &side->fabric, NULL));
    TRY(fi_domain(side->fabric, info, &side->domain, NULL));
    struct fi_cq_attr cq_attr = {.format = (enum fi_cq_format)test->format,
                                 .wait_obj = test->wait ? FI_WAIT_UNSPEC : FI_WAIT_NONE};
    TRY(fi_cq_open(side->domain, &cq_attr, &side->cq, NULL));
    struct fi_av_attr av_attr = {.type = FI_AV_MAP};
    TRY(fi_av_open(side->domain, &av_attr, &side->av, NULL));
    TRY(fi_endpoint(side->domain, info, &side->ep, NULL));
    TRY(fi_ep_bind(side->ep, &side->av->fid, 0));
    const uint64_t selective = test->selective || test->counter ? FI_SELECTIVE_COMPLETION : 0;
    TRY(fi_ep_bind(side->ep, &side->cq->fid, FI_TRANSMIT | selective));
    TRY(fi_ep_bind(side->ep, &side->cq->fid, FI_RECV));
    if (test->counter) {
        struct fi_cntr_attr cntr_attr = {.events = FI_CNTR_EVENTS_COMP,
                                         .wait_obj = test->wait ? FI_WAIT_UNSPEC : FI_WAIT_NONE};
        TRY(fi_cntr_open(side->domain, &cntr_attr, &side->cntr, NULL));
        TRY(fi_ep_bind(side->ep, &side->cntr->fid, FI_WRITE | FI_READ | FI_SEND));
    }
    TRY(fi_enable(side->ep));
}

// Memory for the peer's operations and for our own; slots of our own in flight.
static inline void open_memory(struct side *side, size_t region_bytes, size_t slots) {
    const uint64_t access = FI_REMOTE_WRITE | FI_REMOTE_READ | FI_WRITE | FI_READ | FI_SEND | FI_RECV;
    side->region_bytes = region_bytes;
    side->region = calloc(1, region_bytes);
    side->slot_count = slots;
    side->slots = calloc(slots, sizeof *side->slots);
    side->buffers = calloc(slots, side->test->size);
    if (!side->region || !side->slots || !side->buffers) die("no memory", -FI_ENOMEM);
    for (size_t i = 0; i < slots; ++i)
        side->slots[i].buffer = side->buffers + i * side->test->size;
    TRY(fi_mr_reg(side->domain, side->region, region_bytes, access, 0, 1, 0, &side->mr, NULL));
    TRY(fi_mr_reg(side->domain, side->buffers, slots * side->test->size, access, 0, 2, 0, &side->local_mr, NULL));
}

static inline void close_side(struct side *side) {
    TRY(fi_close(&side->ep->fid));
    if (side->mr) TRY(fi_close(&side->mr->fid));
    if (side->local_mr) TRY(fi_close(&side->local_mr->fid));
    if (side->cntr) TRY(fi_close(&side->cntr->fid));
    TRY(fi_close(&side->cq->fid));
    TRY(fi_close(&side->av->fid));
    TRY(fi_close(&side->domain->fid));
    TRY(fi_close(&side->fabric->fid));
    free(side->region);
    free(side->slots);
    free(side->buffers);
    fi_freeinfo(side->info);
}

static inline void take_error(struct side *side) {
    struct fi_cq_err_entry error = {0};
    const ssize_t got = fi_cq_readerr(side->cq, &error, 0);
    if (got == -FI_EAGAIN) return;
    if (got < 0) die("fi_cq_readerr", got);
    if (side->test->op != OP_CANCEL || error.err != FI_ECANCELED) die("an operation failed", -error.err);
    ++side->counts.errors;
    side->completed(side, error.op_context, 0, 0);
}

// One read of the completion queue. True: something was there.
static inline bool poll_cq(struct side *side, bool may_wait) {
    static const size_t bytes[] = {[FI_CQ_FORMAT_CONTEXT] = sizeof(struct fi_cq_entry),
                                   [FI_CQ_FORMAT_MSG] = sizeof(struct fi_cq_msg_entry),
                                   [FI_CQ_FORMAT_DATA] = sizeof(struct fi_cq_data_entry),
                                   [FI_CQ_FORMAT_TAGGED] = sizeof(struct fi_cq_tagged_entry)};
    const int format = side->test->format;
    struct fi_cq_tagged_entry room[16];
    const bool waits = side->test->wait && may_wait;
    const ssize_t got = waits ? fi_cq_sread(side->cq, room, 16, NULL, 20) : fi_cq_read(side->cq, room, 16);
    if (got == -FI_EAGAIN) {
        ++side->counts.empties;
        return false;
    }
    if (got == -FI_EAVAIL) {
        take_error(side);
        return true;
    }
    if (got < 0) die("fi_cq_read", got);
    side->counts.completions += (uint64_t)got;
    for (ssize_t i = 0; i < got; ++i) {
        const struct fi_cq_tagged_entry *entry = (const void *)((const char *)room + (size_t)i * bytes[format]);
        const uint64_t flags = format >= FI_CQ_FORMAT_MSG ? entry->flags : 0;
        const uint64_t data = format >= FI_CQ_FORMAT_DATA && (flags & FI_REMOTE_CQ_DATA) ? entry->data : 0;
        side->completed(side, entry->op_context, flags, data);
    }
    return true;
}

// ---- payload: operation i carries words that depend on i and their place; a sum of checksums needs no order
static inline uint64_t word_of(uint64_t operation, uint64_t place) {
    uint64_t word = (operation + 1) * 0x9E3779B97F4A7C15u + place * 0xD6E8FEB86659FD93u;
    word ^= word >> 29;
    return word * 0xBF58476D1CE4E5B9u;
}

static inline void fill(char *buffer, uint64_t size, uint64_t operation) {
    for (uint64_t at = 0; at < size; at += 8) {
        const uint64_t word = word_of(operation, at);
        memcpy(buffer + at, &word, size - at < 8 ? size - at : 8);
    }
}

static inline uint64_t checksum(const char *buffer, uint64_t size) {
    uint64_t sum = size;
    for (uint64_t at = 0; at < size; at += 8) {
        uint64_t word = 0;
        memcpy(&word, buffer + at, size - at < 8 ? size - at : 8);
        sum = (sum ^ word) * 0x100000001B3u;
        sum ^= sum >> 31;
    }
    return sum;
}
