/* Posts work queue entries by itself, as a GPU kernel would: fetches the rings with efadv_query_qp_wqs and
 * efadv_query_cq, copies 64-byte entries, rings doorbells, looks at phase bits. Forks itself: the parent is rank 0,
 * which posts; the child is rank 1, the target. Rank 1 checks what lies in its memory at the end.
 *
 *   softefa_poster [-o send|write|writedata|read] [-s BYTES] [-n COUNT] [-w WINDOW] [-q QUEUES] [-d PER_DOORBELL]
 *                  [-M] [-u] [-C] [-Q] [-E MISTAKE] [-F SEED]
 *
 * -M puts the data into a memfd, -u makes queue pairs that take immediate data without a receive, -C asks for no
 * completion entries and waits for completion counters (with -M: in that memfd), -Q has the entries of its completion
 * queue in a memfd of its own, -E makes one
 * mistake (see post and run), -F posts COUNT times random bytes instead, with random doorbells. Ends with 0: right; 3:
 * a byte or an immediate is wrong; 4: the device refused; 5: nothing came for 20 s; 6: an error completion. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <infiniband/efadv.h>
#include <infiniband/verbs.h>

#include "efadv_abi.h"
#include "softefa_counting.h"
#include "wire.h"

enum { WRONG = 3, REFUSED = 4, NOTHING = 5, ERROR_COMPLETION = 6, MAX_QUEUES = 8, SLOTS = 256, DEPTH = 1024 };

struct queue {
    struct ibv_qp *qp;
    struct softefa_efadv_wq_attr sq, rq;
    uint32_t posted, announced, received, in_flight;
};
struct address {
    union ibv_gid gid;
    uint32_t qpn[MAX_QUEUES], rkey;
    uint64_t memory;
};

static const char *operation = "write";
static size_t size = 8;
static uint32_t count = 1000, window = 64, queues = 1, per_doorbell = 1, fuzz_seed;
static const char *mistake = "";
static bool in_memfd, unsolicited, fuzz, counted, own_ring;
static struct counter ended, arrived; /* writes of this rank, and at it */
static int rank, wire;

static struct ibv_context *context;
static struct ibv_pd *pd;
static struct ibv_cq_ex *cq;
static struct softefa_efadv_cq_attr ring;
static struct queue q[MAX_QUEUES];
static uint32_t consumed;
static struct ibv_mr *mr;
static unsigned char *memory;
static struct address peer;
static uint16_t ahn;
static uint32_t completions[2], last_imm;

static void fail(int code, const char *what) {
    fprintf(stderr, "rank %d: %s: %s\n", rank, what, strerror(errno));
    exit(code);
}
static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec / 1e9;
}
static unsigned char byte_of(uint32_t slot, size_t i) {
    return (unsigned char)((i * 31) ^ (i >> 8) ^ (slot * 13 + 1));
}
static bool is_send(void) {
    return operation[0] == 's';
}
static bool by_mistake(const char *name) {
    return strcmp(mistake, name) == 0;
}
static bool has_imm(void) {
    return strcmp(operation, "writedata") == 0;
}

static void *symbol(const char *name) { /* newer than the libefa that this program is linked to */
    void *found = dlsym(RTLD_DEFAULT, name);
    if (found == NULL) fail(REFUSED, name);
    return found;
}

