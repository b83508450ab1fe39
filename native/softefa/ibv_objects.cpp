// libibverbs: protection domains, memory regions, address handles, completion channels.
#include "ibv_client.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#undef ibv_reg_mr
#undef ibv_reg_mr_iova

using namespace softefa;

namespace {

struct Channel {
    ibv_comp_channel channel;
    int write_end; // given to the NIC with each completion queue
};

} // namespace

SOFTEFA_EXPORT ibv_pd *ibv_alloc_pd(ibv_context *context) {
    ibv_pd *pd = static_cast<ibv_pd *>(calloc(1, sizeof *pd));
    if (pd != nullptr) pd->context = context;
    return pd;
}

SOFTEFA_EXPORT int ibv_dealloc_pd(ibv_pd *pd) {
    free(pd);
    return 0;
}

SOFTEFA_EXPORT ibv_mr *ibv_reg_mr_iova2(ibv_pd *pd, void *addr, size_t length, uint64_t iova, unsigned int access) {
    constexpr unsigned kKnown = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;
    if (access & ~(kKnown | IBV_ACCESS_OPTIONAL_RANGE | IBV_ACCESS_RELAXED_ORDERING)) {
        errno = EOPNOTSUPP;
        return nullptr;
    }
    ibv_mr *mr = static_cast<ibv_mr *>(calloc(1, sizeof *mr));
    if (mr == nullptr) return nullptr;
    softefa_request request = {};
    softefa_reply reply = {};
    request.call = SOFTEFA_REG_MR;
    request.u.reg_mr = {reinterpret_cast<uint64_t>(addr), length, iova, 0, access & kKnown, 0};
    const int file = shared_file(addr, length, request.u.reg_mr.file_offset);
    const int error = call(request, reply, file, nullptr, 0);
    if (file >= 0) close(file);
    if (error != 0) {
        free(mr);
        errno = error;
        return nullptr;
    }
    mr->context = pd->context;
    mr->pd = pd;
    mr->addr = addr;
    mr->length = length;
    mr->lkey = mr->rkey = mr->handle = reply.u.reg_mr.key;
    return mr;
}

SOFTEFA_EXPORT ibv_mr *ibv_reg_mr(ibv_pd *pd, void *addr, size_t length, int access) {
    return ibv_reg_mr_iova2(pd, addr, length, reinterpret_cast<uint64_t>(addr), static_cast<unsigned>(access));
}

SOFTEFA_EXPORT ibv_mr *ibv_reg_mr_iova(ibv_pd *pd, void *addr, size_t length, uint64_t iova, int access) {
    return ibv_reg_mr_iova2(pd, addr, length, iova, static_cast<unsigned>(access));
}

// Device memory lies outside every process: the NIC process could not reach it.
SOFTEFA_EXPORT ibv_mr *ibv_reg_dmabuf_mr(ibv_pd *, uint64_t, size_t, uint64_t, int, int) {
    errno = EOPNOTSUPP;
    return nullptr;
}

SOFTEFA_EXPORT int ibv_dereg_mr(ibv_mr *mr) {
    softefa_request request = {};
    softefa_reply reply = {};
    request.call = SOFTEFA_DEREG_MR;
    request.u.dereg_mr.key = mr->lkey;
    const int error = call(request, reply, -1, nullptr, 0);
    if (error != 0 && !nic_is_gone()) return error;
    free(mr);
    return 0;
}

SOFTEFA_EXPORT ibv_ah *ibv_create_ah(ibv_pd *pd, ibv_ah_attr *attr) {
    AhObject *ah = static_cast<AhObject *>(calloc(1, sizeof *ah));
    if (ah == nullptr) return nullptr;
    softefa_request request = {};
    softefa_reply reply = {};
    request.call = SOFTEFA_CREATE_AH;
    memcpy(request.u.create_ah.gid, attr->grh.dgid.raw, sizeof request.u.create_ah.gid);
    const int error = call(request, reply, -1, nullptr, 0);
    if (error != 0) {
        free(ah);
        errno = error;
        return nullptr;
    }
    ah->ahn = static_cast<uint16_t>(reply.u.create_ah.ahn);
    ah->ah.context = pd->context;
    ah->ah.pd = pd;
    ah->ah.handle = ah->ahn;
    return &ah->ah;
}

SOFTEFA_EXPORT int ibv_destroy_ah(ibv_ah *ah) {
    AhObject *object = reinterpret_cast<AhObject *>(ah);
    softefa_request request = {};
    softefa_reply reply = {};
    request.call = SOFTEFA_DESTROY_AH;
    request.u.destroy_ah.ahn = object->ahn;
    const int error = call(request, reply, -1, nullptr, 0);
    if (error != 0 && !nic_is_gone()) return error;
    free(object);
    return 0;
}

SOFTEFA_EXPORT ibv_comp_channel *ibv_create_comp_channel(ibv_context *context) {
    Channel *channel = static_cast<Channel *>(calloc(1, sizeof *channel));
    int ends[2];
    if (channel == nullptr || pipe2(ends, O_CLOEXEC) != 0) {
        free(channel);
        return nullptr;
    }
    channel->channel.context = context;
    channel->channel.fd = ends[0];
    channel->write_end = ends[1];
    return &channel->channel;
}

SOFTEFA_EXPORT int ibv_destroy_comp_channel(ibv_comp_channel *channel) {
    if (channel->refcnt > 0) return EBUSY;
    close(channel->fd);
    close(reinterpret_cast<Channel *>(channel)->write_end);
    free(channel);
    return 0;
}

namespace softefa {
int channel_write_end(ibv_comp_channel *channel) {
    return reinterpret_cast<Channel *>(channel)->write_end;
}
} // namespace softefa
