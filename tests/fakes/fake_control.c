// Scenarios of calls that make objects, with known arguments.
#include "fake_driver.h"

#include "fake_gda.h"

#include <rdma/fi_cm.h>
#include <rdma/fi_rma.h>

void names(int n) { // addresses by name
    struct fi_av_attr attr = {.type = FI_AV_MAP};
    fi_addr_t fi_addr[16];
    struct fid_av *av;
    (void)n;
    TRY(fi_av_open(domain, &attr, &av, NULL));
    TRY(fi_av_insertsvc(av, "somewhere", "4711", fi_addr, 0, NULL) - 1);
    TRY(fi_av_insertsym(av, "node1", 2, "4711", 3, fi_addr, 0, NULL) - 6);
    TRY(fi_av_insertsvc(av, "elsewhere", "4711", NULL, 0, NULL) - 1);
    TRY(fi_av_remove(av, fi_addr + 2, 2, 0));
    TRY(fi_close(&av->fid));
}

void scalable(int n) { // an endpoint of two contexts, one of which it only opens
    struct fid_cq *cq = open_cq(FI_CQ_FORMAT_MSG);
    struct fid_ep *sep, *tx, *rx;
    (void)n;
    TRY(fi_scalable_ep(domain, info, &sep, NULL));
    TRY(fi_tx_context(sep, 0, NULL, &tx, NULL));
    TRY(fi_rx_context(sep, 0, NULL, &rx, NULL));
    TRY(fi_ep_bind(tx, &cq->fid, FI_TRANSMIT));
    TRY(fi_ep_bind(rx, &cq->fid, FI_RECV));
    TRY(fi_write(tx, buffer, 8, NULL, 1, 0, 0, &buffer[1]));
    TRY(fi_recv(rx, buffer, 16, NULL, FI_ADDR_UNSPEC, &buffer[2]));
    struct fi_cq_msg_entry room[4];
    printf("completions %zd\n", fi_cq_read(cq, room, 4));
    TRY(fi_close(&tx->fid));
    TRY(fi_close(&rx->fid));
    TRY(fi_close(&sep->fid));
    TRY(fi_close(&cq->fid));
}

void shared(int n) { // two endpoints over one receive and one transmit context
    struct fi_rx_attr rx_attr = {.caps = FI_MSG};
    struct fi_tx_attr tx_attr = {.op_flags = FI_DELIVERY_COMPLETE};
    struct fid_cq *cq = open_cq(FI_CQ_FORMAT_MSG);
    struct fid_ep *srx, *eps[2];
    struct fi_cq_msg_entry room[8];
    struct fid_stx *stx;
    (void)n;
    TRY(fi_srx_context(domain, &rx_attr, &srx, NULL));
    TRY(fi_stx_context(domain, &tx_attr, &stx, NULL));
    for (int i = 0; i < 2; ++i) {
        eps[i] = open_ep(cq, 0);
        TRY(fi_ep_bind(eps[i], &srx->fid, 0));
        TRY(fi_ep_bind(eps[i], &stx->fid, 0));
    }
    // The fake's context completes where it is told to; libfabric's own binds endpoints, not contexts.
    TRY(srx->fid.ops->bind(&srx->fid, &cq->fid, FI_RECV));
    for (int i = 0; i < 3; ++i)
        TRY(fi_recv(srx, buffer, 32, NULL, FI_ADDR_UNSPEC, &buffer[i]));
    printf("completions %zd\n", fi_cq_read(cq, room, 8));
    for (int i = 0; i < 2; ++i)
        TRY(fi_close(&eps[i]->fid));
    TRY(fi_close(&stx->fid));
    TRY(fi_close(&srx->fid));
    TRY(fi_close(&cq->fid));
}

void memory(int n) { // registered in every way
    struct iovec iov[2] = {{buffer, 24}, {buffer + 24, 40}};
    struct fi_mr_attr attr = {.mr_iov = iov, .iov_count = 2, .access = FI_REMOTE_WRITE, .requested_key = 13};
    struct { // FI_MR_DMABUF of later releases
        int fd;
        uint64_t offset;
        size_t len;
        void *base;
    } dmabuf = {7, 4096, 1 << 20, NULL};
    struct fid_mr *regions[5];
    (void)n;
    TRY(fi_mr_reg(domain, buffer, 64, FI_READ, 0, 11, 0, &regions[0], NULL));
    TRY(fi_mr_regv(domain, iov, 2, FI_WRITE, 0, 12, 0, &regions[1], NULL));
    TRY(fi_mr_regattr(domain, &attr, 0, &regions[2]));
    attr.iface = FI_HMEM_CUDA;
    attr.requested_key = 14;
    TRY(fi_mr_regattr(domain, &attr, 0, &regions[3]));
    attr.mr_iov = (const struct iovec *)&dmabuf;
    attr.iov_count = 1;
    attr.requested_key = 15;
    TRY(fi_mr_regattr(domain, &attr, 1ull << 40, &regions[4]));
    for (int i = 0; i < 5; ++i)
        TRY(fi_close(&regions[i]->fid));
}

