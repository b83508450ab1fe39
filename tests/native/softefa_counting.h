/* Completion counters for softefa_poster: what libibverbs and libefa have had for them since rdma-core 65. */
#pragma once

#include <dlfcn.h>
#include <stdbool.h>
#include <stdint.h>

#include <infiniband/verbs.h>

#include "efadv_abi.h"
#include "proto.h"

enum { COUNTER_START = 100 }; /* so many operations before its largest value: it wraps on the way */

struct counter {
    struct softefa_comp_cntr *object;
    const uint64_t *in_memory; /* of the program, when its word lies there */
};

static int (*counter_set)(struct softefa_comp_cntr *, uint64_t);
static int (*counter_read)(struct softefa_comp_cntr *, uint64_t *);
static int (*counter_read_errors)(struct softefa_comp_cntr *, uint64_t *);
static int (*counter_attach)(struct ibv_qp *, struct softefa_comp_cntr *, struct softefa_comp_cntr_attach_attr *);

/* `word`: shared memory of the program, or NULL. False with errno: the device has none. */
static bool counter_make(struct counter *one, struct ibv_context *context, uint64_t *word) {
    struct softefa_comp_cntr *(*create)(struct ibv_context *, struct softefa_comp_cntr_init_attr *, void *, uint32_t);
    *(void **)&create = dlsym(RTLD_DEFAULT, "efadv_create_comp_cntr");
    *(void **)&counter_set = dlsym(RTLD_DEFAULT, "ibv_set_comp_cntr");
    *(void **)&counter_read = dlsym(RTLD_DEFAULT, "ibv_read_comp_cntr");
    *(void **)&counter_read_errors = dlsym(RTLD_DEFAULT, "ibv_read_err_comp_cntr");
    *(void **)&counter_attach = dlsym(RTLD_DEFAULT, "ibv_qp_attach_comp_cntr");
    struct softefa_comp_cntr_init_attr attr = {0};
    struct softefa_efadv_comp_cntr_init_attr efa = {.flags = word != NULL, .done = {.ptr = (uint8_t *)word}};
    one->object = create(context, &attr, &efa, sizeof efa);
    one->in_memory = word;
    return one->object != NULL && counter_set(one->object, SOFTEFA_CNTR_MAX - COUNTER_START) == 0;
}

/* How far it has come from where it was set; the largest value and what comes behind it are one apart. */
static uint32_t counter_value(const struct counter *one) {
    uint64_t value = 0;
    counter_read(one->object, &value);
    if (one->in_memory != NULL && __atomic_load_n(one->in_memory, __ATOMIC_ACQUIRE) < value) return UINT32_MAX;
    return (uint32_t)(value - (SOFTEFA_CNTR_MAX - COUNTER_START)) & SOFTEFA_CNTR_MAX;
}

static uint64_t counter_errors(const struct counter *one) {
    uint64_t value = 0;
    counter_read_errors(one->object, &value);
    return value;
}
