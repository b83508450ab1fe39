// libibverbs: completion counters. Their words lie in memory that the NIC process maps as well: to read one is a load.
#include "ibv_client.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

using namespace softefa;

namespace {

CntrObject &object_of(softefa_comp_cntr *cntr) {
    return *reinterpret_cast<CntrObject *>(cntr);
}

bool is_same_file(int one, int other) {
    struct stat first, second;
    return fstat(one, &first) == 0 && fstat(other, &second) == 0 && first.st_dev == second.st_dev &&
           first.st_ino == second.st_ino;
}

// The file with the words that the program brought, -1: there are none. Only shared memory can be reached by another
// process, and one message carries one file. 0, or an errno.
int find_file(uint64_t *const words[2], softefa_request &request, int &file) {
    auto &in = request.u.create_cntr;
    for (int i = 0; i < 2; ++i) {
        if (words[i] == nullptr) continue;
        const int found = shared_file(words[i], sizeof *words[i], in.offset[i]);
        if (found < 0) return EOPNOTSUPP;
        if (file >= 0 && !is_same_file(file, found)) {
            close(found);
            return EOPNOTSUPP;
        }
        if (file >= 0)
            close(found);
        else
            file = found;
        in.external |= 1u << i;
    }
    return 0;
}

int set(uint64_t *word, uint64_t value) {
    if (value > SOFTEFA_CNTR_MAX) return EINVAL;
    __atomic_store_n(word, value, __ATOMIC_RELEASE);
    return 0;
}

int raise_by(uint64_t *word, uint64_t amount) {
    uint64_t old = __atomic_load_n(word, __ATOMIC_RELAXED);
    while (!__atomic_compare_exchange_n(word, &old, (old + amount) & SOFTEFA_CNTR_MAX, false, __ATOMIC_RELEASE,
                                        __ATOMIC_RELAXED)) {
    }
    return 0;
}

int read_word(const uint64_t *word, uint64_t *value) {
    *value = __atomic_load_n(word, __ATOMIC_ACQUIRE);
    return 0;
}

} // namespace

SOFTEFA_EXPORT bool softefa_has_counters() {
    const Connection *c = connection();
    return c != nullptr && (c->flags & SOFTEFA_HAS_COUNTERS);
}

SOFTEFA_EXPORT softefa_comp_cntr *softefa_create_cntr(ibv_context *context, const softefa_comp_cntr_init_attr *attr,
                                                      uint64_t *done, uint64_t *failed) {
    softefa_request request = {};
    softefa_reply reply = {};
    request.call = SOFTEFA_CREATE_CNTR;
    request.u.create_cntr.counts_bytes = attr->type == 1;
    uint64_t *const words[] = {done, failed};
    int file = -1, page = -1;
    int error = attr->comp_mask != 0 || attr->flags != 0 || attr->type > 1 ? EINVAL : find_file(words, request, file);
    if (error == 0) error = call(request, reply, file, &page, 1);
    if (file >= 0) close(file);
    auto *object = static_cast<CntrObject *>(error == 0 ? calloc(1, sizeof(CntrObject)) : nullptr);
    if (object != nullptr) object->page = reinterpret_cast<softefa_cntr_page *>(ring_map(page, SOFTEFA_PAGE));
    if (object == nullptr || object->page == nullptr) {
        free(object);
        errno = error != 0 ? error : ENOMEM;
        return nullptr;
    }
    object->cntr = {context, reply.u.create_cntr.cntr};
    object->done = done != nullptr ? done : &object->page->done;
    object->failed = failed != nullptr ? failed : &object->page->failed;
    return &object->cntr;
}

SOFTEFA_EXPORT int _ibv_query_comp_cntr_caps(ibv_context *, void *caps, size_t length) {
    if (!softefa_has_counters()) return EOPNOTSUPP;
    const softefa_comp_cntr_caps full = {SOFTEFA_CNTR_MAX, SOFTEFA_MAX_CNTR, (1u << SOFTEFA_COUNTED) - 1};
    memcpy(caps, &full, length < sizeof full ? length : sizeof full);
    return 0;
}

SOFTEFA_EXPORT softefa_comp_cntr *ibv_create_comp_cntr(ibv_context *context, const softefa_comp_cntr_init_attr *attr) {
    return softefa_create_cntr(context, attr, nullptr, nullptr);
}

SOFTEFA_EXPORT int ibv_destroy_comp_cntr(softefa_comp_cntr *cntr) {
    softefa_request request = {};
    softefa_reply reply = {};
    request.call = SOFTEFA_DESTROY_CNTR;
    request.u.destroy_cntr.cntr = cntr->handle;
    const int error = call(request, reply, -1, nullptr, 0);
    if (error != 0 && !nic_is_gone()) return error;
    munmap(object_of(cntr).page, SOFTEFA_PAGE);
    free(cntr);
    return 0;
}

SOFTEFA_EXPORT int ibv_qp_attach_comp_cntr(ibv_qp *qp, softefa_comp_cntr *cntr,
                                           const softefa_comp_cntr_attach_attr *attr) {
    if (attr->comp_mask != 0) return EINVAL;
    softefa_request request = {};
    softefa_reply reply = {};
    request.call = SOFTEFA_ATTACH_CNTR;
    request.u.attach_cntr = {qp->qp_num, cntr->handle, attr->op_mask};
    return call(request, reply, -1, nullptr, 0);
}

SOFTEFA_EXPORT int ibv_set_comp_cntr(softefa_comp_cntr *cntr, uint64_t value) {
    return set(object_of(cntr).done, value);
}
SOFTEFA_EXPORT int ibv_set_err_comp_cntr(softefa_comp_cntr *cntr, uint64_t value) {
    return set(object_of(cntr).failed, value);
}
SOFTEFA_EXPORT int ibv_inc_comp_cntr(softefa_comp_cntr *cntr, uint64_t amount) {
    return raise_by(object_of(cntr).done, amount);
}
SOFTEFA_EXPORT int ibv_inc_err_comp_cntr(softefa_comp_cntr *cntr, uint64_t amount) {
    return raise_by(object_of(cntr).failed, amount);
}
SOFTEFA_EXPORT int ibv_read_comp_cntr(softefa_comp_cntr *cntr, uint64_t *value) {
    return read_word(object_of(cntr).done, value);
}
SOFTEFA_EXPORT int ibv_read_err_comp_cntr(softefa_comp_cntr *cntr, uint64_t *value) {
    return read_word(object_of(cntr).failed, value);
}