static void make_queue(struct queue *one) {
    struct {
        uint64_t comp_mask;
        uint32_t driver_qp_type;
        uint16_t flags;
        uint8_t rest[2];
    } efa = {.flags = unsolicited};
    struct ibv_qp_init_attr_ex attr = {
        .send_cq = ibv_cq_ex_to_cq(cq),
        .recv_cq = ibv_cq_ex_to_cq(cq),
        .cap = {.max_send_wr = DEPTH, .max_recv_wr = DEPTH, .max_send_sge = 2, .max_recv_sge = 1},
        .qp_type = IBV_QPT_DRIVER,
        .comp_mask = IBV_QP_INIT_ATTR_PD,
        .pd = pd,
    };
    int (*query)(struct ibv_qp *, void *, void *, uint32_t) = symbol("efadv_query_qp_wqs");
    one->qp = efadv_create_qp_ex(context, &attr, (struct efadv_qp_init_attr *)&efa, sizeof efa);
    if (one->qp == NULL) fail(REFUSED, "efadv_create_qp_ex");
    struct ibv_qp_attr to = {.qp_state = IBV_QPS_INIT, .qkey = 0x1234, .port_num = 1};
    if (ibv_modify_qp(one->qp, &to, IBV_QP_STATE | IBV_QP_QKEY | IBV_QP_PORT | IBV_QP_PKEY_INDEX))
        fail(REFUSED, "INIT");
    struct softefa_comp_cntr_attach_attr here = {.op_mask = 1 << SOFTEFA_COUNTS_WRITE},
                                         there = {.op_mask = 1 << SOFTEFA_COUNTS_REMOTE_WRITE};
    if (counted && (counter_attach(one->qp, ended.object, &here) || counter_attach(one->qp, arrived.object, &there)))
        fail(REFUSED, "ibv_qp_attach_comp_cntr");
    if (counted && counter_attach(one->qp, ended.object, &there) != EBUSY) fail(WRONG, "counted twice");
    to.qp_state = IBV_QPS_RTR;
    if (ibv_modify_qp(one->qp, &to, IBV_QP_STATE)) fail(REFUSED, "RTR");
    to.qp_state = IBV_QPS_RTS;
    to.rnr_retry = by_mistake("no-receive") ? 2 : 7;
    if (ibv_modify_qp(one->qp, &to, IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_RNR_RETRY)) fail(REFUSED, "RTS");
    if (query(one->qp, &one->sq, &one->rq, sizeof one->sq)) fail(REFUSED, "efadv_query_qp_wqs");
}

/* Memory for completion entries; a device must refuse what is too short, or could be cut off under it. */
static void give_memory(struct softefa_efadv_cq_init_attr *efa) {
    const size_t offset = 4096, length = by_mistake("short-ring") ? 4096 : 8192 * sizeof(struct softefa_cqe);
    const int fd = memfd_create("completions", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd < 0 || ftruncate(fd, (off_t)(offset + length)) != 0) fail(REFUSED, "memfd");
    if (!by_mistake("unsealed-ring") && fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK) != 0) fail(REFUSED, "F_ADD_SEALS");
    efa->flags = 1;
    efa->external.buffer = mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_SHARED, fd, (off_t)offset);
    efa->external.length = length;
    efa->external.offset = offset;
    efa->external.fd = fd;
    if (efa->external.buffer == MAP_FAILED) fail(REFUSED, "mmap");
}

