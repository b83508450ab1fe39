// A program that knows libfabric only by what it looks up itself, in one library or several at once:
//   dlvsym_user PROVIDER COUNT LIBRARY...
#define _GNU_SOURCE
#include <dlfcn.h>
#include <rdma/fabric.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TRY(call)                                                                                                      \
    do {                                                                                                               \
        if ((call) != 0) {                                                                                             \
            fprintf(stderr, "%s failed\n", #call);                                                                     \
            return 1;                                                                                                  \
        }                                                                                                              \
    } while (0)

// The functions are found by their versions, as Intel MPI does it.
static int use(void *library, const char *provider, int count) {
    static char buffer[64];
    int (*getinfo)(uint32_t, const char *, const char *, uint64_t, const struct fi_info *, struct fi_info **);
    int (*open_fabric)(struct fi_fabric_attr *, struct fid_fabric **, void *);
    struct fi_cq_attr cq_attr = {.format = FI_CQ_FORMAT_CONTEXT};
    struct fi_av_attr av_attr = {.type = FI_AV_MAP};
    struct fi_info *info = NULL;
    struct fid_fabric *fabric;
    struct fid_domain *domain;
    struct fid_cq *cq;
    struct fid_av *av;
    struct fid_ep *ep;
    int taken = 0;
    *(void **)&getinfo = dlvsym(library, "fi_getinfo", "FABRIC_1.3");
    *(void **)&open_fabric = dlvsym(library, "fi_fabric", "FABRIC_1.1");
    if (!getinfo || !open_fabric) return 2;
    TRY(getinfo(FI_VERSION(1, 15), NULL, NULL, 0, NULL, &info));
    while (info && (strcmp(info->fabric_attr->prov_name, provider) != 0 || info->ep_attr->type == FI_EP_MSG))
        info = info->next;
    if (!info) return 3;
    TRY(open_fabric(info->fabric_attr, &fabric, NULL));
    TRY(fi_domain(fabric, info, &domain, NULL));
    TRY(fi_cq_open(domain, &cq_attr, &cq, NULL));
    TRY(fi_av_open(domain, &av_attr, &av, NULL));
    TRY(fi_endpoint(domain, info, &ep, NULL));
    TRY(fi_ep_bind(ep, &av->fid, 0));
    TRY(fi_ep_bind(ep, &cq->fid, FI_TRANSMIT | FI_RECV));
    TRY(fi_enable(ep));
    for (int i = 0; i < count; ++i)
        taken += fi_recv(ep, buffer, sizeof buffer, NULL, FI_ADDR_UNSPEC, &buffer[i % 64]) == 0;
    printf("taken %d\n", taken);
    TRY(fi_close(&ep->fid));
    TRY(fi_close(&av->fid));
    TRY(fi_close(&cq->fid));
    TRY(fi_close(&domain->fid));
    return fi_close(&fabric->fid);
}

int main(int argc, char **argv) {
    if (argc < 4) return 2;
    void *libraries[8] = {NULL};
    for (int i = 3; i < argc && i < 11; ++i) // all of them, before any is used
        if (!(libraries[i - 3] = dlopen(argv[i], RTLD_NOW | RTLD_LOCAL))) {
            fprintf(stderr, "%s\n", dlerror());
            return 2;
        }
    for (int round = 0; round < 2; ++round)
        for (int i = 0; i < 8 && libraries[i]; ++i)
            TRY(use(libraries[i], argv[1], atoi(argv[2])));
    return 0;
}
