// Between a client (libibverbs.so.1 of ours, in the rank) and the NIC process: one SOCK_SEQPACKET connection per
// process for control, sealed memfds for the rings. The NIC owns every object; ids are checked on each call.
#pragma once

#include <stdint.h>

#include "wire.h"

#define SOFTEFA_PROTO 3u
#define SOFTEFA_SOCKET "nic.sock"
#define SOFTEFA_ENV_DIR "EFAPROF_SOFTEFA_DIR"
#define SOFTEFA_PAGE 4096u
#define SOFTEFA_FDS_MAX 2
#define SOFTEFA_NO_RANK 0xffffffffu

// Limits, as fi_info shows them.
#define SOFTEFA_MAX_SQ 4096u
#define SOFTEFA_MAX_RQ 4096u
#define SOFTEFA_MAX_CQE 32768u
#define SOFTEFA_MAX_BATCH 64u
#define SOFTEFA_MAX_QP 256u
#define SOFTEFA_MAX_CQ 512u
#define SOFTEFA_MAX_MR 65535u
#define SOFTEFA_MAX_RDMA (1u << 30)
#define SOFTEFA_MAX_CNTR 512u
#define SOFTEFA_CNTR_MAX 0x7fffffffu /* a counter wraps behind this value, as the device's do */

enum softefa_call {
    SOFTEFA_HELLO = 1,
    SOFTEFA_REG_MR,
    SOFTEFA_DEREG_MR,
    SOFTEFA_CREATE_AH,
    SOFTEFA_DESTROY_AH,
    SOFTEFA_CREATE_CQ,
    SOFTEFA_DESTROY_CQ,
    SOFTEFA_CREATE_QP,
    SOFTEFA_MODIFY_QP,
    SOFTEFA_DESTROY_QP,
    SOFTEFA_CREATE_CNTR,
    SOFTEFA_DESTROY_CNTR,
    SOFTEFA_ATTACH_CNTR,
};

enum softefa_qp_type { SOFTEFA_QP_SRD = 1, SOFTEFA_QP_UD = 2 };
#define SOFTEFA_QP_UNSOLICITED 1u

// What a completion counter can count: the bits of enum ibv_qp_attach_comp_cntr_op.
enum softefa_counted {
    SOFTEFA_COUNTS_SEND,
    SOFTEFA_COUNTS_RECV,
    SOFTEFA_COUNTS_READ,
    SOFTEFA_COUNTS_REMOTE_READ,
    SOFTEFA_COUNTS_WRITE,
    SOFTEFA_COUNTS_REMOTE_WRITE,
    SOFTEFA_COUNTED,
};
#define SOFTEFA_CNTR_DONE 1u
#define SOFTEFA_CNTR_FAILED 2u
#define SOFTEFA_HAS_COUNTERS 1u

// The states of enum ibv_qp_state that matter here.
enum softefa_qp_state {
    SOFTEFA_QP_RESET = 0,
    SOFTEFA_QP_INIT = 1,
    SOFTEFA_QP_RTR = 2,
    SOFTEFA_QP_RTS = 3,
    SOFTEFA_QP_ERR = 6,
};
#define SOFTEFA_SET_STATE 1u
#define SOFTEFA_SET_QKEY 2u
#define SOFTEFA_SET_RNR 4u
#define SOFTEFA_RNR_FOREVER 7u

// The access bits of enum ibv_access_flags that the device knows.
#define SOFTEFA_ACCESS_LOCAL_WRITE 1u
#define SOFTEFA_ACCESS_REMOTE_WRITE 2u
#define SOFTEFA_ACCESS_REMOTE_READ 4u