static void open_all(void) {
    int devices = 0;
    struct ibv_device **list = ibv_get_device_list(&devices);
    if (list == NULL || devices == 0) fail(REFUSED, "no device");
    context = ibv_open_device(list[0]);
    ibv_free_device_list(list);
    if (context == NULL || (pd = ibv_alloc_pd(context)) == NULL) fail(REFUSED, "ibv_open_device");
    struct ibv_cq_init_attr_ex attr = {.cqe = 8192, .wc_flags = IBV_WC_STANDARD_FLAGS};
    struct softefa_efadv_cq_init_attr efa = {0};
    if (own_ring) give_memory(&efa);
    cq = efadv_create_cq(context, &attr, (struct efadv_cq_init_attr *)&efa, sizeof efa);
    if (cq == NULL) fail(REFUSED, "efadv_create_cq");
    int (*query)(struct ibv_cq *, void *, uint32_t) = symbol("efadv_query_cq");
    if (query(ibv_cq_ex_to_cq(cq), &ring, sizeof ring)) fail(REFUSED, "efadv_query_cq");
    if (own_ring && ring.buffer != efa.external.buffer) fail(WRONG, "the entries lie elsewhere");
    const int fd = in_memfd ? memfd_create("payload", MFD_CLOEXEC) : -1;
    const size_t counts = (size * SLOTS + 7) / 8 * 8, all = counts + 2 * sizeof(uint64_t);
    if (in_memfd && ftruncate(fd, (off_t)all) != 0) fail(REFUSED, "memfd");
    memory = mmap(NULL, all, PROT_READ | PROT_WRITE, in_memfd ? MAP_SHARED : MAP_PRIVATE | MAP_ANONYMOUS, fd, 0);
    if (memory == MAP_FAILED) fail(REFUSED, "mmap");
    uint64_t *words = in_memfd ? (uint64_t *)(memory + counts) : NULL;
    if (counted &&
        (!counter_make(&ended, context, words) || !counter_make(&arrived, context, words ? words + 1 : NULL)))
        fail(REFUSED, "efadv_create_comp_cntr");
    for (uint32_t i = 0; i < queues; i++)
        make_queue(&q[i]);
    const int remote = by_mistake("no-access") ? 0 : IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;
    mr = ibv_reg_mr(pd, memory, size * SLOTS, IBV_ACCESS_LOCAL_WRITE | remote);
    if (mr == NULL) fail(REFUSED, "ibv_reg_mr");
}

static void meet(void) {
    struct address mine = {.rkey = mr->rkey, .memory = (uint64_t)(uintptr_t)memory};
    if (ibv_query_gid(context, 1, 0, &mine.gid)) fail(REFUSED, "ibv_query_gid");
    for (uint32_t i = 0; i < queues; i++)
        mine.qpn[i] = q[i].qp->qp_num;
    if (send(wire, &mine, sizeof mine, MSG_NOSIGNAL) != sizeof mine) fail(NOTHING, "send");
    if (recv(wire, &peer, sizeof peer, MSG_WAITALL) != sizeof peer) fail(NOTHING, "recv");
    if (rank == 1 && by_mistake("stranger")) return; /* the target does not know the initiator */
    struct ibv_ah_attr to = {.port_num = 1, .is_global = 1, .grh.dgid = peer.gid};
    struct ibv_ah *ah = ibv_create_ah(pd, &to);
    struct efadv_ah_attr attr = {0};
    if (ah == NULL || efadv_query_ah(ah, &attr, sizeof attr)) fail(REFUSED, "ibv_create_ah");
    ahn = attr.ahn;
}

static void barrier(void) {
    char c = 'b';
    if (send(wire, &c, 1, MSG_NOSIGNAL) != 1 || recv(wire, &c, 1, MSG_WAITALL) != 1) fail(NOTHING, "barrier");
}

static void ring_doorbell(uint32_t *at, uint32_t value) {
    __atomic_store_n(at, value & 0xffff, __ATOMIC_RELEASE);
}

