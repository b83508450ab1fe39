// The NIC process: every object of the emulated device, and what each part of the program does with them.
// One thread; a `double` time is nanoseconds since the process started (the model's clock, Nic::epoch_ns apart from
// CLOCK_MONOTONIC), an int64_t one is CLOCK_MONOTONIC nanoseconds.
#pragma once

#include <stdint.h>
#include <stdio.h>
#include <sys/types.h>

#include "model.h"
#include "proto.h"
#include "truth.h"
#include "wire.h"

namespace softefa {

constexpr uint32_t kPartPackets = 16; // operations cross the wire in parts of this many packets
constexpr uint32_t kMaxDevices = 1024;
constexpr uint16_t kNowhere = 0xffff;

struct Device;
struct Op;

// The names and order of EFA's hw_counters files.
// clang-format off
#define SOFTEFA_COUNTERS(X) \
    X(tx_bytes) X(tx_pkts) X(rx_bytes) X(rx_pkts) X(rx_drops) \
    X(send_bytes) X(send_wrs) X(recv_bytes) X(recv_wrs) \
    X(rdma_read_wrs) X(rdma_read_bytes) X(rdma_read_wr_err) X(rdma_read_resp_bytes) \
    X(rdma_write_wrs) X(rdma_write_bytes) X(rdma_write_wr_err) X(rdma_write_recv_bytes) \
    X(retrans_bytes) X(retrans_pkts) X(retrans_timeout_events) \
    X(unresponsive_remote_events) X(impaired_remote_conn_events)
// clang-format on
struct Counters {
#define X(name) uint64_t name;
    SOFTEFA_COUNTERS(X)
#undef X
};

struct Mapping { // of a file that a client sent
    void *at;
    uint64_t bytes;
};

struct Mr {
    Device *device; // null: free
    uint64_t addr, length, iova;
    uint32_t access;
    uint32_t key;
    uint8_t *here; // the same bytes in our own address space, when they lie in a file that both map; else null
    Mapping map;   // what to unmap for that
};

struct Ah {
    uint8_t gid[16];
    uint32_t refs;
    bool answered; // the peer behind it has answered once
};

struct Cntr {
    uint32_t id;
    const Device *device;
    bool counts_bytes;
    bool closed; // by the client
    uint64_t *done, *failed;
    Mapping maps[3]; // our own page, and what the client brought
    uint32_t refs;   // queue pairs that it is attached to, plus one while the client holds it
};

struct Cq {
    uint32_t id;
    Device *device;
    uint32_t entries;
    uint8_t *map;
    uint8_t *ring;    // the entries: behind the page, or in memory of the program
    Mapping external; // that memory
    uint64_t produced;
    uint64_t cookie;
    int channel;   // write end of the client's pipe, -1: none
    uint32_t refs; // queue pairs on it, plus one while the client holds it
    uint32_t fired_sn;
    bool has_fired;
    bool closed; // by the client; operations may still hold it
    bool counts; // the consumer rings the doorbell, so overruns can be seen
};

struct Qp {
    uint16_t qpn;
    uint32_t ordinal; // number on its device, in order of creation
    Device *device;
    uint32_t type, flags, state, qkey, rnr_retry;
    Cq *send_cq, *recv_cq;
    Cntr *counted[SOFTEFA_COUNTED]; // null: nobody counts these
    uint8_t *map;
    uint32_t sq_entries, rq_entries;
    uint32_t sq_count; // entries taken from the send queue
    uint32_t rq_count; // entries taken from the receive queue
    uint64_t operations;
    Op *first, *last; // not wholly on the wire yet, in order
    uint32_t in_flight;
    double window_free; // model time at which the last operation left the window
    uint32_t refs;      // operations that name it, plus one while the client holds it
    bool gone;          // destroyed by the client, or the client is dead
};

struct Span { // bytes of a rank's memory
    uint64_t addr;
    uint64_t length;
    uint8_t *here; // see Mr
};

struct Op {
    Op *next;
    Qp *qp;
    Device *target; // null: the address handle leads nowhere
    uint64_t seq, number;
    uint8_t kind, status;
    bool wants_cqe, has_imm, is_inline, unsolicited, corrupted, detour;
    bool in_queue;  // in its queue pair's list: not wholly on the wire
    bool started;   // its first part is on the wire: it counts in the window
    bool answering; // a Finish or GiveUp is on its way: nothing else may decide its end
    bool finished;  // only waits for its last event, then it is freed
    uint16_t req_id, req_id_ex[3];
    uint16_t ah, dst_qpn;
    uint32_t qkey, imm, length;
    uint32_t rkey;
    uint64_t raddr;
    Span local[SOFTEFA_SEND_SGES];
    uint32_t lkey[SOFTEFA_SEND_SGES], locals;
    uint8_t inline_data[SOFTEFA_INLINE_MAX];
    uint32_t parts, next_part, parts_done, packets, retransmits, rnr;
    uint32_t holds; // events and lists that point here
    int64_t doorbell_ns, delivered_ns, rx_cqe_ns;
    double ready, start, due;
};

enum class Copied { Yes, SourceFault, TargetFault, SourceGone, TargetGone };
constexpr int kMoves = 64;                // copies that are made together
constexpr uint64_t kMoveBytes = 1u << 21; // and their bytes; one part alone always fits
constexpr uint32_t kSpans = 4;

struct Copy { // of one part
    Op *op;
    uint32_t part;
    double at;
    pid_t from, to;
    Span source[kSpans], target[kSpans];
    uint32_t sources, targets;
    uint64_t bytes;
    const uint8_t *inline_data; // instead of source
    int flip;                   // bit of the last byte that arrives wrong; -1: none
    Qp *receiver;               // of a send
    uint32_t skip;              // bytes of its buffer before the payload
    uint16_t req_id;
    Copied result;
    uint8_t *staged;
};
enum class Happens : uint8_t { Arrive, Deliver, ReadRequest, Finish, Retry, GiveUp };

struct Event {
    double when; // when to run it
    double at;   // the model's time of it
    uint64_t order;
    Op *op;
    uint32_t part;
    Happens what;
};

struct Device {
    uint32_t index, instance;
    pid_t pid;
    int socket, pidfd;
    bool alive, greeted;
    uint8_t gid[16];
    Ah *ahs;
    uint32_t ah_count, ah_space;
    uint16_t *ah_of; // by the peer's instance: our handle for it, kNowhere: none
    uint32_t ah_of_count;
    Qp **qps;
    uint32_t qp_count, qp_space, qp_turn, qp_ordinal;
    uint32_t cq_count, mr_count;
    uint64_t seq;
    Op *read_first, *read_last; // reads that this device answers
    double engine_free, wire_free, rx_free;
    Counters counters, shown;
    int counter_fds[sizeof(Counters) / sizeof(uint64_t)];
};

struct Late {                  // how well the machine kept the model's times
    uint64_t operations, late; // late: by over 5 % of the modelled time and over 2 µs
    uint64_t histogram[64];    // by log2 of the nanoseconds
    double worst_ns;
    uint64_t stalls; // turns of the loop that came over 100 µs after the one before, with work to do
    double worst_stall_ns;
};

struct Nic {
    Model model;
    int64_t epoch_ns;
    const char *dir;
    int epoll, listener, wake;
    softefa_status_page *status;
    int status_fd;
    uint32_t fabric_id;

