// The objects that clients create: memory regions, address handles, completion queues, queue pairs.
#include "nic.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

namespace softefa {
namespace {

constexpr uint32_t kKeys = 65536;

template <typename T> bool grow(T *&array, uint32_t &space, uint32_t needed) {
    if (needed <= space) return true;
    uint32_t more = space == 0 ? 16 : space;
    while (more < needed)
        more *= 2;
    T *bigger = static_cast<T *>(realloc(array, more * sizeof(T)));
    if (bigger == nullptr) return false;
    memset(bigger + space, 0, (more - space) * sizeof(T));
    array = bigger;
    space = more;
    return true;
}

uint32_t power_of_two(uint32_t n) {
    uint32_t p = 1;
    while (p < n)
        p *= 2;
    return p;
}

void mr_free(Mr &mr) {
    file_unmap(mr.map);
    mr.here = nullptr;
    mr.device = nullptr;
}

int reg_mr(Nic &nic, Device &device, const softefa_request &request, int file, softefa_reply &reply) {
    const auto &in = request.u.reg_mr;
    if (in.addr + in.length < in.addr || in.iova + in.length < in.iova) return EINVAL;
    for (uint32_t tried = 0; tried < kKeys; ++tried) {
        const uint32_t slot = nic.mr_next++ % kKeys;
        Mr &mr = nic.mrs[slot];
        if (slot == 0 || mr.device != nullptr) continue;
        // The upper 8 bits of the key change with each use of the slot, so that a stale key is refused.
        const uint32_t key = slot | (((mr.key >> 16) + 1) & 0xff) << 16;
        mr = {&device, in.addr, in.length, in.iova, in.access, key, nullptr, {}};
        // When the file behind the region cannot be mapped, the region is reached as any other.
        mr.here = file_map(file, in.file_offset, in.length, mr.map);
        ++device.mr_count;
        reply.u.reg_mr.key = key;
        return 0;
    }
    return ENOSPC;
}

int dereg_mr(Nic &nic, Device &device, uint32_t key) {
    Mr *mr = mr_find(nic, key);
    if (mr == nullptr || mr->device != &device) return EINVAL;
    mr_free(*mr);
    --device.mr_count;
    return 0;
}

// The same GID gives the same handle, as on the device.
int create_ah(Nic &nic, Device &device, const uint8_t gid[16], softefa_reply &reply) {
    uint32_t free_slot = device.ah_count;
    for (uint32_t i = 0; i < device.ah_count; ++i) {
        Ah &ah = device.ahs[i];
        if (ah.refs == 0 && free_slot == device.ah_count) free_slot = i;
        if (ah.refs == 0 || memcmp(ah.gid, gid, 16) != 0) continue;
        ++ah.refs;
        reply.u.create_ah.ahn = i;
        return 0;
    }
    if (free_slot >= SOFTEFA_AH_UNKNOWN) return ENOSPC;
    if (free_slot == device.ah_count) {
        if (!grow(device.ahs, device.ah_space, device.ah_count + 1)) return ENOMEM;
        ++device.ah_count;
    }
    Ah &ah = device.ahs[free_slot];
    ah = {};
    memcpy(ah.gid, gid, 16);
    ah.refs = 1;
    uint32_t instance;
    memcpy(&instance, gid + 12, sizeof instance);
    if (instance < nic.device_count && memcmp(nic.devices[instance]->gid, gid, 16) == 0) {
        const uint32_t had = device.ah_of_count;
        if (!grow(device.ah_of, device.ah_of_count, instance + 1)) return ENOMEM;
        for (uint32_t i = had; i < device.ah_of_count; ++i)
            device.ah_of[i] = kNowhere;
        device.ah_of[instance] = static_cast<uint16_t>(free_slot);
    }
    reply.u.create_ah.ahn = free_slot;
    return 0;
}

int destroy_ah(Device &device, uint32_t ahn) {
    if (ahn >= device.ah_count || device.ahs[ahn].refs == 0) return EINVAL;
    if (--device.ahs[ahn].refs > 0) return 0;
    for (uint32_t i = 0; i < device.ah_of_count; ++i)
        if (device.ah_of[i] == ahn) device.ah_of[i] = kNowhere;
    return 0;
}

// Drops one reference; the last one takes the ring away.
void cq_release(Nic &nic, Cq *cq) {
    if (--cq->refs > 0) return;
    nic.cqs[cq->id] = nullptr;
    munmap(cq->map, softefa_cq_own_bytes(cq->entries, cq->external.at != nullptr));
    file_unmap(cq->external);
    if (cq->channel >= 0) close(cq->channel);
    free(cq);
}

Cq *cq_find(Nic &nic, const Device &device, uint32_t id) {
    Cq *cq = id < nic.cq_space ? nic.cqs[id] : nullptr;
    return cq != nullptr && cq->device == &device && !cq->closed ? cq : nullptr;
}

// Memory that another process could take away under us is none for a ring.
bool can_shrink(int file) {
    struct stat status;
    if (fstat(file, &status) != 0) return true;
    return S_ISREG(status.st_mode) && (fcntl(file, F_GET_SEALS) < 0 || !(fcntl(file, F_GET_SEALS) & F_SEAL_SHRINK));
}

// The entries: where the program wants them, or behind the page of doorbells. 0, or an errno.
int place_ring(Cq &cq, const softefa_request &request, int file, int &ring) {
    const auto &in = request.u.create_cq;
    const bool is_external = in.length != 0;
    const uint64_t bytes = uint64_t{cq.entries} * sizeof(softefa_cqe);
    if (is_external && (in.length < bytes || in.offset % sizeof(softefa_cqe) != 0 || can_shrink(file))) return EINVAL;
    if (is_external && (cq.ring = file_map(file, in.offset, bytes, cq.external)) == nullptr) return EINVAL;
    cq.map = ring_make(softefa_cq_own_bytes(cq.entries, is_external), ring);
    if (cq.map == nullptr) {
        const int error = errno;
        file_unmap(cq.external);
        return error;
    }
    if (!is_external) cq.ring = cq.map + SOFTEFA_PAGE;
    return 0;
}

// `file`: the write end of the channel's pipe, or the memory of the entries.
int create_cq(Nic &nic, Device &device, const softefa_request &request, int file, softefa_reply &reply, int &ring) {
    const auto &in = request.u.create_cq;
    if (in.entries == 0 || in.entries > SOFTEFA_MAX_CQE || device.cq_count >= SOFTEFA_MAX_CQ) return EINVAL;
    if (in.has_channel && in.length != 0) return EINVAL;
    if ((in.has_channel || in.length != 0) && file < 0) return EBADF;
    uint32_t id = 0;
    while (id < nic.cq_space && nic.cqs[id] != nullptr)
        ++id;
    if (!grow(nic.cqs, nic.cq_space, id + 1)) return ENOMEM;
    Cq *cq = static_cast<Cq *>(calloc(1, sizeof(Cq)));
    if (cq == nullptr) return ENOMEM;
    cq->id = id;
    cq->device = &device;
    cq->entries = power_of_two(in.entries);
    cq->cookie = in.cookie;
    cq->refs = 1;
    cq->channel = -1;
    const int error = place_ring(*cq, request, file, ring);
    if (error != 0) {
        free(cq);
        return error;
    }
    if (in.has_channel) {
        cq->channel = fcntl(file, F_DUPFD_CLOEXEC, 0);
        if (cq->channel >= 0) fcntl(cq->channel, F_SETFL, fcntl(cq->channel, F_GETFL) | O_NONBLOCK);
    }
    nic.cqs[id] = cq;
    ++device.cq_count;
    reply.u.create_cq.cq = id;
    reply.u.create_cq.entries = cq->entries;
    return 0;
}

int destroy_cq(Nic &nic, Device &device, uint32_t id) {
    Cq *cq = cq_find(nic, device, id);
    if (cq == nullptr) return EINVAL;
    for (uint32_t i = 0; i < device.qp_count; ++i)
        if (device.qps[i]->send_cq == cq || device.qps[i]->recv_cq == cq) return EBUSY;
    --device.cq_count;
    cq->closed = true;
    cq_release(nic, cq);
    return 0;
}

int create_qp(Nic &nic, Device &device, const softefa_request &request, softefa_reply &reply, int &ring) {
    const auto &in = request.u.create_qp;
    Cq *send_cq = cq_find(nic, device, in.send_cq), *recv_cq = cq_find(nic, device, in.recv_cq);
    if (send_cq == nullptr || recv_cq == nullptr) return EINVAL;
    if (in.sq_entries > SOFTEFA_MAX_SQ || in.rq_entries > SOFTEFA_MAX_RQ || device.qp_count >= SOFTEFA_MAX_QP)
        return EINVAL;
    if (in.type != SOFTEFA_QP_SRD && in.type != SOFTEFA_QP_UD) return EINVAL;
    if (!grow(device.qps, device.qp_space, device.qp_count + 1)) return ENOMEM;
    uint32_t qpn = 0;
    for (uint32_t tried = 0; tried < 65536 && qpn == 0; ++tried) {
        const uint32_t candidate = nic.qpn_next++ & 0xffff;
        if (candidate != 0 && nic.qps[candidate] == nullptr) qpn = candidate;
    }
    Qp *qp = static_cast<Qp *>(calloc(1, sizeof(Qp)));
    if (qpn == 0 || qp == nullptr) {
        free(qp);
        return ENOMEM;
    }
    qp->qpn = static_cast<uint16_t>(qpn);
    qp->ordinal = device.qp_ordinal++;
    qp->device = &device;
    qp->type = in.type;
    qp->flags = in.flags;
    qp->rnr_retry = SOFTEFA_RNR_FOREVER;
    qp->sq_entries = power_of_two(in.sq_entries);
    qp->rq_entries = power_of_two(in.rq_entries);
    qp->map = ring_make(softefa_qp_bytes(qp->sq_entries, qp->rq_entries), ring);
    if (qp->map == nullptr) {
        const int error = errno;
        free(qp);
        return error;
    }
    qp->send_cq = send_cq;
    qp->recv_cq = recv_cq;
    ++send_cq->refs;
    ++recv_cq->refs;
    qp->refs = 1;
    nic.qps[qpn] = qp;
    device.qps[device.qp_count++] = qp;
    reply.u.create_qp = {qpn, qp->sq_entries, qp->rq_entries};
    return 0;
}

int modify_qp(Nic &nic, Device &device, const softefa_request &request) {
    const auto &in = request.u.modify_qp;
    Qp *qp = qp_find(nic, device, in.qpn);
    if (qp == nullptr) return EINVAL;
    if (in.mask & SOFTEFA_SET_QKEY) qp->qkey = in.qkey;
    if (in.mask & SOFTEFA_SET_RNR) qp->rnr_retry = in.rnr_retry;
    if (!(in.mask & SOFTEFA_SET_STATE)) return 0;
    if (in.state == SOFTEFA_QP_ERR) {
        qp_fail(nic, *qp);
        return 0;
    }
    const bool forward = in.state > qp->state && in.state <= SOFTEFA_QP_RTS && qp->state < SOFTEFA_QP_RTS;
    if (!forward && in.state != qp->state) return EINVAL;
    qp->state = in.state;
    return 0;
}

// From here on nothing is written for it; what it had queued ends without a completion.
void qp_close(Nic &nic, Qp *qp) {
    qp->gone = true;
    Device &device = *qp->device;
    for (uint32_t i = 0; i < device.qp_count; ++i) {
        if (device.qps[i] != qp) continue;
        device.qps[i] = device.qps[--device.qp_count];
        break;
    }
    while (qp->first != nullptr) {
        qp->first->status = SOFTEFA_FLUSHED;
        wire_done(nic, qp->first, model_now(nic));
    }
    qp_release(nic, qp);
}

int destroy_qp(Nic &nic, Device &device, uint32_t qpn) {
    Qp *qp = qp_find(nic, device, qpn);
    if (qp == nullptr) return EINVAL;
    qp_close(nic, qp);
    return 0;
}

} // namespace

uint8_t *ring_make(uint64_t bytes, int &fd) {
    fd = memfd_create("softefa-ring", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd < 0) return nullptr;
    void *map = MAP_FAILED;
    if (ftruncate(fd, static_cast<off_t>(bytes)) == 0 && fallocate(fd, 0, 0, static_cast<off_t>(bytes)) == 0 &&
        fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) == 0)
        map = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (map != MAP_FAILED) return static_cast<uint8_t *>(map);
    const int error = errno;
    close(fd);
    errno = error;
    return nullptr;
}