void gda(int n) { // what a program does before its kernels post
    struct fi_cq_attr cq_attr = {.format = FI_CQ_FORMAT_DATA, .size = 128};
    struct fi_cntr_attr cntr_attr = {0};
    struct fid_cq *cq = open_cq(FI_CQ_FORMAT_CONTEXT), *own;
    struct fid_ep *ep = open_ep(cq, 0);
    struct fid_cntr *cntr;
    struct gda_ops *ops = NULL, *others = NULL;
    uint16_t handle, queue_pair;
    uint32_t key;
    (void)n;
    TRY(fi_open_ops(&domain->fid, "fake ops", 0, (void **)&others, NULL));
    TRY(fi_open_ops(&domain->fid, "no such ops", 0, (void **)&ops, NULL) + 22);
    TRY(fi_open_ops(&domain->fid, "efa gda ops", 0, (void **)&ops, NULL));
    TRY(ops->query_addr(ep, 5, &handle, &queue_pair, &key));
    TRY(ops->query_qp_wqs(ep, buffer, buffer));
    TRY(ops->query_qp_wqs(ep, NULL, NULL) + 22);
    TRY(ops->query_cq(cq, buffer));
    TRY(ops->cq_open_ext(domain, &cq_attr, buffer, &own, NULL));
    TRY(ops->cntr_open_ext(domain, &cntr_attr, &cntr, NULL, buffer));
    printf("queue_pair %d\n", queue_pair);
    printf("query_qp_wqs %s\n", module_of((void *)ops->query_qp_wqs));
    printf("get_mr_lkey %s\n", module_of((void *)ops->get_mr_lkey));
    printf("cntr_open_ext %s\n", module_of((void *)ops->cntr_open_ext));
    printf("others %s\n", module_of((void *)others->query_qp_wqs));
    TRY(fi_close(&cntr->fid));
    TRY(fi_close(&own->fid));
    TRY(fi_close(&ep->fid));
    TRY(fi_close(&cq->fid));
}

void gda_real(int n) { // the same of a provider with a device, which knows what its queues look like
    struct fi_av_attr attr = {.type = FI_AV_TABLE};
    struct fid_cq *cq = open_cq(FI_CQ_FORMAT_DATA);
    struct gda_work_queue send = {0}, receive = {0};
    struct gda_completion_queue done = {0};
    struct gda_ops *ops = NULL;
    uint16_t handle = 0, queue_pair = 0;
    uint32_t key = 0;
    fi_addr_t self;
    struct fid_av *av;
    struct fid_ep *ep;
    char name[64];
    size_t bytes = sizeof name;
    (void)n;
    TRY(fi_av_open(domain, &attr, &av, NULL));
    TRY(fi_endpoint(domain, info, &ep, NULL));
    TRY(fi_ep_bind(ep, &av->fid, 0));
    TRY(fi_ep_bind(ep, &cq->fid, FI_TRANSMIT | FI_RECV));
    TRY(fi_enable(ep));
    TRY(fi_getname(&ep->fid, name, &bytes));
    TRY(fi_av_insert(av, name, 1, &self, 0, NULL) - 1);
    TRY(fi_open_ops(&domain->fid, "efa gda ops", 0, (void **)&ops, NULL));
    TRY(ops->query_addr(ep, self, &handle, &queue_pair, &key));
    TRY(ops->query_qp_wqs(ep, &send, &receive));
    TRY(ops->query_cq(cq, &done));
    printf("send %u\nreceive %u\ndone %u\n", send.entry_size, receive.entry_size, done.entry_size);
    printf("query_qp_wqs %s\n", module_of((void *)ops->query_qp_wqs));
    TRY(fi_close(&ep->fid));
    TRY(fi_close(&av->fid));
    TRY(fi_close(&cq->fid));
}