static void post(struct queue *one, uint32_t slot, uint32_t to) {
    const uint32_t at = one->posted % one->sq.num_entries;
    const uint64_t here = (uint64_t)(uintptr_t)memory + slot * size, there = peer.memory + slot * size;
    struct softefa_wqe wqe = {0};
    wqe.meta.req_id = (uint16_t)at;
    wqe.meta.ctrl1 = SOFTEFA_CTRL1_META |
                     (is_send()             ? SOFTEFA_SEND
                      : operation[0] == 'r' ? SOFTEFA_READ
                                            : SOFTEFA_WRITE) |
                     (has_imm() ? SOFTEFA_CTRL1_IMM : 0);
    wqe.meta.ctrl2 =
        SOFTEFA_CTRL2_FIRST | SOFTEFA_CTRL2_LAST | SOFTEFA_CTRL2_COMPLETE | ((one->posted / one->sq.num_entries) & 1);
    if (counted) wqe.meta.ctrl2 &= (uint8_t)~SOFTEFA_CTRL2_COMPLETE;
    wqe.meta.dest_qpn = (uint16_t)peer.qpn[to];
    wqe.meta.length = 1;
    wqe.meta.imm = 0x5000 + slot;
    wqe.meta.ah = ahn;
    wqe.meta.qkey = 0x1234;
    struct softefa_sge local = {(uint32_t)size, mr->lkey, (uint32_t)here, (uint32_t)(here >> 32)};
    if (is_send())
        wqe.u.sge[0] = local;
    else {
        wqe.u.rdma.local = local;
        wqe.u.rdma.remote =
            (struct softefa_remote){(uint32_t)size, peer.rkey, (uint32_t)there, (uint32_t)(there >> 32)};
    }
    if (by_mistake("key")) wqe.u.rdma.remote.rkey ^= 0x10000;
    if (by_mistake("range")) wqe.u.rdma.remote.addr_lo += (uint32_t)(size * SLOTS);
    if (by_mistake("local-key")) wqe.u.rdma.local.lkey ^= 0x10000;
    if (by_mistake("length")) wqe.u.rdma.remote.length++;
    if (by_mistake("qpn")) wqe.meta.dest_qpn = 65535;
    if (by_mistake("qkey")) wqe.meta.qkey++;
    if (by_mistake("handle")) wqe.meta.ah = 999;
    if (by_mistake("operation")) wqe.meta.ctrl1 |= 5;
    if (by_mistake("phase")) wqe.meta.ctrl2 ^= SOFTEFA_CTRL2_PHASE;
    if (by_mistake("short-receive")) wqe.u.sge[1] = local, wqe.meta.length = 2;
    memcpy(one->sq.buffer + at * sizeof wqe, &wqe, sizeof wqe);
    one->posted++;
    one->in_flight++;
    if (one->posted - one->announced < per_doorbell) return;
    one->announced = one->posted;
    ring_doorbell(one->sq.doorbell, one->posted);
}

static void post_receive(struct queue *one, uint32_t slot) {
    const uint32_t at = one->received++ % one->rq.num_entries;
    const uint64_t here = (uint64_t)(uintptr_t)memory + slot * size;
    struct softefa_rx_desc desc = {(uint32_t)here, (uint32_t)(here >> 32), (uint16_t)at, (uint16_t)size,
                                   (mr->lkey & SOFTEFA_LKEY_MASK) | SOFTEFA_RX_FIRST | SOFTEFA_RX_LAST};
    memcpy(one->rq.buffer + at * sizeof desc, &desc, sizeof desc);
    ring_doorbell(one->rq.doorbell, one->received);
}

static bool look_at_counters(void) {
    const uint32_t done = counter_value(&ended) - completions[0];
    if (counter_errors(&ended) != 0) fail(ERROR_COMPLETION, "counted an error");
    for (uint32_t i = 0; i < done; i++) /* which queue's it was is not known: their sum is right */
        q[completions[0]++ % queues].in_flight--;
    completions[1] = counter_value(&arrived);
    sched_yield();
    return done != 0;
}

static bool poll_one(void) {
    static uint32_t empties;
    if (counted) return look_at_counters();
    const struct softefa_cqe *e = (const struct softefa_cqe *)ring.buffer + consumed % ring.num_entries;
    const uint8_t flags = __atomic_load_n(&e->flags, __ATOMIC_ACQUIRE);
    if ((flags & SOFTEFA_CQE_PHASE) != (((consumed / ring.num_entries) & 1) ^ 1)) {
        if (++empties % 20 == 0) sched_yield();
        return false;
    }
    consumed++;
    const bool receive = (flags & SOFTEFA_CQE_QUEUE) >> SOFTEFA_CQE_QUEUE_SHIFT == SOFTEFA_RQ;
    if (e->status != SOFTEFA_OK) {
        printf("error completion: status %u of a %s\n", e->status, receive ? "receive" : "post");
        fflush(stdout);
        _exit(ERROR_COMPLETION);
    }
    completions[receive]++;
    for (uint32_t i = 0; i < queues; i++) {
        if (q[i].qp->qp_num != e->qpn) continue;
        if (receive && !(flags & SOFTEFA_CQE_UNSOLICITED))
            post_receive(&q[i], e->req_id % SLOTS);
        else if (!receive)
            q[i].in_flight--;
    }
    if (receive && by_mistake("stranger") &&
        (e->u.rx.ah != SOFTEFA_AH_UNKNOWN || memcmp(e->ex.src_gid, &peer.gid, sizeof peer.gid) != 0))
        fail(WRONG, "the address of a sender without a handle");
    if (flags & SOFTEFA_CQE_IMM) {
        last_imm = e->imm;
        if (last_imm - 0x5000 >= SLOTS) fail(WRONG, "immediate data");
    }
    ring_doorbell(ring.doorbell, consumed);
    return true;
}