uint8_t *file_map(int file, uint64_t offset, uint64_t length, Mapping &map) {
    struct stat status;
    const uint64_t within = offset % SOFTEFA_PAGE;
    const uint64_t bytes = softefa_page_up(within + length);
    if (file < 0 || length == 0 || fstat(file, &status) != 0 || static_cast<uint64_t>(status.st_size) < offset + length)
        return nullptr;
    void *at = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, static_cast<off_t>(offset - within));
    if (at == MAP_FAILED) return nullptr;
    map = {at, bytes};
    return static_cast<uint8_t *>(at) + within;
}

void file_unmap(Mapping &map) {
    if (map.at != nullptr) munmap(map.at, map.bytes);
    map = {};
}

Qp *qp_find(Nic &nic, const Device &device, uint32_t qpn) {
    Qp *qp = qpn < 65536 ? nic.qps[qpn] : nullptr;
    return qp != nullptr && qp->device == &device && !qp->gone ? qp : nullptr;
}

Mr *mr_find(Nic &nic, uint32_t key) {
    Mr &mr = nic.mrs[key & 0xffff];
    return mr.device != nullptr && mr.key == key ? &mr : nullptr;
}

void qp_release(Nic &nic, Qp *qp) {
    if (--qp->refs > 0) return;
    nic.qps[qp->qpn] = nullptr;
    munmap(qp->map, softefa_qp_bytes(qp->sq_entries, qp->rq_entries));
    cq_release(nic, qp->send_cq);
    cq_release(nic, qp->recv_cq);
    counters_release(nic, *qp);
    free(qp);
}

