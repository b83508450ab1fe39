// What the scenarios of fake_driver share.
#include <rdma/fabric.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <stdio.h>
#include <stdlib.h>

#define TRY(call)                                                                                                      \
    do {                                                                                                               \
        long try_ret = (call);                                                                                         \
        if (try_ret != 0) {                                                                                            \
            fprintf(stderr, "%s: %ld\n", #call, try_ret);                                                              \
            exit(1);                                                                                                   \
        }                                                                                                              \
    } while (0)

extern struct fi_info *info;
extern struct fid_domain *domain;
extern char buffer[64];

struct fid_cq *open_cq(enum fi_cq_format format);
struct fid_ep *open_ep(struct fid_cq *cq, uint64_t flags);
const char *module_of(void *function);

// fake_control.c
void names(int n);
void scalable(int n);
void shared(int n);
void memory(int n);
void gda(int n);
void gda_real(int n);

// fake_hostile.c
void storm(int n);
void disorder(int n);
void flat(int n);
void full(int n);
void killed(int n);
