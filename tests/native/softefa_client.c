/* Two ranks on one fabric that check every byte. Forks itself: the parent is rank 0, which sends; the child is
 * rank 1. Addresses and barriers travel over a socketpair, so nothing but the data depends on the device.
 *
 *   softefa_client -f FABRIC -m msg|tagged|write|writedata|read -s BYTES[,BYTES…] [-n ROUNDS] [-w WINDOW] [-b] [-M] [-k
 * ROUND]
 *
 * -b waits by blocking (fi_cq_sread), -M puts the data into a memfd, -k makes rank 1 kill itself before that round.
 * Ends with 0: all bytes right; 3: a byte is wrong; 4: libfabric refused; 5: nothing came for 20 s; 6: an error
 * completion (its text on stdout), what -k expects. */
#define _GNU_SOURCE
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_rma.h>
#include <rdma/fi_tagged.h>

enum { WRONG = 3, REFUSED = 4, NOTHING = 5, ERROR_COMPLETION = 6, MAX_WINDOW = 64, MAX_SIZES = 16 };

static const char *fabric_name = "efa", *mode = "msg";
static size_t sizes[MAX_SIZES], largest, size; /* size: the one whose turn it is */
static int size_count;
static pid_t child;
static int rounds = 10, window = 1, kill_at = -1, rank, wire;
static bool blocking, in_memfd;

static struct fi_info *info;
static struct fid_fabric *fabric;
static struct fid_domain *domain;
static struct fid_ep *ep;
static struct fid_cq *cq;
static struct fid_av *av;
static struct fid_mr *mr;
static fi_addr_t peer;
static unsigned char *memory; /* window slots of `size` */
static struct fi_context2 contexts[2 * MAX_WINDOW];
static struct { uint64_t addr, key; } remote;
static int sent, received; /* completions seen, of either kind */
static uint64_t last_data;

static void fail(int code, const char *what, int error) {
    fprintf(stderr, "rank %d: %s: %s\n", rank, what, fi_strerror(error < 0 ? -error : error));
    exit(code);
}
/* The other rank has gone away: what it says is what matters. */
static void deserted(void) {
    int status = 0;
    if (rank == 0 && waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) != 0)
        exit(WEXITSTATUS(status));
    exit(NOTHING);
}
static void check(int rc, const char *what) {
    if (rc < 0) fail(REFUSED, what, rc);
}
static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec / 1e9;
}

static unsigned char byte_of(int round, int slot, size_t i) {
    return (unsigned char)((i * 31) ^ (i >> 8) ^ (unsigned)(round * 7 + slot * 13 + 1));
}
static void fill(int round, int slot) {
    for (size_t i = 0; i < size; i++)
        memory[slot * size + i] = byte_of(round, slot, i);
}
static void verify(int round, int slot) {
    for (size_t i = 0; i < size; i++) {
        if (memory[slot * size + i] == byte_of(round, slot, i)) continue;
        fprintf(stderr, "rank %d: round %d slot %d byte %zu is %02x, not %02x\n", rank, round, slot, i,
                memory[slot * size + i], byte_of(round, slot, i));
        exit(WRONG);
    }
}

static void say(const void *data, size_t length) {
    if (send(wire, data, length, MSG_NOSIGNAL) != (ssize_t)length) deserted();
}
/* The device needs progress while we wait for the peer's word. */
static void hear(void *data, size_t length);
static void barrier(void) {
    char c = 'b';
    say(&c, 1);
    hear(&c, 1);
}

static void read_error(void) {
    struct fi_cq_err_entry entry = {0};
    char text[256] = "";
    ssize_t n = fi_cq_readerr(cq, &entry, 0);
    if (n < 0) fail(REFUSED, "fi_cq_readerr", (int)n);
    fi_cq_strerror(cq, entry.prov_errno, entry.err_data, text, sizeof text);
    printf("error completion: err %d (%s) prov_errno %d (%s)\n", entry.err, fi_strerror(entry.err), entry.prov_errno,
           text);
    fflush(stdout);
    _exit(ERROR_COMPLETION);
}