void qp_fail(Nic &nic, Qp &qp) {
    if (qp.state == SOFTEFA_QP_ERR) return;
    ++qp.refs;
    Span spans[kSpans];
    uint32_t length;
    uint16_t req_id;
    const bool had_receives = qp.state >= SOFTEFA_QP_INIT;
    qp.state = SOFTEFA_QP_ERR;
    while (qp.first != nullptr) {
        qp.first->status = SOFTEFA_FLUSHED;
        wire_done(nic, qp.first, model_now(nic));
    }
    while (had_receives && receive_take(nic, qp, spans, kSpans, length, req_id) > 0) {
        softefa_cqe entry = {};
        entry.req_id = req_id;
        entry.status = SOFTEFA_FLUSHED;
        entry.flags = SOFTEFA_RQ << SOFTEFA_CQE_QUEUE_SHIFT;
        entry.qpn = qp.qpn;
        cqe_write(nic, *qp.recv_cq, entry);
    }
    qp_release(nic, &qp);
}

void objects_drop(Nic &nic, Device &device) {
    while (device.qp_count > 0)
        qp_close(nic, device.qps[0]);
    for (uint32_t id = 0; id < nic.cq_space; ++id) {
        Cq *cq = cq_find(nic, device, id);
        if (cq == nullptr) continue;
        cq->closed = true;
        cq_release(nic, cq);
    }
    device.cq_count = 0;
    counters_drop(nic, device);
    for (uint32_t i = 0; i < kKeys && device.mr_count > 0; ++i) {
        if (nic.mrs[i].device != &device) continue;
        mr_free(nic.mrs[i]);
        --device.mr_count;
    }
}

