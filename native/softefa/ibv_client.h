// Our libibverbs.so.1: the objects behind the handles that it gives out. Each begins with the public struct.
#pragma once

#include <infiniband/verbs.h>
#include <stdint.h>

#include "efadv_abi.h"
#include "proto.h"

#define SOFTEFA_EXPORT extern "C" __attribute__((visibility("default")))

namespace softefa {

// Held between two calls of the program (start_poll … end_poll, wr_start … wr_complete), maybe by another thread
// than the one that took it: a mutex would not allow that. Waiters yield.
class Lock {
public:
    void take();
    void give() { __atomic_store_n(&held_, 0u, __ATOMIC_RELEASE); }

private:
    uint32_t held_;
};

struct Connection {
    int socket; // -1: none
    uint32_t device, mtu;
    uint64_t line_bits_s;
    uint8_t gid[16];
    uint32_t flags; // SOFTEFA_HAS_…
    int wake;
    const softefa_status_page *status;
    uint32_t lost; // 1: the NIC process is gone
    struct ibv_device public_device;
};

Connection *connection(); // the process's own, made at the first call; null: no emulated device here
// One request and its answer. 0, or an errno. Descriptors that come back are the caller's.
int call(const softefa_request &request, softefa_reply &reply, int send_fd, int fds[], int fd_count);
void wake_nic();    // after a doorbell
bool nic_is_gone(); // asked by pollers now and then

struct Context {
    struct verbs_context verbs; // ends with the public ibv_context
};
Context *context_of(struct ibv_context *context);

struct Pool { // the work requests in flight of one queue: index on the wire ↔ wr_id
    Lock lock;
    uint64_t *wr_ids;
    uint16_t *free_ids;
    uint8_t *in_flight; // by index
    uint32_t free_count;
};
bool pool_make(Pool &pool, uint32_t entries);
void pool_free(Pool &pool);
bool pool_take(Pool &pool, uint64_t wr_id, uint16_t &id);
uint64_t pool_give(Pool &pool, uint16_t id, uint32_t entries);
bool pool_any(Pool &pool, uint32_t entries, uint16_t &id); // one that is in flight

struct CqObject {
    struct ibv_cq_ex ex;
    softefa_efadv_cq dv;
    CqObject *next; // all live ones, so that a stale event is recognised
    uint32_t id, entries;
    uint8_t *map;
    uint8_t *ring; // the entries
    bool is_external;
    Lock lock;
    uint32_t consumed, sn, armed;
    uint32_t told; // consumed, as of the last doorbell
    uint32_t empties, checks;
    softefa_cqe *current;
    struct QpObject *qp;   // of the current entry
    softefa_cqe made_here; // when the device is gone, what it would have owed
};
// Memory for the entries of a completion queue: the program's, in a file that cannot shrink; at null: none.
struct softefa_cq_memory {
    uint8_t *at;
    uint64_t length, offset;
    int file;
};
// channel may be null. Null with errno set on failure.
SOFTEFA_EXPORT struct ibv_cq_ex *softefa_create_cq(struct ibv_context *context, uint32_t cqe, void *cq_context,
                                                   struct ibv_comp_channel *channel, softefa_cq_memory memory);

struct QpObject {
    struct ibv_qp_ex ex;
    void *room[8]; // members that later headers append to ibv_qp_ex read as null
    softefa_efadv_qp dv;
    CqObject *send_cq, *recv_cq;
    uint32_t type, qkey, sq_entries, rq_entries, max_sge;
    uint8_t *map;
    bool sig_all;
    Lock send_lock, recv_lock;
    Pool send_pool, recv_pool;
    uint32_t sq_count, rq_count; // posted ever
    uint32_t pending;            // written, not announced
    int error;                   // of the open batch
    softefa_wqe *current;
    softefa_wqe scratch; // what a failed batch goes on writing to
};
SOFTEFA_EXPORT struct ibv_qp *softefa_create_qp(struct ibv_context *context, struct ibv_qp_init_attr_ex *attr,
                                                uint32_t type, uint32_t flags);
QpObject *qp_by_number(uint32_t qpn);
void qp_set_writers(QpObject &qp);
int qp_post_send(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad);
int qp_post_recv(struct ibv_qp *qp, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad);

struct CntrObject {
    struct softefa_comp_cntr cntr;
    uint64_t *done, *failed;
    softefa_cntr_page *page;
};
// Where the two words are to lie; null: in a page of the device. Null with errno set on failure.
SOFTEFA_EXPORT struct softefa_comp_cntr *softefa_create_cntr(struct ibv_context *context,
                                                             const struct softefa_comp_cntr_init_attr *attr,
                                                             uint64_t *done, uint64_t *failed);
SOFTEFA_EXPORT bool softefa_has_counters();

struct AhObject {
    struct ibv_ah ah;
    uint16_t ahn;
};

int cq_poll(struct ibv_cq *cq, int most, struct ibv_wc *wc);
int cq_arm(struct ibv_cq *cq, int solicited_only);
// The file that this memory is a shared mapping of, and where in it; -1: none that can be opened.
int shared_file(void *addr, size_t length, uint64_t &offset);
uint8_t *ring_map(int fd, uint64_t bytes); // takes the descriptor over
int channel_write_end(struct ibv_comp_channel *channel);

} // namespace softefa
