// Completion counters: words that count the ends of operations instead of, or beside, a completion queue's entries.
#include "nic.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

namespace softefa {
namespace {

Cntr *find(Nic &nic, const Device &device, uint32_t id) {
    Cntr *cntr = id < SOFTEFA_MAX_CNTR ? nic.cntrs[id] : nullptr;
    return cntr != nullptr && cntr->device == &device && !cntr->closed ? cntr : nullptr;
}

// Drops one reference; the last one takes the words away.
void release(Nic &nic, Cntr *cntr) {
    if (--cntr->refs > 0) return;
    nic.cntrs[cntr->id] = nullptr;
    for (Mapping &map : cntr->maps)
        file_unmap(map);
    free(cntr);
}

// The words: in a page of ours, or where the client wants them.
int place(Cntr &cntr, const softefa_request &request, int file, int &page) {
    const auto &in = request.u.create_cntr;
    uint8_t *own = ring_make(SOFTEFA_PAGE, page);
    if (own == nullptr) return errno;
    cntr.maps[0] = {own, SOFTEFA_PAGE};
    cntr.done = &reinterpret_cast<softefa_cntr_page *>(own)->done;
    cntr.failed = &reinterpret_cast<softefa_cntr_page *>(own)->failed;
    uint64_t **const words[] = {&cntr.done, &cntr.failed};
    for (int i = 0; i < 2; ++i) {
        if (!(in.external & 1u << i)) continue;
        uint8_t *there = in.offset[i] % sizeof(uint64_t) == 0
                             ? file_map(file, in.offset[i], sizeof(uint64_t), cntr.maps[1 + i])
                             : nullptr;
        if (there == nullptr) return EINVAL;
        *words[i] = reinterpret_cast<uint64_t *>(there);
    }
    return 0;
}

} // namespace

int counter_create(Nic &nic, Device &device, const softefa_request &request, int file, softefa_reply &reply,
                   int &page) {
    if (nic.model.counters == 0) return EOPNOTSUPP;
    uint32_t id = 0;
    while (id < SOFTEFA_MAX_CNTR && nic.cntrs[id] != nullptr)
        ++id;
    if (id == SOFTEFA_MAX_CNTR) return ENOSPC;
    Cntr *cntr = static_cast<Cntr *>(calloc(1, sizeof(Cntr)));
    if (cntr == nullptr) return ENOMEM;
    cntr->id = id;
    cntr->device = &device;
    cntr->counts_bytes = request.u.create_cntr.counts_bytes != 0;
    cntr->refs = 1;
    nic.cntrs[id] = cntr;
    const int error = place(*cntr, request, file, page);
    if (error != 0) {
        if (page >= 0) close(page);
        page = -1;
        release(nic, cntr);
        return error;
    }
    reply.u.create_cntr.cntr = id;
    return 0;
}

int counter_destroy(Nic &nic, Device &device, uint32_t id) {
    Cntr *cntr = find(nic, device, id);
    if (cntr == nullptr) return EINVAL;
    if (cntr->refs > 1) return EBUSY;
    release(nic, cntr);
    return 0;
}

int counter_attach(Nic &nic, Device &device, const softefa_request &request) {
    const auto &in = request.u.attach_cntr;
    Qp *qp = qp_find(nic, device, in.qpn);
    Cntr *cntr = find(nic, device, in.cntr);
    if (qp == nullptr || cntr == nullptr || in.op_mask == 0) return EINVAL;
    if (in.op_mask >> SOFTEFA_COUNTED != 0) return ENOTSUP;
    if (qp->state > SOFTEFA_QP_INIT) return EINVAL;
    for (int what = 0; what < SOFTEFA_COUNTED; ++what)
        if ((in.op_mask & 1u << what) && qp->counted[what] != nullptr) return EBUSY;
    for (int what = 0; what < SOFTEFA_COUNTED; ++what) {
        if (!(in.op_mask & 1u << what)) continue;
        qp->counted[what] = cntr;
        ++cntr->refs;
    }
    return 0;
}

void counter_count(const Qp &qp, softefa_counted what, uint8_t status, uint32_t bytes) {
    const Cntr *cntr = qp.counted[what];
    if (cntr == nullptr || qp.gone) return;
    if (status == SOFTEFA_OK)
        memory_add(cntr->done, cntr->counts_bytes ? bytes : 1, SOFTEFA_CNTR_MAX);
    else
        memory_add(cntr->failed, 1, SOFTEFA_CNTR_MAX);
}

void counters_release(Nic &nic, Qp &qp) {
    for (Cntr *&cntr : qp.counted) {
        if (cntr != nullptr) release(nic, cntr);
        cntr = nullptr;
    }
}

void counters_drop(Nic &nic, const Device &device) {
    for (uint32_t id = 0; id < SOFTEFA_MAX_CNTR; ++id) {
        Cntr *cntr = find(nic, device, id);
        if (cntr == nullptr) continue;
        cntr->closed = true;
        release(nic, cntr);
    }
}

} // namespace softefa