softefa_reply objects_call(Nic &nic, Device &device, const softefa_request &request, int fd, int reply_fds[],
                           int &reply_fd_count) {
    softefa_reply reply = {};
    int ring = -1;
    switch (request.call) {
    case SOFTEFA_REG_MR: reply.error = reg_mr(nic, device, request, fd, reply); break;
    case SOFTEFA_DEREG_MR: reply.error = dereg_mr(nic, device, request.u.dereg_mr.key); break;
    case SOFTEFA_CREATE_AH: reply.error = create_ah(nic, device, request.u.create_ah.gid, reply); break;
    case SOFTEFA_DESTROY_AH: reply.error = destroy_ah(device, request.u.destroy_ah.ahn); break;
    case SOFTEFA_CREATE_CQ: reply.error = create_cq(nic, device, request, fd, reply, ring); break;
    case SOFTEFA_DESTROY_CQ: reply.error = destroy_cq(nic, device, request.u.destroy_cq.cq); break;
    case SOFTEFA_CREATE_QP: reply.error = create_qp(nic, device, request, reply, ring); break;
    case SOFTEFA_MODIFY_QP: reply.error = modify_qp(nic, device, request); break;
    case SOFTEFA_DESTROY_QP: reply.error = destroy_qp(nic, device, request.u.destroy_qp.qpn); break;
    case SOFTEFA_CREATE_CNTR: reply.error = counter_create(nic, device, request, fd, reply, ring); break;
    case SOFTEFA_DESTROY_CNTR: reply.error = counter_destroy(nic, device, request.u.destroy_cntr.cntr); break;
    case SOFTEFA_ATTACH_CNTR: reply.error = counter_attach(nic, device, request); break;
    default: reply.error = EINVAL;
    }
    if (ring >= 0) reply_fds[reply_fd_count++] = ring;
    return reply;
}

} // namespace softefa
