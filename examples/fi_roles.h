// What the two processes of a transfer do: the initiator posts, the target receives and verifies. A TCP socket between
// them carries addresses, keys and results.
#pragma once

#include "fi_side.h"

#include <poll.h>
#include <pthread.h>
#include <sys/socket.h>
#include <time.h>

static const size_t region_most = 32u << 20;
static const double patience_s = 30;

struct start { // initiator → target: what comes. An empty provider ends the session.
    char provider[64];
    struct test_case test;
    uint64_t slots, name_bytes;
    char name[256];
};
struct ready { // target → initiator
    uint64_t key, base, name_bytes;
    char name[256];
};
struct result { // target → initiator, at the end
    uint64_t posts, eagain, completions, errors, empties, checksum;
};

static double now_s(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

// ---- control socket
static void put(int fd, const void *data, size_t bytes) {
    for (size_t done = 0; done < bytes;) {
        const ssize_t n = send(fd, (const char *)data + done, bytes - done, MSG_NOSIGNAL);
        if (n <= 0) die("control socket closed", -FI_EIO);
        done += (size_t)n;
    }
}

static void get(int fd, void *data, size_t bytes) {
    if (recv(fd, data, bytes, MSG_WAITALL) != (ssize_t)bytes) die("control socket closed", -FI_EIO);
}

static bool has_input(int fd) {
    struct pollfd wait = {.fd = fd, .events = POLLIN};
    return poll(&wait, 1, 0) > 0;
}

// ---- sizes that both sides derive from the case
static uint64_t slots_of_region(const struct test_case *test) {
    const uint64_t most = region_most / test->size ? region_most / test->size : 1;
    const uint64_t least = (uint64_t)test->window * (uint64_t)test->threads;
    const uint64_t slots = test->op == OP_ATOMIC ? 4 : most > least ? most : least;
    return test->count < slots ? test->count : slots;
}

// What the region's slot i holds in the end (at the start, for reads).
static void expected_slot(const struct test_case *test, uint64_t i, char *buffer) {
    const uint64_t slots = slots_of_region(test);
    if (test->op == OP_WRITE || test->op == OP_WRITEDATA) { // the last operation on it
        fill(buffer, test->size, i + (test->count - 1 - i) / slots * slots);
    } else if (test->op == OP_ATOMIC) { // the sum of all operations on it
        memset(buffer, 0, test->size);
        for (uint64_t j = i; j < test->count; j += slots)
            for (uint64_t at = 0; at < test->size; at += 8) {
                uint64_t word;
                memcpy(&word, buffer + at, 8);
                word += word_of(j, at);
                memcpy(buffer + at, &word, 8);
            }
    } else {
        fill(buffer, test->size, i);
    }
}

// The sum over what the verifying side looks at: every message, every read, or every slot that was written.
static uint64_t expected_checksum(const struct test_case *test) {
    const bool by_slot = test->op == OP_WRITE || test->op == OP_WRITEDATA || test->op == OP_ATOMIC;
    const uint64_t slots = slots_of_region(test);
    char *buffer = malloc(test->size);
    uint64_t sum = 0;
    if (!buffer) die("no memory", -FI_ENOMEM);
    for (uint64_t i = 0; i < (by_slot ? slots : test->count); ++i) {
        if (by_slot)
            expected_slot(test, i, buffer);
        else
            fill(buffer, test->size, test->op == OP_READ ? i % slots : i);
        sum += checksum(buffer, test->size);
    }
    free(buffer);
    return sum;
}

// ---- initiator
struct initiator {
    struct side *side;
    struct ready peer;
    uint64_t remote_slots;
    _Atomic uint64_t retired; // operations of which a completion was seen
};

struct worker {
    struct initiator *run;
    struct slot *slots;
    uint64_t first, end;
};

static ssize_t post(const struct initiator *run, struct slot *slot, uint64_t flags, bool by_msg) {
    struct side *side = run->side;
    const struct test_case *test = side->test;
    const uint64_t i = slot->index, size = test->size, key = run->peer.key;
    const uint64_t raddr = run->peer.base + i % run->remote_slots * size;
    void *const desc = fi_mr_desc(side->local_mr), *const buffer = slot->buffer, *descs[] = {desc};
    struct fid_ep *const ep = side->ep;
    const fi_addr_t peer = side->peer;
    const struct iovec iov = {buffer, size};
    const struct fi_rma_iov rma = {raddr, size, key};
    const struct fi_msg_rma rma_msg = {&iov, descs, 1, peer, &rma, 1, slot, i};
    const struct fi_msg msg = {&iov, descs, 1, peer, slot, i};
    const struct fi_msg_tagged tagged = {&iov, descs, 1, peer, i, 0, slot, i};
    const struct fi_ioc ioc = {buffer, size / 8};
    const struct fi_rma_ioc rma_ioc = {raddr, size / 8, key};
    const struct fi_msg_atomic atomic = {&ioc, descs, 1, peer, &rma_ioc, 1, FI_UINT64, FI_SUM, slot, 0};
    switch (test->op) {
    case OP_WRITE:
        if (test->inject) return fi_inject_write(ep, buffer, size, peer, raddr, key);
        if (by_msg) return fi_writemsg(ep, &rma_msg, flags);
        return fi_write(ep, buffer, size, desc, peer, raddr, key, slot);
    case OP_WRITEDATA:
        if (test->inject) return fi_inject_writedata(ep, buffer, size, i, peer, raddr, key);
        if (by_msg) return fi_writemsg(ep, &rma_msg, flags | FI_REMOTE_CQ_DATA);
        return fi_writedata(ep, buffer, size, desc, i, peer, raddr, key, slot);
    case OP_READ:
        if (by_msg) return fi_readmsg(ep, &rma_msg, flags);
        return fi_read(ep, buffer, size, desc, peer, raddr, key, slot);
    case OP_SEND:
        if (test->inject) return fi_inject(ep, buffer, size, peer);
        if (by_msg) return fi_sendmsg(ep, &msg, flags);
        return fi_send(ep, buffer, size, desc, peer, slot);
    case OP_SENDDATA:
        if (test->inject) return fi_injectdata(ep, buffer, size, i, peer);
        if (by_msg) return fi_sendmsg(ep, &msg, flags | FI_REMOTE_CQ_DATA);
        return fi_senddata(ep, buffer, size, desc, i, peer, slot);
    case OP_TAGGED:
        if (test->inject) return fi_tinject(ep, buffer, size, peer, i);
        if (by_msg) return fi_tsendmsg(ep, &tagged, flags);
        return fi_tsend(ep, buffer, size, desc, peer, i, slot);
    case OP_ATOMIC:
        if (test->inject) return fi_inject_atomic(ep, buffer, size / 8, peer, raddr, key, FI_UINT64, FI_SUM);
        if (by_msg) return fi_atomicmsg(ep, &atomic, flags);
        return fi_atomic(ep, buffer, size / 8, desc, peer, raddr, key, FI_UINT64, FI_SUM, slot);
    default: // OP_CANCEL: nobody sends, so only a cancellation completes it
        return fi_recv(ep, buffer, size, desc, FI_ADDR_UNSPEC, slot);
    }
}

static void initiator_completed(struct side *side, struct slot *slot, uint64_t flags, uint64_t data) {
    (void)flags;
    (void)data;
    if (slot < side->slots || slot >= side->slots + side->slot_count)
        die("completion with a foreign context", -FI_EOTHER);
    if (side->test->op == OP_READ && !side->test->counter)
        side->counts.checksum += checksum(slot->buffer, side->test->size);
    slot->busy = 0;
}

static void post_until_taken(struct initiator *run, struct slot *slot, uint64_t flags, bool by_msg) {
    struct side *side = run->side;
    unsigned spins = 0;
    for (ssize_t ret; (ret = post(run, slot, flags, by_msg)) != 0; pause_now_and_then(&spins)) {
        if (ret != -FI_EAGAIN) die("post", ret);
        ++side->counts.eagain;
        poll_cq(side, false);
    }
    ++side->counts.posts;
}

static void wait_for_slots(struct side *side, struct slot *slots, int count) {
    unsigned spins = 0;
    for (int i = 0; i < count; ++i)
        while (slots[i].busy)
            if (!poll_cq(side, true)) pause_now_and_then(&spins);
}

// Counter mode: every entry is suppressed, only the count tells. Reads are summed once it says that all have ended.
static void wait_for_count(struct side *side, uint64_t count, struct slot *slots, int used) {
    unsigned spins = 0;
    if (side->test->wait) TRY(fi_cntr_wait(side->cntr, count, (int)(patience_s * 1000)));
    while (fi_cntr_read(side->cntr) < count)
        pause_now_and_then(&spins);
    for (int i = 0; i < used; ++i) {
        if (side->test->op == OP_READ) side->counts.checksum += checksum(slots[i].buffer, side->test->size);
        slots[i].busy = 0;
    }
}

static void *work(void *argument) {
    struct worker *worker = argument;
    struct side *side = worker->run->side;
    const struct test_case *test = side->test;
    for (uint64_t i = worker->first; i < worker->end; ++i) {
        const int place = (int)((i - worker->first) % (uint64_t)test->window);
        struct slot *slot = &worker->slots[place];
        const bool batch_ends = place == test->window - 1 || i + 1 == worker->end;
        unsigned spins = 0;
        while (slot->busy)
            if (!poll_cq(side, true)) pause_now_and_then(&spins);
        slot->index = i;
        if (test->op != OP_READ && test->op != OP_CANCEL) fill(slot->buffer, test->size, i);
        const bool completes = !test->inject && !test->counter && (!test->selective || batch_ends);
        slot->busy = completes;
        // Selective: plain calls are silent, the last of a batch asks for its entry. More: by fi_*msg, all but the
        // last.
        const bool by_msg = (test->selective && batch_ends) || test->more;
        const uint64_t flags = (completes && by_msg ? FI_COMPLETION : 0) | (test->more && !batch_ends ? FI_MORE : 0);
        post_until_taken(worker->run, slot, flags, by_msg);
        if (test->op == OP_CANCEL) TRY(fi_cancel(&side->ep->fid, slot));
        if (batch_ends && test->counter) wait_for_count(side, i + 1, worker->slots, place + 1);
        if (batch_ends && test->selective) wait_for_slots(side, worker->slots, place + 1);
    }
    wait_for_slots(side, worker->slots, test->window);
    return NULL;
}

static void run_workers(struct initiator *run) {
    const struct test_case *test = run->side->test;
    const int threads = test->threads;
    pthread_t ids[64];
    struct worker workers[64];
    for (int t = 0; t < threads; ++t) {
        const uint64_t first = test->count * (uint64_t)t / (uint64_t)threads;
        const uint64_t end = test->count * (uint64_t)(t + 1) / (uint64_t)threads;
        workers[t] = (struct worker){run, run->side->slots + (size_t)t * (size_t)test->window, first, end};
        if (threads > 1 && pthread_create(&ids[t], NULL, work, &workers[t]) != 0) die("pthread_create", -FI_ENOMEM);
    }
    if (threads == 1) work(&workers[0]);
    for (int t = 0; threads > 1 && t < threads; ++t)
        pthread_join(ids[t], NULL);
}

// ---- target
static void post_receive(struct side *side, struct slot *slot, uint64_t index) {
    void *const desc = fi_mr_desc(side->local_mr);
    const bool tagged = side->test->op == OP_TAGGED;
    slot->index = index;
    for (ssize_t ret;;) {
        ret = tagged ? fi_trecv(side->ep, slot->buffer, side->test->size, desc, side->peer, index, 0, slot)
                     : fi_recv(side->ep, slot->buffer, side->test->size, desc, side->peer, slot);
        if (ret == 0) break;
        if (ret != -FI_EAGAIN) die("fi_recv", ret);
        ++side->counts.eagain;
    }
    ++side->counts.posts;
}

static void target_completed(struct side *side, struct slot *slot, uint64_t flags, uint64_t data) {
    const struct test_case *test = side->test;
    if (test->op == OP_WRITEDATA) { // unsolicited: there is no context to look at
        if (test->format >= FI_CQ_FORMAT_DATA && (!(flags & FI_REMOTE_CQ_DATA) || data >= test->count))
            die("immediate data of no operation", -FI_EOTHER);
        return;
    }
    if (slot < side->slots || slot >= side->slots + side->slot_count)
        die("completion with a foreign context", -FI_EOTHER);
    side->counts.checksum += checksum(slot->buffer, test->size);
    if (side->counts.posts < test->count) post_receive(side, slot, side->counts.posts);
}

static bool has_messages(const struct side *side) {
    const struct test_case *test = side->test;
    const bool tells =
        test->op == OP_WRITEDATA || test->op == OP_SEND || test->op == OP_SENDDATA || test->op == OP_TAGGED;
    return !tells || side->counts.completions == test->count;
}

// Sums the slots that hold what they should, from the first one not yet summed on.
static bool has_writes(struct side *side, uint64_t *summed, char *buffer) {
    const struct test_case *test = side->test;
    if (test->op != OP_WRITE && test->op != OP_WRITEDATA && test->op != OP_ATOMIC) return true;
    for (const uint64_t slots = slots_of_region(test); *summed < slots; ++*summed) {
        const char *found = side->region + *summed * test->size;
        expected_slot(test, *summed, buffer);
        if (memcmp(found, buffer, test->size) != 0) return false;
        side->counts.checksum += checksum(found, test->size);
    }
    return true;
}

// The initiator has ended: the last payloads may still be under way.
static void await_the_rest(struct side *side) {
    char *buffer = malloc(side->test->size);
    if (!buffer) die("no memory", -FI_ENOMEM);
    const double until = now_s() + patience_s;
    uint64_t summed = 0;
    unsigned spins = 0;
    while (!(has_messages(side) && has_writes(side, &summed, buffer)) && now_s() < until)
        if (!poll_cq(side, true)) pause_now_and_then(&spins);
    free(buffer);
}

static void serve_case(int control, struct start *start) {
    const struct test_case *test = &start->test;
    struct side side;
    struct fi_info *info = find_info(start->provider, test);
    if (!info) die("fi_getinfo", -FI_ENODATA);
    open_side(&side, info, test);
    side.completed = target_completed;
    const bool receives = test->op == OP_SEND || test->op == OP_SENDDATA || test->op == OP_TAGGED;
    const uint64_t receives_at_once = receives ? test->count < 64 ? test->count : 64 : 1;
    open_memory(&side, start->slots * test->size, receives_at_once);
    if (test->op == OP_READ)
        for (uint64_t i = 0; i < start->slots; ++i)
            fill(side.region + i * test->size, test->size, i);
    TRY(fi_av_insert(side.av, start->name, 1, &side.peer, 0, NULL) == 1 ? 0 : -FI_EADDRNOTAVAIL);
    struct ready ready = {.key = fi_mr_key(side.mr), .name_bytes = sizeof ready.name};
    if (info->domain_attr->mr_mode & FI_MR_VIRT_ADDR) ready.base = (uint64_t)(uintptr_t)side.region;
    TRY(fi_getname(&side.ep->fid, ready.name, &ready.name_bytes));
    for (uint64_t i = 0; receives && i < receives_at_once; ++i)
        post_receive(&side, &side.slots[i], i);
    put(control, &ready, sizeof ready);

    char word;
    unsigned spins = 0;
    while (!has_input(control))
        if (!poll_cq(&side, false)) pause_now_and_then(&spins);
    get(control, &word, 1);
    await_the_rest(&side);
    const struct result result = {side.counts.posts,  side.counts.eagain,  side.counts.completions,
                                  side.counts.errors, side.counts.empties, side.counts.checksum};
    put(control, &result, sizeof result);
    get(control, &word, 1);
    close_side(&side);
}

static int serve(int control) {
    for (struct start start;;) {
        get(control, &start, sizeof start);
        if (!start.provider[0]) return 0;
        serve_case(control, &start);
    }
}
