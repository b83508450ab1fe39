// Drives the "fake" provider and prints what it did, so that a recording of it can be compared: one fact a line.
//   fake_driver SCENARIO [N [PROVIDER [FABRIC]]]
#define _GNU_SOURCE // dladdr
#include "fake_driver.h"

#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_rma.h>
#include <rdma/fi_tagged.h>
#include <stdbool.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

struct fi_info *info;
struct fid_domain *domain;
char buffer[64];
static struct fid_fabric *fabric;

static void open_domain(const char *provider, const char *name) {
    struct fi_info *hints = fi_allocinfo();
    hints->caps = FI_MSG;
    hints->mode = FI_CONTEXT | FI_CONTEXT2;
    hints->ep_attr->type = FI_EP_RDM;
    hints->domain_attr->mr_mode = FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY;
    hints->fabric_attr->prov_name = strdup(provider);
    if (name) hints->fabric_attr->name = strdup(name);
    TRY(fi_getinfo(FI_VERSION(1, 15), NULL, NULL, 0, hints, &info));
    fi_freeinfo(hints);
    while (strcmp(info->fabric_attr->prov_name, provider) != 0)
        info = info->next; // not one layered on it
    TRY(fi_fabric(info->fabric_attr, &fabric, NULL));
    TRY(fi_domain(fabric, info, &domain, NULL));
}

struct fid_cq *open_cq(enum fi_cq_format format) {
    struct fi_cq_attr attr = {.format = format};
    struct fid_cq *cq;
    TRY(fi_cq_open(domain, &attr, &cq, NULL));
    return cq;
}

struct fid_ep *open_ep(struct fid_cq *cq, uint64_t flags) {
    struct fid_ep *ep;
    TRY(fi_endpoint(domain, info, &ep, NULL));
    TRY(fi_ep_bind(ep, &cq->fid, FI_TRANSMIT | FI_RECV | flags));
    TRY(fi_enable(ep));
    return ep;
}

static void close_domain(void) {
    TRY(fi_close(&domain->fid));
    TRY(fi_close(&fabric->fid));
}

static long write_n(struct fid_ep *ep, int n) {
    for (int i = 0; i < n; ++i)
        while (fi_write(ep, buffer, sizeof buffer, NULL, 1, 0x1000, 2, &buffer[i % 64]) == -FI_EAGAIN) {
        }
    return n;
}

static long drain(struct fid_cq *cq, long *empties) {
    struct fi_cq_tagged_entry room[100];
    long got = 0;
    for (ssize_t n; (n = fi_cq_read(cq, room, 100)) != -FI_EAGAIN;)
        got += n;
    ++*empties;
    return got;
}

const char *module_of(void *function) {
    Dl_info found;
    if (!dladdr(function, &found)) return "?";
    const char *slash = strrchr(found.dli_fname, '/');
    return slash ? slash + 1 : found.dli_fname;
}

// ---- scenarios
static void owners(int n) { // whose functions stand in the tables
    struct fid_cq *cq = open_cq(FI_CQ_FORMAT_CONTEXT);
    struct fid_ep *ep = open_ep(cq, 0);
    long empties = 0;
    (void)n;
    printf("write %s\n", module_of((void *)ep->rma->write));
    printf("send %s\n", module_of((void *)ep->msg->send));
    printf("read %s\n", module_of((void *)cq->ops->read));
    printf("close %s\n", module_of((void *)ep->fid.ops->close));
    printf("null %d\n", ep->rma->readv == NULL && ep->msg->sendv == NULL);
    printf("beyond %d\n", ep->rma->size >= sizeof *ep->rma || *(unsigned char *)&ep->rma->inject == 0x5a);
    printf("posts %ld\n", write_n(ep, 10));
    printf("completions %ld\n", drain(cq, &empties));
    fi_setopt(&ep->fid, FI_OPT_ENDPOINT, FI_OPT_TX_SIZE, buffer, 4);
    printf("after_setopt %s\n", module_of((void *)ep->rma->write));
    TRY(fi_close(&ep->fid));
    TRY(fi_close(&cq->fid));
}