static void progress(bool may_block) {
    struct fi_cq_data_entry entries[16];
    ssize_t n = may_block && blocking ? fi_cq_sread(cq, entries, 16, NULL, 200) : fi_cq_read(cq, entries, 16);
    if (n == -FI_EAVAIL) read_error();
    if (n == -FI_EAGAIN) return;
    if (n < 0) fail(REFUSED, "fi_cq_read", (int)n);
    for (ssize_t i = 0; i < n; i++) {
        if (entries[i].flags & FI_REMOTE_CQ_DATA) last_data = entries[i].data;
        if (entries[i].flags & (FI_RECV | FI_REMOTE_WRITE | FI_REMOTE_CQ_DATA))
            received++;
        else
            sent++;
    }
}

static void hear(void *data, size_t length) {
    double until = now() + 20;
    struct pollfd p = {.fd = wire, .events = POLLIN};
    while (poll(&p, 1, 0) == 0) {
        progress(false);
        if (now() > until) fail(NOTHING, "waiting for the other rank", ETIMEDOUT);
    }
    if (recv(wire, data, length, MSG_WAITALL) == (ssize_t)length) return;
    if (kill_at < 0) deserted();
    for (until = now() + 20; now() < until;)
        progress(true); /* the peer is dead: our posts must say so */
    fail(NOTHING, "waiting for an error completion", ETIMEDOUT);
}

static void wait_for(const int *count, int goal, const char *what) {
    double until = now() + 20;
    struct pollfd p = {.fd = wire, .events = POLLRDHUP};
    for (unsigned turns = 0; *count < goal; turns++) {
        progress(true);
        if (turns % 256 != 0) continue;
        if (now() > until) fail(NOTHING, what, ETIMEDOUT);
        if (kill_at < 0 && poll(&p, 1, 0) > 0 && (p.revents & (POLLRDHUP | POLLHUP))) deserted();
    }
}

static bool is_rma(void) {
    return mode[0] == 'w' || mode[0] == 'r';
}

static void open_all(void) {
    struct fi_info *hints = fi_allocinfo();
    hints->caps = FI_MSG | (is_rma() ? FI_RMA : 0) | (mode[0] == 't' ? FI_TAGGED : 0);
    hints->mode = FI_CONTEXT | FI_CONTEXT2 | FI_RX_CQ_DATA;
    /* Where software at the target places the data, "transmitted" says nothing about it. */
    if (strcmp(mode, "write") == 0) hints->tx_attr->op_flags = FI_DELIVERY_COMPLETE;
    hints->ep_attr->type = FI_EP_RDM;
    hints->domain_attr->mr_mode = FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY;
    hints->domain_attr->threading = FI_THREAD_DOMAIN;
    hints->fabric_attr->prov_name = strdup("efa");
    hints->fabric_attr->name = strdup(fabric_name);
    check(fi_getinfo(FI_VERSION(1, 17), NULL, NULL, 0, hints, &info), "fi_getinfo");
    fi_freeinfo(hints);
    check(fi_fabric(info->fabric_attr, &fabric, NULL), "fi_fabric");
    check(fi_domain(fabric, info, &domain, NULL), "fi_domain");
    struct fi_cq_attr cq_attr = {.format = FI_CQ_FORMAT_DATA, .wait_obj = blocking ? FI_WAIT_UNSPEC : FI_WAIT_NONE};
    check(fi_cq_open(domain, &cq_attr, &cq, NULL), "fi_cq_open");
    struct fi_av_attr av_attr = {.type = FI_AV_TABLE};
    check(fi_av_open(domain, &av_attr, &av, NULL), "fi_av_open");
    check(fi_endpoint(domain, info, &ep, NULL), "fi_endpoint");
    check(fi_ep_bind(ep, &cq->fid, FI_TRANSMIT | FI_RECV), "fi_ep_bind");
    check(fi_ep_bind(ep, &av->fid, 0), "fi_ep_bind");
    check(fi_enable(ep), "fi_enable");
    const int fd = in_memfd ? memfd_create("payload", MFD_CLOEXEC) : -1;
    if (in_memfd && (fd < 0 || ftruncate(fd, (off_t)(largest * window)) != 0)) fail(REFUSED, "memfd_create", errno);
    memory = mmap(NULL, largest * window, PROT_READ | PROT_WRITE, in_memfd ? MAP_SHARED : MAP_PRIVATE | MAP_ANONYMOUS,
                  fd, 0);
    if (memory == MAP_FAILED) fail(REFUSED, "mmap", errno);
    check(fi_mr_reg(domain, memory, largest * window,
                    FI_SEND | FI_RECV | FI_READ | FI_WRITE | FI_REMOTE_READ | FI_REMOTE_WRITE, 0, 0, 0, &mr, NULL),
          "fi_mr_reg");
}