static void wait_until(const uint32_t *counter, uint32_t goal, const char *what) {
    for (double until = now() + 20; *counter < goal;)
        if (!poll_one() && now() > until) fail(NOTHING, what);
}

static void verify(void) {
    for (uint32_t s = 0; s < SLOTS && s < count; s++)
        for (size_t i = 0; i < size; i++)
            if (memory[s * size + i] != byte_of(s, i)) {
                fprintf(stderr, "rank %d: slot %u byte %zu is %02x, not %02x\n", rank, s, i, memory[s * size + i],
                        byte_of(s, i));
                exit(WRONG);
            }
}

static void post_all(void) {
    const double started = now();
    double heard = started;
    for (uint32_t n = 0; n < count;) {
        struct queue *one = &q[n % queues];
        if (one->in_flight < window) {
            post(one, n % SLOTS, n % queues);
            n++;
            continue;
        }
        if (poll_one())
            heard = now();
        else if (now() - heard > 20)
            fail(NOTHING, "waiting for room");
    }
    for (uint32_t i = 0; i < queues; i++)
        ring_doorbell(q[i].sq.doorbell, q[i].posted);
    wait_until(&completions[0], count, "waiting for completions");
    printf("ops %u seconds %.6f\n", count, now() - started);
    fflush(stdout);
}

static void run(void) {
    const bool source = (rank == 0) != (operation[0] == 'r');
    if (source)
        for (uint32_t s = 0; s < SLOTS; s++)
            for (size_t i = 0; i < size; i++)
                memory[s * size + i] = byte_of(s, i);
    if (rank == 1 && !by_mistake("no-receive") && (is_send() || (has_imm() && !unsolicited)))
        for (uint32_t i = 0; i < queues; i++)
            for (uint32_t s = 0; s < DEPTH; s++)
                post_receive(&q[i], s % SLOTS);
    barrier();
    if (rank == 0)
        post_all();
    else if ((*mistake == 0 || by_mistake("stranger")) && (is_send() || has_imm() || counted))
        wait_until(&completions[1], count, "waiting for receives");
    barrier();
    if (!source && !is_send()) verify();
}

