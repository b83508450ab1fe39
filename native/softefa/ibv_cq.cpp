// libibverbs: completion queues: the extended way of polling, the old one, events.
#include "ibv_client.h"

#include <endian.h>
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

namespace softefa {
namespace {

constexpr uint32_t kEmptyPolls = 20;      // then yield: pollers beyond the cores cost each other milliseconds
constexpr uint32_t kYieldsPerCheck = 512; // then look whether the NIC process is still there

CqObject *all;
pthread_mutex_t all_guard = PTHREAD_MUTEX_INITIALIZER;

CqObject &object_of(ibv_cq_ex *cq) {
    return *reinterpret_cast<CqObject *>(cq);
}
const softefa_cqe &current(ibv_cq_ex *cq) {
    return *object_of(cq).current;
}
bool is_send(const softefa_cqe &e) {
    return (e.flags & SOFTEFA_CQE_QUEUE) >> SOFTEFA_CQE_QUEUE_SHIFT == SOFTEFA_SQ;
}
uint32_t op_of(const softefa_cqe &e) {
    return (e.flags & SOFTEFA_CQE_OP) >> SOFTEFA_CQE_OP_SHIFT;
}

ibv_wc_status status_of(uint8_t status) {
    switch (status) {
    case SOFTEFA_OK: return IBV_WC_SUCCESS;
    case SOFTEFA_FLUSHED: return IBV_WC_WR_FLUSH_ERR;
    case SOFTEFA_QP_INTERNAL:
    case SOFTEFA_UNSUPPORTED_OP:
    case SOFTEFA_INVALID_AH: return IBV_WC_LOC_QP_OP_ERR;
    case SOFTEFA_INVALID_LKEY: return IBV_WC_LOC_PROT_ERR;
    case SOFTEFA_BAD_LENGTH: return IBV_WC_LOC_LEN_ERR;
    case SOFTEFA_REMOTE_BAD_ADDRESS: return IBV_WC_REM_ACCESS_ERR;
    case SOFTEFA_REMOTE_ABORT: return IBV_WC_REM_ABORT_ERR;
    case SOFTEFA_REMOTE_BAD_QPN: return IBV_WC_REM_INV_RD_REQ_ERR;
    case SOFTEFA_REMOTE_RNR: return IBV_WC_RNR_RETRY_EXC_ERR;
    case SOFTEFA_REMOTE_BAD_LENGTH: return IBV_WC_REM_INV_REQ_ERR;
    case SOFTEFA_UNRESPONSIVE:
    case SOFTEFA_UNREACHABLE: return IBV_WC_RESP_TIMEOUT_ERR;
    case SOFTEFA_UNKNOWN_PEER: return IBV_WC_REM_OP_ERR;
    default: return IBV_WC_GENERAL_ERR;
    }
}

void ring(CqObject &cq) {
    const uint32_t bell = (cq.consumed & SOFTEFA_CQ_DB_COUNT) | ((cq.sn << SOFTEFA_CQ_DB_SN_SHIFT) & SOFTEFA_CQ_DB_SN) |
                          (cq.armed ? SOFTEFA_CQ_DB_ARM : 0);
    __atomic_store_n(reinterpret_cast<uint32_t *>(cq.map), bell, __ATOMIC_RELEASE);
    cq.told = cq.consumed;
}

softefa_cqe *next_entry(CqObject &cq) {
    auto *entry = reinterpret_cast<softefa_cqe *>(cq.ring) + cq.consumed % cq.entries;
    const uint8_t flags = __atomic_load_n(&entry->flags, __ATOMIC_ACQUIRE);
    if ((flags & SOFTEFA_CQE_PHASE) != (((cq.consumed / cq.entries) & 1) ^ 1)) return nullptr;
    ++cq.consumed;
    return entry;
}

// Moves to the next entry of a queue pair that still exists; false: none.
bool advance(CqObject &cq) {
    while ((cq.current = next_entry(cq)) != nullptr) {
        cq.qp = qp_by_number(cq.current->qpn);
        if (cq.qp == nullptr) continue;
        const softefa_cqe &e = *cq.current;
        cq.ex.status = status_of(e.status);
        if (!is_send(e) && (e.flags & SOFTEFA_CQE_UNSOLICITED))
            cq.ex.wr_id = 0;
        else if (is_send(e))
            cq.ex.wr_id = pool_give(cq.qp->send_pool, e.req_id, cq.qp->sq_entries);
        else
            cq.ex.wr_id = pool_give(cq.qp->recv_pool, e.req_id, cq.qp->rq_entries);
        return true;
    }
    return false;
}

// The device is gone: what was posted ends with an error, as if it had said so itself. False: nothing is owed.
bool make_up(CqObject &cq) {
    for (uint32_t qpn = 0; qpn < 65536; ++qpn) {
        QpObject *qp = qp_by_number(qpn);
        uint16_t id;
        if (qp == nullptr || qp->send_cq != &cq || !pool_any(qp->send_pool, qp->sq_entries, id)) continue;
        cq.made_here = {};
        cq.made_here.req_id = id;
        cq.made_here.status = SOFTEFA_QP_INTERNAL;
        cq.made_here.flags = SOFTEFA_SQ << SOFTEFA_CQE_QUEUE_SHIFT;
        cq.made_here.qpn = static_cast<uint16_t>(qpn);
        cq.current = &cq.made_here;
        cq.qp = qp;
        cq.ex.status = status_of(cq.made_here.status);
        cq.ex.wr_id = pool_give(qp->send_pool, id, qp->sq_entries);
        return true;
    }
    return false;
}

// 0 when there is an entry after all, ENOENT, or EIO when nothing will come any more.
int nothing(CqObject &cq) {
    if (++cq.empties < kEmptyPolls) return ENOENT;
    cq.empties = 0;
    sched_yield();
    if (++cq.checks % kYieldsPerCheck != 0 || !nic_is_gone()) return ENOENT;
    cq.checks = kYieldsPerCheck - 1; // once gone, every later look says so at once
    cq.empties = kEmptyPolls;
    return make_up(cq) ? 0 : EIO;
}

int start_poll(ibv_cq_ex *ex, ibv_poll_cq_attr *attr) {
    if (attr != nullptr && attr->comp_mask != 0) return EINVAL;
    CqObject &cq = object_of(ex);
    cq.lock.take();
    if (advance(cq)) {
        cq.empties = 0;
        return 0;
    }
    if (cq.told != cq.consumed) ring(cq); // entries of dead queue pairs were skipped
    const int error = nothing(cq);
    if (error != 0) cq.lock.give();
    return error;
}

int next_poll(ibv_cq_ex *ex) {
    return advance(object_of(ex)) ? 0 : ENOENT;
}

void end_poll(ibv_cq_ex *ex) {
    CqObject &cq = object_of(ex);
    ring(cq);
    cq.lock.give();
}

ibv_wc_opcode opcode_of(const softefa_cqe &e) {
    const bool writes = op_of(e) == SOFTEFA_WRITE;
    if (is_send(e)) return writes ? IBV_WC_RDMA_WRITE : IBV_WC_SEND; // reads complete as sends, as on the device
    return writes ? IBV_WC_RECV_RDMA_WITH_IMM : IBV_WC_RECV;
}

uint32_t byte_len_of(const softefa_cqe &e) {
    if (is_send(e)) return 0;
    const uint32_t high = op_of(e) == SOFTEFA_WRITE ? e.ex.rdma.length_hi : 0;
    return high << 16 | e.u.rx.length_lo;
}

ibv_wc_opcode read_opcode(ibv_cq_ex *cq) {
    return opcode_of(current(cq));
}
uint32_t read_vendor_err(ibv_cq_ex *cq) {
    return object_of(cq).current != nullptr ? current(cq).status : 0;
}
uint32_t read_byte_len(ibv_cq_ex *cq) {
    return byte_len_of(current(cq));
}
__be32 read_imm_data(ibv_cq_ex *cq) {
    return htobe32(current(cq).imm);
}
uint32_t read_qp_num(ibv_cq_ex *cq) {
    return current(cq).qpn;
}
uint32_t read_src_qp(ibv_cq_ex *cq) {
    return current(cq).u.rx.src_qpn;
}
unsigned read_wc_flags(ibv_cq_ex *cq) {
    return current(cq).flags & SOFTEFA_CQE_IMM ? IBV_WC_WITH_IMM : 0;
}
uint32_t read_slid(ibv_cq_ex *cq) {
    return current(cq).u.rx.ah;
}
uint8_t read_zero(ibv_cq_ex *) {
    return 0;
}

CqObject &of_dv(softefa_efadv_cq *dv) {
    return *reinterpret_cast<CqObject *>(reinterpret_cast<uint8_t *>(dv) - offsetof(CqObject, dv));
}
int read_sgid(softefa_efadv_cq *dv, ibv_gid *gid) {
    const softefa_cqe &e = *of_dv(dv).current;
    if (e.u.rx.ah != SOFTEFA_AH_UNKNOWN) return -ENOENT; // only given when the handle is not known
    memcpy(gid->raw, e.ex.src_gid, sizeof gid->raw);
    return 0;
}
bool is_unsolicited(softefa_efadv_cq *dv) {
    return of_dv(dv).current->flags & SOFTEFA_CQE_UNSOLICITED;
}

void set_readers(CqObject &cq) {
    cq.ex.start_poll = start_poll;
    cq.ex.next_poll = next_poll;
    cq.ex.end_poll = end_poll;
    cq.ex.read_opcode = read_opcode;
    cq.ex.read_vendor_err = read_vendor_err;
    cq.ex.read_byte_len = read_byte_len;
    cq.ex.read_imm_data = read_imm_data;
    cq.ex.read_qp_num = read_qp_num;
    cq.ex.read_src_qp = read_src_qp;
    cq.ex.read_wc_flags = read_wc_flags;
    cq.ex.read_slid = read_slid;
    cq.ex.read_sl = read_zero;
    cq.ex.read_dlid_path_bits = read_zero;
    cq.dv.wc_read_sgid = read_sgid;
    cq.dv.wc_is_unsolicited = is_unsolicited;
}

void list_add(CqObject *cq) {
    pthread_mutex_lock(&all_guard);
    cq->next = all;
    all = cq;
    pthread_mutex_unlock(&all_guard);
}

void list_remove(CqObject *cq) {
    pthread_mutex_lock(&all_guard);
    for (CqObject **link = &all; *link != nullptr; link = &(*link)->next) {
        if (*link != cq) continue;
        *link = cq->next;
        break;
    }
    pthread_mutex_unlock(&all_guard);
}

} // namespace

int cq_poll(ibv_cq *public_cq, int most, ibv_wc *wc) {
    CqObject &cq = *reinterpret_cast<CqObject *>(public_cq);
    cq.lock.take();
    int n = 0;
    for (; n < most && advance(cq); ++n) {
        const softefa_cqe &e = *cq.current;
        wc[n] = {};
        wc[n].wr_id = cq.ex.wr_id;
        wc[n].status = cq.ex.status;
        wc[n].vendor_err = e.status;
        wc[n].opcode = opcode_of(e);
        wc[n].byte_len = byte_len_of(e);
        wc[n].qp_num = e.qpn;
        if (!is_send(e)) {
            wc[n].src_qp = e.u.rx.src_qpn;
            wc[n].slid = e.u.rx.ah;
            wc[n].imm_data = htobe32(e.imm);
            wc[n].wc_flags = e.flags & SOFTEFA_CQE_IMM ? IBV_WC_WITH_IMM : 0;
        }
    }
    if (n > 0) {
        cq.empties = 0;
        ring(cq);
    } else if (nothing(cq) != ENOENT) {
        n = -1; // the old way has no entry for it
    }
    cq.lock.give();
    return n;
}

int cq_arm(ibv_cq *public_cq, int solicited_only) {
    if (solicited_only) return EOPNOTSUPP;
    CqObject &cq = *reinterpret_cast<CqObject *>(public_cq);
    cq.armed = 1;
    ring(cq);
    __atomic_thread_fence(__ATOMIC_SEQ_CST); // armed first, then the program's look for what came in between
    return 0;
}

} // namespace softefa