static void protections(int n) { // of the page with the tables
    struct fid_cq *cq = open_cq(FI_CQ_FORMAT_CONTEXT);
    struct fid_ep *ep = open_ep(cq, 0);
    char line[512];
    FILE *maps = fopen("/proc/self/maps", "r");
    (void)n;
    while (fgets(line, sizeof line, maps)) {
        unsigned long start, end;
        char prot[8];
        if (sscanf(line, "%lx-%lx %7s", &start, &end, prot) == 3 && start <= (unsigned long)ep->rma &&
            (unsigned long)ep->rma < end)
            printf("prot %s\n", prot);
    }
    fclose(maps);
    owners(0);
}

static void many(int n) { // endpoints, each with tables of its own
    struct fid_cq *cq = open_cq(FI_CQ_FORMAT_MSG);
    struct fid_ep *eps[64];
    long posts = 0, empties = 0, ours = 0;
    for (int i = 0; i < n; ++i)
        eps[i] = open_ep(cq, 0);
    for (int i = 0; i < n; ++i) {
        posts += write_n(eps[i], 5);
        ours += strcmp(module_of((void *)eps[i]->rma->write), "libfake-fi.so") != 0;
    }
    printf("posts %ld\npatched %ld\ncompletions %ld\n", posts, ours, drain(cq, &empties));
    for (int i = 0; i < n; ++i)
        TRY(fi_close(&eps[i]->fid));
    TRY(fi_close(&cq->fid));
}

static void calls(int n) { // each function once or more, with known arguments
    struct fid_cq *cq = open_cq(FI_CQ_FORMAT_TAGGED);
    struct fid_ep *ep = open_ep(cq, FI_SELECTIVE_COMPLETION);
    struct iovec iov[2] = {{buffer, 24}, {buffer + 24, 40}};
    struct fi_rma_iov remote = {0x2000, 64, 9};
    struct fi_msg_rma msg = {.msg_iov = iov, .iov_count = 2, .addr = 5, .rma_iov = &remote, .rma_iov_count = 1};
    struct fi_cq_err_entry error = {0};
    fi_addr_t sources[100];
    struct fi_cq_tagged_entry room[100];
    uint64_t flags = FI_TRANSMIT | FI_INJECT_COMPLETE;
    msg.context = &msg;
    msg.data = 0xabcd;
    TRY(fi_write(ep, buffer, 64, NULL, 3, 0x1000, 9, &iov));
    TRY(fi_writemsg(ep, &msg, FI_COMPLETION | FI_REMOTE_CQ_DATA | FI_MORE));
    TRY(fi_inject_write(ep, buffer, 8, 4, 0x3000, 9));
    TRY(fi_read(ep, buffer, 32, NULL, 3, 0x4000, 9, &remote));
    TRY(fi_send(ep, buffer, 16, NULL, 6, &error));
    TRY(fi_tsend(ep, buffer, 17, NULL, 6, 0x77, &error));
    TRY(fi_recv(ep, buffer, 48, NULL, FI_ADDR_UNSPEC, &room));
    TRY(fi_control(&ep->fid, FI_SETOPSFLAG, &flags));
    TRY(fi_send(ep, buffer, 16, NULL, 6, &error));
    TRY((long)fi_cancel(&ep->fid, &room));
    printf("from %zd\n", fi_cq_readfrom(cq, room, 100, sources));
    printf("err %zd\n", fi_cq_readerr(cq, &error, 0));
    (void)n;
    TRY(fi_close(&ep->fid));
    TRY(fi_close(&cq->fid));
}

static void refused(int n) { // n operations that are given up, then one that gets through, then one burst of another
    struct fid_cq *cq = open_cq(FI_CQ_FORMAT_CONTEXT);
    struct fid_ep *ep = open_ep(cq, 0);
    long tries = 0, again = 0;
    for (int i = 0; i < n; ++i) {
        again += fi_write(ep, buffer, 1, NULL, 1, (uint64_t)i, 2, &buffer[i % 64]) == -FI_EAGAIN;
        ++tries;
    }
    while (fi_send(ep, buffer, 2, NULL, 1, buffer) == -FI_EAGAIN)
        ++again, ++tries;
    printf("tries %ld\nagain %ld\n", tries + 1, again);
    TRY(fi_close(&ep->fid));
    TRY(fi_close(&cq->fid));
}

