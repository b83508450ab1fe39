// The structures of the EFA direct verbs ABI, as of rdma-core 65: programs pass theirs, perhaps older and shorter,
// with its length. Laid out here because the installed header is often older than the libfabric that runs.
#pragma once

#include <infiniband/verbs.h>
#include <stdint.h>

#include "wire.h"

enum {
    SOFTEFA_CAP_RDMA_READ = 1 << 0,
    SOFTEFA_CAP_RNR_RETRY = 1 << 1,
    SOFTEFA_CAP_CQ_WITH_SGID = 1 << 2,
    SOFTEFA_CAP_RDMA_WRITE = 1 << 3,
    SOFTEFA_CAP_UNSOLICITED_WRITE_RECV = 1 << 4,
    SOFTEFA_CAP_CQ_WITH_EXT_MEM = 1 << 5,
    SOFTEFA_CAP_COMP_CNTR = 1 << 6,
};

struct softefa_efadv_device_attr {
    uint64_t comp_mask;
    uint32_t max_sq_wr, max_rq_wr;
    uint16_t max_sq_sge, max_rq_sge;
    uint16_t inline_buf_size, inline_buf_size_ex;
    uint32_t device_caps, max_rdma_size;
};
SOFTEFA_ASSERT_SIZE(struct softefa_efadv_device_attr, 32);

struct softefa_efadv_ah_attr {
    uint64_t comp_mask;
    uint16_t ahn;
    uint8_t reserved[6];
};

struct softefa_efadv_qp_init_attr {
    uint64_t comp_mask;
    uint32_t driver_qp_type; // 0: SRD
    uint16_t flags;          // bit 0: unsolicited write receive
    uint8_t sl, reserved;
    uint64_t wr_flags; // bit 0: with processing hints
};
SOFTEFA_ASSERT_SIZE(struct softefa_efadv_qp_init_attr, 24);

struct softefa_efadv_wq_attr {
    uint64_t comp_mask;
    uint8_t *buffer;
    uint32_t entry_size, num_entries;
    uint32_t *doorbell;
    uint32_t max_batch;
    uint16_t caps;
    uint8_t reserved[2];
};
SOFTEFA_ASSERT_SIZE(struct softefa_efadv_wq_attr, 40);

struct softefa_efadv_cq_init_attr {
    uint64_t comp_mask;
    uint64_t wc_flags; // bit 0: source gid, bit 1: is unsolicited
    uint64_t flags;    // bit 0: the entries lie in memory of the program
    struct {
        uint8_t *buffer; // null: it has no address here, as memory of a GPU, which we cannot reach
        uint64_t length, offset;
        int32_t fd; // a dma-buf; here also a sealed memfd
        uint8_t reserved[4];
    } external;
};
SOFTEFA_ASSERT_SIZE(struct softefa_efadv_cq_init_attr, 56);

struct softefa_efadv_cq_attr {
    uint64_t comp_mask;
    uint8_t *buffer;
    uint32_t entry_size, num_entries;
    uint32_t *doorbell;
};
SOFTEFA_ASSERT_SIZE(struct softefa_efadv_cq_attr, 32);

struct softefa_efadv_cq {
    uint64_t comp_mask;
    int (*wc_read_sgid)(struct softefa_efadv_cq *cq, union ibv_gid *gid);
    bool (*wc_is_unsolicited)(struct softefa_efadv_cq *cq);
};

struct softefa_efadv_qp {
    uint64_t comp_mask;
    void (*wr_set_processing_hints)(struct softefa_efadv_qp *qp, uint32_t hints);
};

struct softefa_efadv_sq_depth_attr {
    uint64_t comp_mask;
    uint32_t flags; // bit 0: inline write, which we do not have
    uint32_t max_send_sge, max_rdma_sge, max_inline_data;
};

// ---- completion counters; the first four are libibverbs' own
struct softefa_comp_cntr {
    struct ibv_context *context;
    uint32_t handle;
};

struct softefa_comp_cntr_init_attr {
    uint32_t comp_mask;
    uint32_t type; // 0: work requests, 1: bytes
    uint32_t flags;
};
SOFTEFA_ASSERT_SIZE(struct softefa_comp_cntr_init_attr, 12);

struct softefa_comp_cntr_caps {
    uint64_t max_value;
    uint32_t max_counters;
    uint32_t supported_qp_attach_ops;
};

struct softefa_comp_cntr_attach_attr {
    uint32_t comp_mask;
    uint32_t op_mask;
};

struct softefa_efadv_memory_location {
    uint8_t *ptr;
    struct {
        uint64_t offset;
        int32_t fd;
        uint32_t reserved;
    } dmabuf;
    uint8_t type; // 0: a virtual address, 1: a dma-buf, which we cannot reach
    uint8_t reserved[7];
};
SOFTEFA_ASSERT_SIZE(struct softefa_efadv_memory_location, 32);

struct softefa_efadv_comp_cntr_init_attr {
    uint64_t comp_mask;
    uint32_t flags; // bit 0: the count, bit 1: the errors lie in memory of the program
    uint32_t reserved;
    struct softefa_efadv_memory_location done, failed;
};
SOFTEFA_ASSERT_SIZE(struct softefa_efadv_comp_cntr_init_attr, 80);

struct softefa_efadv_mr_attr {
    uint64_t comp_mask;
    uint16_t ic_id_validity, recv_ic_id, rdma_read_ic_id, rdma_recv_ic_id;
};