static void meet(void) {
    char mine[64] = {0}, theirs[64];
    size_t length = sizeof mine;
    check(fi_getname(&ep->fid, mine, &length), "fi_getname");
    say(mine, sizeof mine);
    hear(theirs, sizeof theirs);
    if (fi_av_insert(av, theirs, 1, &peer, 0, NULL) != 1) fail(REFUSED, "fi_av_insert", FI_EINVAL);
    uint64_t here[2] = {(uint64_t)(uintptr_t)memory, fi_mr_key(mr)};
    say(here, sizeof here);
    hear(&remote, sizeof remote);
}

#define POST(call)                                                                                                     \
    do {                                                                                                               \
        ssize_t rc_;                                                                                                   \
        double until_ = now() + 20;                                                                                    \
        while ((rc_ = (call)) == -FI_EAGAIN) {                                                                         \
            progress(false);                                                                                           \
            if (now() > until_) fail(NOTHING, #call, ETIMEDOUT);                                                       \
        }                                                                                                              \
        if (rc_ < 0) fail(REFUSED, #call, (int)rc_);                                                                   \
    } while (0)

static void post_receives(void) {
    for (int s = 0; s < window; s++) {
        unsigned char *at = memory + s * size;
        if (mode[0] == 't')
            POST(fi_trecv(ep, at, size, fi_mr_desc(mr), peer, 100 + s, 0, &contexts[MAX_WINDOW + s]));
        else
            POST(fi_recv(ep, at, size, fi_mr_desc(mr), peer, &contexts[MAX_WINDOW + s]));
    }
}

static void post_sends(int round) {
    for (int s = 0; s < window; s++) {
        unsigned char *at = memory + s * size;
        uint64_t there = remote.addr + s * size;
        void *desc = fi_mr_desc(mr), *ctx = &contexts[s];
        if (strcmp(mode, "tagged") == 0)
            POST(fi_tsend(ep, at, size, desc, peer, 100 + s, ctx));
        else if (strcmp(mode, "msg") == 0)
            POST(fi_send(ep, at, size, desc, peer, ctx));
        else if (strcmp(mode, "write") == 0)
            POST(fi_write(ep, at, size, desc, peer, there, remote.key, ctx));
        else if (strcmp(mode, "read") == 0)
            POST(fi_read(ep, at, size, desc, peer, there, remote.key, ctx));
        else
            POST(fi_writedata(ep, at, size, desc, (uint64_t)(round + 1), peer, there, remote.key, ctx));
    }
}

/* efa-direct matches messages to receives in the order of arrival, which is not that of the posts. */
static bool slots_may_swap(void) {
    return strcmp(mode, "msg") == 0 && strcmp(fabric_name, "efa-direct") == 0;
}

static void verify_all(int round) {
    if (!slots_may_swap()) {
        for (int s = 0; s < window; s++)
            verify(round, s);
        return;
    }
    bool seen[MAX_WINDOW] = {false};
    for (int s = 0; s < window; s++) {
        int match = -1;
        for (int t = 0; t < window && match < 0; t++) {
            bool same = !seen[t];
            for (size_t i = 0; i < size && same; i++)
                same = memory[s * size + i] == byte_of(round, t, i);
            if (same) match = t;
        }
        if (match < 0) {
            fprintf(stderr, "rank %d: round %d slot %d holds none of the messages\n", rank, round, s);
            exit(WRONG);
        }
        seen[match] = true;
    }
}

static void send_round(int round) {
    const bool reads = strcmp(mode, "read") == 0;
    if (!reads)
        for (int s = 0; s < window; s++)
            fill(round, s);
    barrier();
    const int goal = sent + window;
    post_sends(round);
    wait_for(&sent, goal, "waiting for completions of what was posted");
    if (reads) verify_all(round);
    barrier();
}

/* Immediate data takes a receive where the provider was built without unsolicited write receives. */
static bool needs_receives(void) {
    return !is_rma() || (strcmp(mode, "writedata") == 0 && (info->mode & FI_RX_CQ_DATA));
}

static void receive_round(int round) {
    const int goal = received + window;
    if (round == kill_at) raise(SIGKILL);
    if (strcmp(mode, "read") == 0)
        for (int s = 0; s < window; s++)
            fill(round, s);
    else
        memset(memory, 0, size * window);
    if (needs_receives()) post_receives();
    barrier();
    if (!is_rma()) wait_for(&received, goal, "waiting for messages");
    if (strcmp(mode, "writedata") == 0) {
        wait_for(&received, goal, "waiting for immediate data");
        if (last_data != (uint64_t)(round + 1)) {
            fprintf(stderr, "rank %d: immediate %llu, not %d\n", rank, (unsigned long long)last_data, round + 1);
            exit(WRONG);
        }
    }
    barrier();
    if (strcmp(mode, "read") != 0) verify_all(round);
}

static void post_into_the_void(void) { /* rank 1 is dead: what we post now must come back as an error */
    post_sends(kill_at);
    for (double until = now() + 20; now() < until;)
        progress(true);
    fail(NOTHING, "waiting for an error completion", ETIMEDOUT);
}

static void rank_main(void) {
    open_all();
    meet();
    for (int i = 0; i < size_count; i++) {
        size = sizes[i];
        for (int round = 0; round < rounds; round++) {
            if (rank == 0 && round == kill_at) {
                char c;
                while (recv(wire, &c, 1, 0) > 0) {
                }
                post_into_the_void();
            }
            if (rank == 0)
                send_round(round);
            else
                receive_round(round);
        }
    }
    barrier();
    fi_close(&mr->fid);
    fi_close(&ep->fid);
    fi_close(&cq->fid);
    fi_close(&av->fid);
    fi_close(&domain->fid);
    fi_close(&fabric->fid);
}

int main(int argc, char **argv) {
    int option, ends[2], status = 0;
    while ((option = getopt(argc, argv, "f:m:s:n:w:k:bM")) != -1) {
        switch (option) {
        case 'f': fabric_name = optarg; break;
        case 'm': mode = optarg; break;
        case 's':
            for (char *word = strtok(optarg, ","); word != NULL && size_count < MAX_SIZES; word = strtok(NULL, ",")) {
                sizes[size_count] = strtoull(word, NULL, 10);
                if (sizes[size_count] > largest) largest = sizes[size_count];
                size_count++;
            }
            break;
        case 'n': rounds = atoi(optarg); break;
        case 'w': window = atoi(optarg); break;
        case 'k': kill_at = atoi(optarg); break;
        case 'b': blocking = true; break;
        case 'M': in_memfd = true; break;
        default: return 2;
        }
    }
    if (window < 1 || window > MAX_WINDOW || size_count < 1 || sizes[0] < 1) return 2;
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, ends) != 0) return 2;
    child = fork();
    rank = child == 0;
    setenv("RANK", rank == 0 ? "0" : "1", 1); /* as a launcher would: our device has that number */
    wire = ends[rank];
    close(ends[!rank]);
    rank_main();
    if (rank == 1) _exit(0);
    waitpid(child, &status, 0);
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) return WIFEXITED(status) ? WEXITSTATUS(status) : REFUSED;
    for (int i = 0; i < size_count; i++)
        printf("ok: libfabric %u.%u, %s, %s, %zu bytes, %d rounds of %d\n", FI_MAJOR(fi_version()),
               FI_MINOR(fi_version()), info->fabric_attr->name, mode, sizes[i], rounds, window);
    return 0;
}