static void queues(int n) { // and counters, polled in turns by one thread
    enum { ROUNDS = 50 };
    struct fid_cq *cqs[256];
    struct fid_cntr *cntrs[256];
    struct fi_cntr_attr attr = {0};
    struct fi_cq_entry room;
    long empties = 0;
    for (int i = 0; i < n; ++i) {
        cqs[i] = open_cq(FI_CQ_FORMAT_CONTEXT);
        TRY(fi_cntr_open(domain, &attr, &cntrs[i], NULL));
    }
    for (int round = 0; round < ROUNDS; ++round)
        for (int i = 0; i < n; ++i) {
            empties += fi_cq_read(cqs[i], &room, 1) == -FI_EAGAIN;
            if (fi_cntr_read(cntrs[i]) != 5) exit(1);
        }
    printf("empties %ld\n", empties);
    for (int i = 0; i < n; ++i) {
        TRY(fi_close(&cqs[i]->fid));
        TRY(fi_close(&cntrs[i]->fid));
    }
}

static void nothing(int n) { // a call that succeeds and makes nothing
    struct fid_ep *srx = (struct fid_ep *)0x1234;
    (void)n;
    TRY(fi_srx_context(domain, NULL, &srx, NULL));
    printf("left %p\n", (void *)srx);
}

struct worker {
    struct fid_ep *ep;
    struct fid_cq *cq;
    int n;
    long completions, empties;
};

static void *work(void *argument) {
    struct worker *worker = argument;
    for (int i = 0; i < worker->n; ++i) {
        write_n(worker->ep, 1);
        worker->completions += drain(worker->cq, &worker->empties);
    }
    return NULL;
}

static void threads(int n) { // that post and poll the same objects, then one after the other
    enum { THREADS = 6 };
    struct fid_cq *cq = open_cq(FI_CQ_FORMAT_CONTEXT);
    struct fid_ep *ep = open_ep(cq, 0);
    struct worker workers[2 * THREADS];
    pthread_t ids[THREADS];
    long completions = 0, empties = 0;
    for (int i = 0; i < 2 * THREADS; ++i)
        workers[i] = (struct worker){ep, cq, n, 0, 0};
    for (int i = 0; i < THREADS; ++i)
        TRY(pthread_create(&ids[i], NULL, work, &workers[i]));
    for (int i = 0; i < THREADS; ++i)
        TRY(pthread_join(ids[i], NULL));
    for (int i = THREADS; i < 2 * THREADS; ++i) {
        TRY(pthread_create(&ids[0], NULL, work, &workers[i]));
        TRY(pthread_join(ids[0], NULL));
    }
    for (int i = 0; i < 2 * THREADS; ++i)
        completions += workers[i].completions, empties += workers[i].empties;
    printf("posts %d\ncompletions %ld\nempties %ld\n", 2 * THREADS * n, completions, empties);
    TRY(fi_close(&ep->fid));
    TRY(fi_close(&cq->fid));
}

static void forked(int n) { // the parent opens, both post and poll
    struct fid_cq *cq = open_cq(FI_CQ_FORMAT_CONTEXT);
    struct fid_ep *ep = open_ep(cq, 0);
    long completions, empties = 0;
    write_n(ep, n);
    drain(cq, &empties);
    for (int i = 0; i < 7; ++i)
        drain(cq, &empties); // unreported empty polls: the parent's, not the child's
    fflush(stdout);
    const pid_t child = fork();
    const int posts = child ? 2 * n : 3 * n;
    if (!child) empties = 0;
    write_n(ep, posts);
    completions = drain(cq, &empties);
    printf("%s pid %d posts %d completions %ld empties %ld\n", child ? "parent" : "child", getpid(), posts, completions,
           empties);
    fflush(stdout);
    if (!child) exit(0);
    waitpid(child, NULL, 0);
    TRY(fi_close(&ep->fid));
    TRY(fi_close(&cq->fid));
}

