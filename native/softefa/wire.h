// What the device and whoever drives it exchange through memory: send and receive work queue entries, completion
// entries, doorbells. The layouts are those of the EFA device; the names are ours. Plain C, so that a GPU kernel
// can include it and post entries itself.
#pragma once

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
#define SOFTEFA_ASSERT_AT(type, field, at) static_assert(offsetof(type, field) == (at), #type "." #field)
#define SOFTEFA_ASSERT_SIZE(type, size) static_assert(sizeof(type) == (size), #type " size")
#else
#define SOFTEFA_ASSERT_AT(type, field, at) _Static_assert(offsetof(type, field) == (at), #type "." #field)
#define SOFTEFA_ASSERT_SIZE(type, size) _Static_assert(sizeof(type) == (size), #type " size")
#endif

enum softefa_op { SOFTEFA_SEND = 0, SOFTEFA_READ = 1, SOFTEFA_WRITE = 2 };
enum softefa_queue { SOFTEFA_SQ = 1, SOFTEFA_RQ = 2 };

enum softefa_status {
    SOFTEFA_OK = 0,
    SOFTEFA_FLUSHED = 1,
    SOFTEFA_QP_INTERNAL = 2,
    SOFTEFA_UNSUPPORTED_OP = 3,
    SOFTEFA_INVALID_AH = 4,
    SOFTEFA_INVALID_LKEY = 5,
    SOFTEFA_BAD_LENGTH = 6,
    SOFTEFA_REMOTE_BAD_ADDRESS = 7,
    SOFTEFA_REMOTE_ABORT = 8,
    SOFTEFA_REMOTE_BAD_QPN = 9,
    SOFTEFA_REMOTE_RNR = 10,
    SOFTEFA_REMOTE_BAD_LENGTH = 11,
    SOFTEFA_UNRESPONSIVE = 13, // answered before, not any more
    SOFTEFA_UNKNOWN_PEER = 14, // the target has no address handle for the initiator (RDMA only)
    SOFTEFA_UNREACHABLE = 15,  // never answered
};

// ---- send queue entry, 64 bytes -----------------------------------------------------------------
//   ctrl1: op 3:0 | has_imm 4 | inline 5 | extension 6 (zero) | meta 7 (one)
//   ctrl2: phase 0 | first 2 (one) | last 3 (one) | completion wanted 4
// The phase of the first lap of a send queue is 0; it flips at each wrap.
#define SOFTEFA_CTRL1_OP 0x0fu
#define SOFTEFA_CTRL1_IMM 0x10u
#define SOFTEFA_CTRL1_INLINE 0x20u
#define SOFTEFA_CTRL1_EXTENSION 0x40u
#define SOFTEFA_CTRL1_META 0x80u
#define SOFTEFA_CTRL2_PHASE 0x01u
#define SOFTEFA_CTRL2_FIRST 0x04u
#define SOFTEFA_CTRL2_LAST 0x08u
#define SOFTEFA_CTRL2_COMPLETE 0x10u
#define SOFTEFA_LKEY_MASK 0x00ffffffu
#define SOFTEFA_INLINE_MAX 32u
#define SOFTEFA_SEND_SGES 2u

struct softefa_meta {
    uint16_t req_id;
    uint8_t ctrl1;
    uint8_t ctrl2;
    uint16_t dest_qpn;
    uint16_t length; // entries in sge[], or bytes of inline data
    uint32_t imm;
    uint16_t ah;
    uint8_t hints;
    uint8_t reserved0;
    uint32_t qkey;
    uint8_t reserved1[6];
    uint16_t req_id_ex[3];
};

struct softefa_sge {
    uint32_t length;
    uint32_t lkey;
    uint32_t addr_lo;
    uint32_t addr_hi;
};

struct softefa_remote {
    uint32_t length;
    uint32_t rkey;
    uint32_t addr_lo;
    uint32_t addr_hi;
};