struct softefa_request {
    uint32_t call;
    uint32_t reserved;
    union {
        struct {
            uint32_t proto;
            uint32_t rank;       // the device of this number is wanted, when it is free; SOFTEFA_NO_RANK: any
            uint64_t probe_addr; // 8 bytes at this address of the client must read as probe_value
            uint64_t probe_value;
        } hello;
        struct {
            uint64_t addr, length, iova;
            uint64_t file_offset; // of addr in the file that comes with the message, if one does: shared memory
            uint32_t access, reserved;
        } reg_mr;
        struct {
            uint32_t key;
        } dereg_mr;
        struct {
            uint8_t gid[16];
        } create_ah;
        struct {
            uint32_t ahn;
        } destroy_ah;
        struct {
            uint32_t entries;
            uint32_t has_channel; // the write end of the channel's pipe comes with the message
            uint64_t cookie;      // written to the pipe on an event
            uint64_t length;      // of memory for the entries in the file that comes with the message; 0: the NIC's own
            uint64_t offset;      // of that in the file
        } create_cq;
        struct {
            uint32_t cq;
        } destroy_cq;
        struct {
            uint32_t type, flags, sq_entries, rq_entries, send_cq, recv_cq;
        } create_qp;
        struct {
            uint32_t qpn, mask, state, qkey, rnr_retry;
        } modify_qp;
        struct {
            uint32_t qpn;
        } destroy_qp;
        struct {
            uint32_t counts_bytes;
            uint32_t external;  // SOFTEFA_CNTR_…: these words lie in the file that comes with the message
            uint64_t offset[2]; // where in it
        } create_cntr;
        struct {
            uint32_t cntr;
        } destroy_cntr;
        struct {
            uint32_t qpn, cntr, op_mask;
        } attach_cntr;
        uint8_t raw[56];
    } u;
};

struct softefa_reply {
    int32_t error; // an errno, 0 when the call did what it says
    uint32_t reserved;
    union {
        struct {
            uint32_t device; // number in the fabric
            uint32_t mtu;
            uint64_t line_bits_s;
            uint8_t gid[16];
            char name[32];
            uint32_t flags; // SOFTEFA_HAS_…
        } hello;            // fds: wake-up eventfd, status page
        struct {
            uint32_t key;
        } reg_mr;
        struct {
            uint32_t ahn;
        } create_ah;
        struct {
            uint32_t cq, entries;
        } create_cq; // fds: ring
        struct {
            uint32_t qpn, sq_entries, rq_entries;
        } create_qp; // fds: rings
        struct {
            uint32_t cntr;
        } create_cntr; // fds: a page with the two words
        uint8_t raw[88];
    } u;
};

// ---- rings. CQ memfd: page of doorbells, then entries. QP memfd: page of doorbells, SQ, RQ -----------
struct softefa_cq_page {
    uint32_t doorbell; // written by the consumer
    uint8_t reserved[60];
    uint64_t overruns; // entries that overwrote unconsumed ones, when the consumer rings the doorbell
};

struct softefa_qp_page {
    uint32_t sq_doorbell;
    uint8_t reserved0[60];
    uint32_t rq_doorbell;
};

static inline uint64_t softefa_cq_bytes(uint32_t entries) {
    return SOFTEFA_PAGE + (uint64_t)entries * sizeof(struct softefa_cqe);
}
// Where the entries lie in memory of the program, the ring has the page alone.
static inline uint64_t softefa_cq_own_bytes(uint32_t entries, int is_external) {
    return is_external ? SOFTEFA_PAGE : softefa_cq_bytes(entries);
}
static inline uint64_t softefa_page_up(uint64_t bytes) {
    return (bytes + SOFTEFA_PAGE - 1) / SOFTEFA_PAGE * SOFTEFA_PAGE;
}
static inline uint64_t softefa_rq_offset(uint32_t sq_entries) {
    return SOFTEFA_PAGE + softefa_page_up((uint64_t)sq_entries * sizeof(struct softefa_wqe));
}
static inline uint64_t softefa_qp_bytes(uint32_t sq_entries, uint32_t rq_entries) {
    return softefa_rq_offset(sq_entries) + softefa_page_up((uint64_t)rq_entries * sizeof(struct softefa_rx_desc));
}

// Written by the NIC and, to set or raise a count, by the client.
struct softefa_cntr_page {
    uint64_t done;
    uint8_t reserved[56];
    uint64_t failed;
};

// One page, written by the NIC, shared by all clients.
struct softefa_status_page {
    uint32_t asleep; // 1: write the eventfd after a doorbell; a poster that cannot waits at most a millisecond
    uint32_t closed; // 1: the NIC process is ending
};