static void unfinished(int n) { // exits with a thread that still polls, nothing closed
    struct fid_cq *cq = open_cq(FI_CQ_FORMAT_CONTEXT);
    long empties = 0;
    for (int i = 0; i < n; ++i)
        drain(cq, &empties);
    printf("empties %ld\n", empties);
    fflush(stdout);
    exit(0);
}

static void reopened(int n) { // queues of changing format at, most likely, the same address
    long got = 0, empties = 0;
    for (int i = 0; i < n; ++i) {
        struct fid_cq *cq = open_cq(i % 2 ? FI_CQ_FORMAT_CONTEXT : FI_CQ_FORMAT_TAGGED);
        struct fid_ep *ep = open_ep(cq, 0);
        write_n(ep, 3);
        got += drain(cq, &empties);
        for (int j = 0; j < i; ++j)
            drain(cq, &empties);
        TRY(fi_close(&ep->fid));
        TRY(fi_close(&cq->fid));
    }
    printf("completions %ld\nempties %ld\n", got, empties);
}

static void *call_all(void *argument) { // with errno set; counts the calls that changed it
    struct worker *worker = argument;
    struct fi_cq_tagged_entry room[4];
    const uint64_t calls[] = {0, 1, 2, 3};
    for (int i = 0; i < 40; ++i) {
        errno = 77;
        switch (calls[i % 4]) {
        case 0: fi_write(worker->ep, buffer, 8, NULL, 1, 0, 2, buffer); break;
        case 1: fi_cq_read(worker->cq, room, 4); break;
        case 2: fi_cq_read(worker->cq, room, 4); break;
        default: fi_setopt(&worker->ep->fid, FI_OPT_ENDPOINT, FI_OPT_TX_SIZE, buffer, 4); break;
        }
        worker->empties += errno != 77;
    }
    return NULL;
}

static void kept_errno(int n) { // also in a thread's first call, which makes its ring
    struct worker worker = {.n = n};
    long changed = 0;
    pthread_t id;
    errno = 77;
    worker.cq = open_cq(FI_CQ_FORMAT_CONTEXT);
    changed += errno != 77;
    errno = 77;
    worker.ep = open_ep(worker.cq, 0);
    changed += errno != 77;
    TRY(pthread_create(&id, NULL, call_all, &worker));
    TRY(pthread_join(id, NULL));
    call_all(&worker);
    errno = 77;
    TRY(fi_close(&worker.ep->fid));
    TRY(fi_close(&worker.cq->fid));
    changed += errno != 77;
    printf("changed %ld\n", changed + worker.empties);
}

static double now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

// ns of one call, the least of many batches: `post` (fi_write), `poll` (empty fi_cq_read), `pair` (a write and the read
// of its completion, by 16).
static void bench(int n) {
    struct fid_cq *cq = open_cq(FI_CQ_FORMAT_DATA), *idle = open_cq(FI_CQ_FORMAT_DATA);
    struct fid_ep *ep = open_ep(cq, 0), *silent = open_ep(cq, FI_SELECTIVE_COMPLETION);
    struct fi_cq_data_entry room[16];
    double post = 1e9, poll = 1e9, pair = 1e9;
    for (int batch = 0; batch < n; ++batch) {
        double t = now_ns();
        for (int i = 0; i < 200; ++i)
            fi_write(silent, buffer, 64, NULL, 1, 0x1000, 2, buffer);
        t = (now_ns() - t) / 200;
        post = t < post ? t : post;
        t = now_ns();
        for (int i = 0; i < 1000; ++i)
            fi_cq_read(idle, room, 16);
        t = (now_ns() - t) / 1000;
        poll = t < poll ? t : poll;
        t = now_ns();
        for (int i = 0; i < 16; ++i) {
            for (int j = 0; j < 16; ++j)
                fi_write(ep, buffer, 64, NULL, 1, 0x1000, 2, buffer);
            fi_cq_read(cq, room, 16);
        }
        t = (now_ns() - t) / 256;
        pair = t < pair ? t : pair;
        if (batch % 8 == 0) usleep(1000); // lets the drain follow: a full ring is cheaper than one with room
    }
    double tick = 1e9;
    for (int batch = 0; batch < 100; ++batch) {
        double t = now_ns();
        for (int i = 0; i < 1000; ++i) {
#if defined(__x86_64__)
            __asm__ volatile("" ::"r"(__builtin_ia32_rdtsc()) : "memory");
#else
            now_ns();
#endif
        }
        t = (now_ns() - t) / 1000;
        tick = t < tick ? t : tick;
    }
    printf("clock %.2f\npost %.2f\npoll %.2f\npair %.2f\n", tick, post, poll, pair);
}