    Device **devices; // every one ever, by instance
    uint32_t device_count, device_space;
    Device *live[kMaxDevices];
    uint32_t live_count, peak_devices;
    Mr *mrs; // 65536, by the low 16 bits of the key
    uint32_t mr_next;
    Qp *qps[65536];
    uint32_t qpn_next;
    Cq **cqs;
    uint32_t cq_space;
    Cntr *cntrs[SOFTEFA_MAX_CNTR];

    Event *heap;
    uint32_t heap_count, heap_space;
    uint64_t event_order;
    Op *op_pool;
    uint64_t op_count; // in use

    Copy moves[kMoves]; // parts that have arrived and are not copied yet
    int move_count;
    uint64_t move_bytes;
    double lead_ns[32]; // how long a copy takes here, by log2 of its bytes: it is begun that much early

    FILE *truth;
    uint64_t truth_records, truth_dropped, truth_most;
    Late late;
    uint64_t operations, bytes, errors, flushed, corrupted, cq_overruns, channel_overruns, batch_overruns, bad_entries;
    bool stop;
};

// nic_main.cpp
int64_t now_ns();
inline double model_now(const Nic &nic) {
    return static_cast<double>(now_ns() - nic.epoch_ns);
}

// nic_control.cpp: connections and the objects behind them
bool control_open(Nic &nic);
void gid_make(const Nic &nic, Device &device); // from the fabric and the device's instance
void control_event(Nic &nic, uint64_t tag);    // what epoll reported
void device_lost(Nic &nic, Device &device);    // its process ended
uint64_t control_tag_of(const Device &device, bool is_pidfd);

// nic_objects.cpp
softefa_reply objects_call(Nic &nic, Device &device, const softefa_request &request, int fd, int reply_fds[],
                           int &reply_fd_count);
void qp_release(Nic &nic, Qp *qp); // drops one reference
void qp_fail(Nic &nic, Qp &qp);    // error state: flush what is queued
void objects_drop(Nic &nic, Device &device);
Mr *mr_find(Nic &nic, uint32_t key);
Qp *qp_find(Nic &nic, const Device &device, uint32_t qpn);
uint8_t *ring_make(uint64_t bytes, int &fd); // memory that both sides map, sealed: a client cannot shrink it under us
// `bytes` of a client's file from `offset` on; null: there are not as many, or they cannot be mapped.
uint8_t *file_map(int file, uint64_t offset, uint64_t bytes, Mapping &map);
void file_unmap(Mapping &map);

// nic_counters.cpp
int counter_create(Nic &nic, Device &device, const softefa_request &request, int file, softefa_reply &reply, int &page);
int counter_destroy(Nic &nic, Device &device, uint32_t id);
int counter_attach(Nic &nic, Device &device, const softefa_request &request);
void counter_count(const Qp &qp, softefa_counted what, uint8_t status, uint32_t bytes);
void counters_release(Nic &nic, Qp &qp); // of a queue pair that is no more
void counters_drop(Nic &nic, const Device &device);

// nic_queue.cpp: reading the send queue, the receive queue; writing completions
bool queue_poll(Nic &nic, Qp &qp); // takes what the doorbell announced; true when there was something
int receive_take(Nic &nic, Qp &qp, Span spans[], int most, uint32_t &length, uint16_t &req_id); // spans; 0: none
void cqe_write(Nic &nic, Cq &cq, softefa_cqe entry);
void cqe_send(Nic &nic, Op &op);
Op *op_take(Nic &nic);
void op_free(Nic &nic, Op *op);

// nic_wire.cpp: the scheduler of the wire and what happens to operations on it
bool wire_schedule(Nic &nic, Device &device, double now);
bool wire_run(Nic &nic, double now);         // events that are due; true when there were some
double wire_next(const Nic &nic);            // time of the next event, infinity when none
void wire_done(Nic &nic, Op *op, double at); // completion, log, counts; frees the operation
void wire_lost(Nic &nic, Device &device);    // the device is dead: what it was sending, answering or receiving

// nic_memory.cpp: the ranks' memory
void memory_open();
uint32_t span_slice(const Span *spans, uint32_t count, uint64_t skip, uint64_t length, Span out[]); // how many
void memory_move(Copy copies[], int count); // sets each result; together at most kMoves and kMoveBytes
bool memory_add(uint64_t *word, uint64_t amount, uint64_t mask); // false: the client took the memory away
bool memory_probe(pid_t pid, uint64_t addr, uint64_t expected);

// nic_sysfs.cpp
bool sysfs_open(Nic &nic, uint32_t devices); // as many devices are there from the start, idle
bool sysfs_add(Nic &nic, Device &device);
void sysfs_remove(Nic &nic, Device &device);
void sysfs_refresh(Nic &nic, Device &device);

// nic_truth.cpp
bool truth_open(Nic &nic, const char *path, uint64_t most_bytes);
void truth_write(Nic &nic, const Op &op, int64_t cqe_ns);
void truth_flush(Nic &nic);
void truth_close(Nic &nic);
void late_count(Nic &nic, const Op &op);
void summary_write(const Nic &nic, int fd);

} // namespace softefa
