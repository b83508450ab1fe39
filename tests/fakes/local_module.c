// A module that brings libfabric with it, to be opened with RTLD_LOCAL by a program that knows nothing of libfabric.
#include <rdma/fabric.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <stdlib.h>
#include <string.h>

// Posts `count` receives on a new endpoint of the provider and cancels none; the number of those taken, or -errno.
__attribute__((visibility("default"))) int run_module(const char *provider, int count) {
    struct fi_info *hints = fi_allocinfo(), *info = NULL;
    struct fid_fabric *fabric = NULL;
    struct fid_domain *domain = NULL;
    struct fid_cq *cq = NULL;
    struct fid_av *av = NULL;
    struct fid_ep *ep = NULL;
    struct fi_cq_attr cq_attr = {.format = FI_CQ_FORMAT_CONTEXT};
    struct fi_av_attr av_attr = {.type = FI_AV_MAP};
    static char buffer[64];
    int taken = 0;
    hints->caps = FI_MSG;
    hints->mode = FI_CONTEXT | FI_CONTEXT2;
    hints->ep_attr->type = FI_EP_RDM;
    hints->domain_attr->mr_mode = FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY;
    hints->fabric_attr->prov_name = strdup(provider);
    int ret = fi_getinfo(FI_VERSION(1, 15), NULL, NULL, 0, hints, &info);
    if (ret) return ret;
    struct fi_info *const all = info;
    while (info->next && strcmp(info->fabric_attr->prov_name, provider) != 0)
        info = info->next;
    if ((ret = fi_fabric(info->fabric_attr, &fabric, NULL)) || (ret = fi_domain(fabric, info, &domain, NULL)) ||
        (ret = fi_cq_open(domain, &cq_attr, &cq, NULL)) || (ret = fi_av_open(domain, &av_attr, &av, NULL)) ||
        (ret = fi_endpoint(domain, info, &ep, NULL)) || (ret = fi_ep_bind(ep, &av->fid, 0)) ||
        (ret = fi_ep_bind(ep, &cq->fid, FI_TRANSMIT | FI_RECV)) || (ret = fi_enable(ep)))
        return ret;
    for (int i = 0; i < count; ++i)
        taken += fi_recv(ep, buffer, sizeof buffer, NULL, FI_ADDR_UNSPEC, &buffer[i % 64]) == 0;
    fi_close(&ep->fid);
    fi_close(&av->fid);
    fi_close(&cq->fid);
    fi_close(&domain->fid);
    fi_close(&fabric->fid);
    fi_freeinfo(all);
    fi_freeinfo(hints);
    return taken;
}