// A message to oneself: a receive, a send and their two completions; ns of one, the least of many batches.
static void loop(int n) {
    struct fid_cq *cq = open_cq(FI_CQ_FORMAT_CONTEXT);
    struct fi_av_attr attr = {.type = FI_AV_MAP};
    struct fi_context2 contexts[2];
    struct fi_cq_entry room[2];
    struct fid_av *av;
    struct fid_ep *ep;
    fi_addr_t self;
    char name[256];
    size_t bytes = sizeof name;
    double least = 1e9;
    TRY(fi_av_open(domain, &attr, &av, NULL));
    TRY(fi_endpoint(domain, info, &ep, NULL));
    TRY(fi_ep_bind(ep, &av->fid, 0));
    TRY(fi_ep_bind(ep, &cq->fid, FI_TRANSMIT | FI_RECV));
    TRY(fi_enable(ep));
    TRY(fi_getname(&ep->fid, name, &bytes));
    TRY(fi_av_insert(av, name, 1, &self, 0, NULL) - 1);
    for (int batch = 0; batch < n; ++batch) {
        double t = now_ns();
        for (int i = 0; i < 200; ++i) {
            ssize_t got = 0;
            TRY(fi_recv(ep, buffer, 32, NULL, FI_ADDR_UNSPEC, &contexts[0]));
            while (fi_send(ep, buffer + 32, 32, NULL, self, &contexts[1]) == -FI_EAGAIN)
                fi_cq_read(cq, room, 0);
            for (ssize_t now; got < 2;)
                if ((now = fi_cq_read(cq, room, 2)) > 0) got += now;
        }
        t = (now_ns() - t) / 200;
        least = t < least ? t : least;
        if (batch % 8 == 0) usleep(1000);
    }
    printf("loop %.1f\n", least);
    TRY(fi_close(&ep->fid));
    TRY(fi_close(&av->fid));
    TRY(fi_close(&cq->fid));
}

int main(int argc, char **argv) {
    static const struct {
        const char *name;
        void (*run)(int);
    } scenarios[] = {{"owners", owners},     {"protections", protections},
                     {"many", many},         {"calls", calls},
                     {"refused", refused},   {"threads", threads},
                     {"forked", forked},     {"unfinished", unfinished},
                     {"reopened", reopened}, {"bench", bench},
                     {"errno", kept_errno},  {"nothing", nothing},
                     {"queues", queues},     {"loop", loop},
                     {"names", names},       {"scalable", scalable},
                     {"shared", shared},     {"memory", memory},
                     {"gda", gda},           {"gda_real", gda_real},
                     {"storm", storm},       {"disorder", disorder},
                     {"flat", flat},         {"full", full},
                     {"killed", killed}};
    for (size_t i = 0; argc > 1 && i < sizeof scenarios / sizeof *scenarios; ++i) {
        if (strcmp(argv[1], scenarios[i].name) != 0) continue;
        open_domain(argc > 3 ? argv[3] : "fake", argc > 4 ? argv[4] : NULL);
        scenarios[i].run(argc > 2 ? atoi(argv[2]) : 1);
        close_domain();
        return 0;
    }
    fprintf(stderr, "usage: fake_driver SCENARIO [N [PROVIDER [FABRIC]]]\n");
    return 2;
}
