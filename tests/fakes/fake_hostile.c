// Scenarios that ask for much at once: forks among posting threads, ends in the wrong order, millions of operations.
#define _GNU_SOURCE
#include "fake_driver.h"

#include <pthread.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_rma.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static double now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

static void post(struct fid_ep *ep, long n) {
    for (long i = 0; i < n; ++i)
        TRY(fi_write(ep, buffer, sizeof buffer, NULL, 1, 0x1000, 2, &buffer[i % 64]));
}

// ---- forks while threads post
static atomic_bool stop;
static atomic_long posted;

static void *keep_posting(void *argument) {
    while (!stop) {
        post(argument, 10);
        posted += 10;
        usleep(100);
    }
    return NULL;
}

static void child(struct fid_ep *ep, int number, int report) {
    const long n = 50 + number;
    post(ep, n);
    if (write(report, &n, sizeof n) != sizeof n) _exit(1);
    if (number % 3 == 0) _exit(0); // without our destructors
    if (number % 3 == 1) {         // and once more, from a child
        const pid_t pid = fork();
        if (pid == 0) {
            post(ep, n);
            if (write(report, &n, sizeof n) != sizeof n) _exit(1);
            exit(0);
        }
        waitpid(pid, NULL, 0);
    }
    exit(0);
}

void storm(int n) {
    enum { THREADS = 3 };
    struct fid_cq *cq = open_cq(FI_CQ_FORMAT_CONTEXT);
    struct fid_ep *ep = open_ep(cq, FI_SELECTIVE_COMPLETION); // no completions: the queue is never full
    pthread_t ids[THREADS];
    int ends[2], failed = 0, status;
    long sum = 0, one;
    TRY(pipe(ends));
    fflush(stdout);
    for (int i = 0; i < THREADS; ++i)
        TRY(pthread_create(&ids[i], NULL, keep_posting, ep));
    for (int i = 0; i < n; ++i) {
        const pid_t pid = fork();
        if (pid == 0) child(ep, i, ends[1]);
        if (i % 4 == 3)
            while (waitpid(-1, &status, 0) > 0) // four at a time
                failed += status != 0;
    }
    while (waitpid(-1, &status, 0) > 0)
        failed += status != 0;
    stop = true;
    for (int i = 0; i < THREADS; ++i)
        TRY(pthread_join(ids[i], NULL));
    close(ends[1]);
    while (read(ends[0], &one, sizeof one) == sizeof one)
        sum += one;
    printf("posts %ld\nfailed %d\n", sum + posted, failed);
    TRY(fi_close(&ep->fid));
    TRY(fi_close(&cq->fid));
}

// ---- closing in the wrong order
void disorder(int n) {
    for (int i = 0; i < n; ++i) {
        struct fid_cq *cq = open_cq(FI_CQ_FORMAT_CONTEXT);
        struct fid_ep *ep = open_ep(cq, FI_SELECTIVE_COMPLETION);
        struct fid_cq *other = open_cq(FI_CQ_FORMAT_MSG);
        struct fi_cq_msg_entry room;
        post(ep, 3);
        TRY(fi_cq_read(cq, &room, 1) + FI_EAGAIN);
        TRY(fi_close(&cq->fid)); // its endpoint still uses it
        post(ep, 2);
        TRY(fi_cq_read(other, &room, 1) + FI_EAGAIN);
        TRY(fi_close(&ep->fid));
        if (i % 2) TRY(fi_close(&other->fid)); // the others stay open to the end
    }
    printf("posts %d\n", 5 * n);
}

// ---- many operations
static long resident_kib(void) {
    long pages = 0, resident = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    if (file && fscanf(file, "%ld %ld", &pages, &resident) != 2) resident = 0;
    if (file) fclose(file);
    return resident * (sysconf(_SC_PAGESIZE) >> 10);
}

static void *post_and_read(void *argument) {
    const long n = *(long *)argument;
    struct fid_cq *cq = open_cq(FI_CQ_FORMAT_CONTEXT);
    struct fid_ep *ep = open_ep(cq, 0);
    struct fi_cq_entry room[16];
    for (long i = 0; i < n; i += 16) {
        post(ep, 16);
        TRY(fi_cq_read(cq, room, 16) - 16);
    }
    TRY(fi_close(&ep->fid));
    TRY(fi_close(&cq->fid));
    return NULL;
}

void flat(int n) { // million operations, by two threads at a time
    enum { THREADS = 2, MILLION = 1000000 };
    long each = MILLION / THREADS, warm = 0;
    double t = 0;
    for (int i = 0; i <= n; ++i) { // the first million makes the rings
        pthread_t ids[THREADS];
        for (int j = 0; j < THREADS; ++j)
            TRY(pthread_create(&ids[j], NULL, post_and_read, &each));
        for (int j = 0; j < THREADS; ++j)
            TRY(pthread_join(ids[j], NULL));
        if (i == 0) warm = resident_kib(), t = now_ns();
    }
    printf("grown_kib %ld\nns %.1f\nposts %ld\n", resident_kib() - warm, (now_ns() - t) / n / MILLION,
           THREADS * each * (n + 1));
}

void full(int n) { // thousand operations that nobody makes room for; ns: the least of the later ones
    struct fid_cq *cq = open_cq(FI_CQ_FORMAT_CONTEXT);
    struct fid_ep *ep = open_ep(cq, FI_SELECTIVE_COMPLETION);
    double least = 1e9;
    for (int i = 0; i < n; ++i) {
        double t = now_ns();
        post(ep, 1000);
        t = (now_ns() - t) / 1000;
        if (i >= n / 2 && t < least) least = t;
    }
    printf("ns %.1f\nposts %ld\n", least, 1000l * n);
    TRY(fi_close(&ep->fid));
    TRY(fi_close(&cq->fid));
}

void killed(int n) { // thousand empty polls, and then the end without a farewell
    struct fid_cq *cq = open_cq(FI_CQ_FORMAT_CONTEXT);
    struct fi_cq_entry room;
    for (long i = 0; i < 1000l * n; ++i)
        TRY(fi_cq_read(cq, &room, 1) + FI_EAGAIN);
    printf("empties %ld\n", 1000l * n);
    fflush(stdout);
    _exit(0);
}