/* Garbage in everything that the device reads; it may say so, it may not stop. */
static void run_fuzz(void) {
    unsigned state = fuzz_seed + (unsigned)rank;
    for (uint32_t n = 0; n < count; n++) {
        struct queue *one = &q[n % queues];
        for (uint32_t k = rand_r(&state) % 80; k > 0; k--) {
            unsigned char *at = one->sq.buffer + (one->posted % one->sq.num_entries) * sizeof(struct softefa_wqe);
            for (size_t i = 0; i < sizeof(struct softefa_wqe); i++)
                at[i] = (unsigned char)rand_r(&state);
            struct softefa_meta *meta = (struct softefa_meta *)at;
            const uint8_t whole = SOFTEFA_CTRL2_FIRST | SOFTEFA_CTRL2_LAST | ((one->posted / one->sq.num_entries) & 1);
            if (rand_r(&state) % 1024) meta->ctrl1 |= SOFTEFA_CTRL1_META; /* mostly past the first checks */
            if (rand_r(&state) % 1024) meta->ctrl2 = whole | (rand_r(&state) & SOFTEFA_CTRL2_COMPLETE);
            if (rand_r(&state) % 4) meta->ctrl1 = SOFTEFA_CTRL1_META | (meta->ctrl1 & 0x33);
            if (rand_r(&state) % 2) meta->length %= 3;
            if (rand_r(&state) % 2) meta->ah = ahn;
            if (rand_r(&state) % 2) meta->dest_qpn = (uint16_t)peer.qpn[rand_r(&state) % queues];
            if (rand_r(&state) % 2) meta->qkey = 0x1234;
            struct softefa_wqe *wqe = (struct softefa_wqe *)at;
            if (rand_r(&state) % 2)
                wqe->u.rdma.local =
                    (struct softefa_sge){rand_r(&state) % (4 * size), mr->lkey, (uint32_t)(uintptr_t)memory,
                                         (uint32_t)((uintptr_t)memory >> 32)};
            if (rand_r(&state) % 2)
                wqe->u.rdma.remote = (struct softefa_remote){wqe->u.rdma.local.length, peer.rkey,
                                                             (uint32_t)peer.memory + rand_r(&state) % 512,
                                                             (uint32_t)(peer.memory >> 32)};
            one->posted++;
        }
        for (uint32_t k = rand_r(&state) % 16 == 0; k > 0; k--)
            for (size_t i = 0; i < sizeof(struct softefa_rx_desc); i++)
                one->rq.buffer[(rand_r(&state) % one->rq.num_entries) * sizeof(struct softefa_rx_desc) + i] =
                    (unsigned char)rand_r(&state);
        const bool honest = rand_r(&state) % 64 != 0;
        for (uint32_t k = rand_r(&state) % 8; k > 0; k--)
            post_receive(one, rand_r(&state) % SLOTS);
        if (!honest) ring_doorbell(one->rq.doorbell, (uint32_t)rand_r(&state));
        *one->sq.doorbell = honest ? one->posted & 0xffff : (uint32_t)rand_r(&state);
        if (rand_r(&state) % 4 == 0) *ring.doorbell = (uint32_t)rand_r(&state);
        if (rand_r(&state) % 4) continue;
        ibv_destroy_qp(one->qp); /* an error state would end the fun: begin anew, maybe with operations in flight */
        *one = (struct queue){0};
        make_queue(one);
    }
    barrier();
}

int main(int argc, char **argv) {
    int option, ends[2], status = 0;
    while ((option = getopt(argc, argv, "o:s:n:w:q:d:E:F:MuCQ")) != -1) {
        switch (option) {
        case 'o': operation = optarg; break;
        case 's': size = strtoull(optarg, NULL, 10); break;
        case 'n': count = (uint32_t)atoi(optarg); break;
        case 'w': window = (uint32_t)atoi(optarg); break;
        case 'q': queues = (uint32_t)atoi(optarg); break;
        case 'd': per_doorbell = (uint32_t)atoi(optarg); break;
        case 'E': mistake = optarg; break;
        case 'F': fuzz = true, fuzz_seed = (uint32_t)atoi(optarg); break;
        case 'M': in_memfd = true; break;
        case 'u': unsolicited = true; break;
        case 'C': counted = true; break;
        case 'Q': own_ring = true; break;
        default: return 2;
        }
    }
    if (queues < 1 || queues > MAX_QUEUES || window < 1 || window > DEPTH || per_doorbell > window) return 2;
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, ends) != 0) return 2;
    const pid_t child = fork();
    rank = child == 0;
    setenv("RANK", rank == 0 ? "0" : "1", 1); /* as a launcher would: our device has that number */
    wire = ends[rank];
    close(ends[!rank]);
    open_all();
    meet();
    if (fuzz)
        run_fuzz();
    else
        run();
    if (rank == 1) _exit(0);
    waitpid(child, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : REFUSED;
}
