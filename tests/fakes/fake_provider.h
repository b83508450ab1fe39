// The fake provider's two halves: fake_provider.c moves (no) data, fake_objects.c makes what is not an endpoint or
// queue.
#include <rdma/fabric.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>

int fake_close(struct fid *fid);
int fake_endpoint(struct fid_domain *domain, struct fi_info *info, struct fid_ep **ep, void *context);
int fake_cq_open(struct fid_domain *domain, struct fi_cq_attr *attr, struct fid_cq **cq, void *context);
int fake_cntr_open(struct fid_domain *domain, struct fi_cntr_attr *attr, struct fid_cntr **cntr, void *context);

extern struct fi_ops_mr fake_mr_ops;
int fake_av_open(struct fid_domain *domain, struct fi_av_attr *attr, struct fid_av **av, void *context);
int fake_scalable_ep(struct fid_domain *domain, struct fi_info *info, struct fid_ep **sep, void *context);
int fake_stx(struct fid_domain *domain, struct fi_tx_attr *attr, struct fid_stx **stx, void *context);
int fake_srx(struct fid_domain *domain, struct fi_rx_attr *attr, struct fid_ep **ep, void *context);
int fake_ops_open(struct fid *fid, const char *name, uint64_t flags, void **ops, void *context);