using namespace softefa;

SOFTEFA_EXPORT ibv_cq_ex *softefa_create_cq(ibv_context *context, uint32_t cqe, void *cq_context,
                                            ibv_comp_channel *channel, softefa_cq_memory memory) {
    const bool is_external = memory.at != nullptr;
    if (is_external && channel != nullptr) { // a message carries one file
        errno = EOPNOTSUPP;
        return nullptr;
    }
    CqObject *cq = static_cast<CqObject *>(calloc(1, sizeof *cq));
    if (cq == nullptr) return nullptr;
    softefa_request request = {};
    softefa_reply reply = {};
    request.call = SOFTEFA_CREATE_CQ;
    request.u.create_cq = {cqe, channel != nullptr, reinterpret_cast<uint64_t>(cq), is_external ? memory.length : 0,
                           memory.offset};
    int fd = -1;
    int error = call(request, reply, channel != nullptr ? channel_write_end(channel) : memory.file, &fd, 1);
    if (error == 0) {
        cq->id = reply.u.create_cq.cq;
        cq->entries = reply.u.create_cq.entries;
        cq->map = ring_map(fd, softefa_cq_own_bytes(cq->entries, is_external));
        error = cq->map == nullptr ? errno : 0;
        cq->ring = is_external ? memory.at : cq->map + SOFTEFA_PAGE;
        cq->is_external = is_external;
    }
    if (error != 0) {
        free(cq);
        errno = error;
        return nullptr;
    }
    cq->ex.context = context;
    cq->ex.channel = channel;
    cq->ex.cq_context = cq_context;
    cq->ex.handle = cq->id;
    cq->ex.cqe = static_cast<int>(cq->entries);
    pthread_mutex_init(&cq->ex.mutex, nullptr);
    pthread_cond_init(&cq->ex.cond, nullptr);
    set_readers(*cq);
    if (channel != nullptr) ++channel->refcnt;
    list_add(cq);
    return &cq->ex;
}