struct softefa_wqe {
    struct softefa_meta meta;
    union {
        struct softefa_sge sge[SOFTEFA_SEND_SGES];
        uint8_t inline_data[SOFTEFA_INLINE_MAX];
        struct {
            struct softefa_remote remote;
            struct softefa_sge local;
        } rdma;
    } u;
};
SOFTEFA_ASSERT_SIZE(struct softefa_wqe, 64);
SOFTEFA_ASSERT_AT(struct softefa_wqe, meta.dest_qpn, 4);
SOFTEFA_ASSERT_AT(struct softefa_wqe, meta.imm, 8);
SOFTEFA_ASSERT_AT(struct softefa_wqe, meta.ah, 12);
SOFTEFA_ASSERT_AT(struct softefa_wqe, meta.qkey, 16);
SOFTEFA_ASSERT_AT(struct softefa_wqe, meta.req_id_ex, 26);
SOFTEFA_ASSERT_AT(struct softefa_wqe, u, 32);
SOFTEFA_ASSERT_AT(struct softefa_wqe, u.rdma.local, 48);

// ---- receive queue entry, 16 bytes; a receive is one or more of them ----------------------------
#define SOFTEFA_RX_FIRST 0x40000000u
#define SOFTEFA_RX_LAST 0x80000000u
struct softefa_rx_desc {
    uint32_t addr_lo;
    uint32_t addr_hi;
    uint16_t req_id;
    uint16_t length;
    uint32_t lkey_ctrl; // lkey 23:0 | first 30 | last 31
};
SOFTEFA_ASSERT_SIZE(struct softefa_rx_desc, 16);

// ---- completion entry, 32 bytes -----------------------------------------------------------------
//   flags: phase 0 | queue 2:1 | has_imm 3 | op 6:4 | unsolicited 7
// The phase of the first lap of a completion queue is 1. The first 8 bytes are stored last and at once.
#define SOFTEFA_CQE_PHASE 0x01u
#define SOFTEFA_CQE_QUEUE_SHIFT 1
#define SOFTEFA_CQE_QUEUE 0x06u
#define SOFTEFA_CQE_IMM 0x08u
#define SOFTEFA_CQE_OP_SHIFT 4
#define SOFTEFA_CQE_OP 0x70u
#define SOFTEFA_CQE_UNSOLICITED 0x80u
#define SOFTEFA_AH_UNKNOWN 0xffffu
struct softefa_cqe {
    uint16_t req_id;
    uint8_t status;
    uint8_t flags;
    uint16_t qpn;
    union {
        struct {
            uint16_t req_id_ex[3];
        } tx;
        struct {
            uint16_t length_lo;
            uint16_t ah;
            uint16_t src_qpn;
        } rx;
    } u;
    uint32_t imm; // receive completions
    union {
        struct {
            uint16_t length_hi;
        } rdma;
        uint8_t src_gid[16]; // only when ah is unknown
    } ex;
};
SOFTEFA_ASSERT_SIZE(struct softefa_cqe, 32);
SOFTEFA_ASSERT_AT(struct softefa_cqe, u.rx.length_lo, 6);
SOFTEFA_ASSERT_AT(struct softefa_cqe, u.rx.src_qpn, 10);
SOFTEFA_ASSERT_AT(struct softefa_cqe, imm, 12);
SOFTEFA_ASSERT_AT(struct softefa_cqe, ex, 16);

// ---- doorbells ----------------------------------------------------------------------------------
// SQ and RQ: low 16 bits are the producer counter. CQ: consumer counter 15:0 | command number 30:29 | arm 31.
#define SOFTEFA_CQ_DB_COUNT 0x0000ffffu
#define SOFTEFA_CQ_DB_SN_SHIFT 29
#define SOFTEFA_CQ_DB_SN 0x60000000u
#define SOFTEFA_CQ_DB_ARM 0x80000000u
