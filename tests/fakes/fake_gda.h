// "efa gda ops", as libfabric 2.6's efa provider has them: how a program gets at the queues that a kernel will post to.
// Attributes that are only handed through are void.
#include <rdma/fabric.h>
#include <rdma/fi_domain.h>

struct gda_ops {
    int (*query_addr)(struct fid_ep *ep, fi_addr_t addr, uint16_t *handle, uint16_t *queue_pair, uint32_t *key);
    int (*query_qp_wqs)(struct fid_ep *ep, void *send, void *receive);
    int (*query_cq)(struct fid_cq *cq, void *attr);
    int (*cq_open_ext)(struct fid_domain *domain, struct fi_cq_attr *attr, void *memory, struct fid_cq **cq,
                       void *context);
    uint64_t (*get_mr_lkey)(struct fid_mr *mr);
    int (*cntr_open_ext)(struct fid_domain *domain, struct fi_cntr_attr *attr, struct fid_cntr **cntr, void *context,
                         void *memory); // since 2.6
};

struct gda_work_queue {
    uint8_t *buffer;
    uint32_t entry_size, num_entries;
    uint32_t *doorbell;
    uint32_t max_batch;
};
struct gda_completion_queue {
    uint8_t *buffer;
    uint32_t entry_size, num_entries;
};