SOFTEFA_EXPORT ibv_cq *ibv_create_cq(ibv_context *context, int cqe, void *cq_context, ibv_comp_channel *channel, int) {
    return ibv_cq_ex_to_cq(
        softefa_create_cq(context, static_cast<uint32_t>(cqe), cq_context, channel, {nullptr, 0, 0, -1}));
}

SOFTEFA_EXPORT int ibv_destroy_cq(ibv_cq *public_cq) {
    CqObject *cq = reinterpret_cast<CqObject *>(public_cq);
    softefa_request request = {};
    softefa_reply reply = {};
    request.call = SOFTEFA_DESTROY_CQ;
    request.u.destroy_cq.cq = cq->id;
    const int error = call(request, reply, -1, nullptr, 0);
    if (error != 0 && !nic_is_gone()) return error;
    list_remove(cq);
    if (cq->ex.channel != nullptr) --cq->ex.channel->refcnt;
    munmap(cq->map, softefa_cq_own_bytes(cq->entries, cq->is_external));
    free(cq);
    return 0;
}

SOFTEFA_EXPORT int ibv_get_cq_event(ibv_comp_channel *channel, ibv_cq **out, void **cq_context) {
    for (;;) {
        uint64_t cookie;
        if (read(channel->fd, &cookie, sizeof cookie) != sizeof cookie) return -1;
        pthread_mutex_lock(&all_guard);
        CqObject *cq = all;
        while (cq != nullptr && reinterpret_cast<uint64_t>(cq) != cookie)
            cq = cq->next;
        if (cq != nullptr) {
            ++cq->sn;
            cq->armed = 0;
        }
        pthread_mutex_unlock(&all_guard);
        if (cq == nullptr) continue; // of a queue that is no more
        *out = ibv_cq_ex_to_cq(&cq->ex);
        *cq_context = cq->ex.cq_context;
        return 0;
    }
}

SOFTEFA_EXPORT void ibv_ack_cq_events(ibv_cq *cq, unsigned int count) {
    pthread_mutex_lock(&cq->mutex);
    cq->comp_events_completed += count;
    pthread_cond_signal(&cq->cond);
    pthread_mutex_unlock(&cq->mutex);
}

SOFTEFA_EXPORT const char *ibv_wc_status_str(ibv_wc_status status) {
    switch (status) {
    case IBV_WC_SUCCESS: return "success";
    case IBV_WC_WR_FLUSH_ERR: return "flushed";
    case IBV_WC_LOC_PROT_ERR: return "local protection error";
    case IBV_WC_LOC_LEN_ERR: return "local length error";
    case IBV_WC_LOC_QP_OP_ERR: return "local queue pair operation error";
    case IBV_WC_REM_ACCESS_ERR: return "remote access error";
    case IBV_WC_RNR_RETRY_EXC_ERR: return "receiver not ready";
    case IBV_WC_RESP_TIMEOUT_ERR: return "no response";
    default: return "error";
    }
}
