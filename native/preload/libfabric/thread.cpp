#include "thread.h"

#include "record.h"

#include <errno.h>
#include <pthread.h>
#include <rdma/fi_eq.h>
#include <rdma/fi_errno.h>
#include <string.h>
#include <sys/mman.h>

namespace efaprof::ofi {

__thread Thread *this_thread __attribute__((tls_model("initial-exec")));

namespace {
uint32_t no_fork_word = 1; // where the kernel cannot wipe a page in children
}
uint32_t *fork_word = &no_fork_word;

namespace {

constexpr unsigned kProbe = 16; // places where an entry may stand

Thread *threads; // all of them, in use or not
uint32_t last_fork_generation = 1;
pthread_key_t exit_key;
bool exit_key_made;

void flush(Thread &thread) {
    flush_retries(thread, 0);
    for (CqSeen &seen : thread.cqs) {
        if (seen.empties == 0) continue;
        write_idle(seen);
        seen.empties = 0;
    }
}

void thread_exits(void *value) {
    auto *thread = static_cast<Thread *>(value);
    if (thread->fork_generation == *fork_word) flush(*thread);
    this_thread = nullptr;
    __atomic_store_n(&thread->in_use, 0, __ATOMIC_RELEASE);
}

void reset(Thread &thread) {
    constexpr size_t kept = offsetof(Thread, fork_generation);
    memset(reinterpret_cast<char *>(&thread) + kept, 0, sizeof thread - kept);
    thread.fork_generation = *fork_word;
}

Thread *claim() {
    for (Thread *thread = __atomic_load_n(&threads, __ATOMIC_ACQUIRE); thread; thread = thread->next) {
        uint32_t idle = 0;
        if (__atomic_compare_exchange_n(&thread->in_use, &idle, 1, false, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED))
            return thread;
    }
    void *memory = mmap(nullptr, sizeof(Thread), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) return nullptr;
    auto *thread = static_cast<Thread *>(memory);
    __atomic_store_n(&thread->in_use, 1, __ATOMIC_RELAXED);
    thread->next = __atomic_load_n(&threads, __ATOMIC_RELAXED);
    while (!__atomic_compare_exchange_n(&threads, &thread->next, thread, false, __ATOMIC_RELEASE, __ATOMIC_RELAXED)) {
    }
    return thread;
}

// In a forked child only this thread exists: the others' entries may be used again, and this one starts afresh, since
// what it holds back belongs to the parent's record.
void after_fork() {
    for (Thread *thread = threads; thread; thread = thread->next)
        if (thread != this_thread) thread->in_use = 0;
    *fork_word = ++last_fork_generation;
}

__attribute__((constructor)) void prepare_threads() {
    exit_key_made = pthread_key_create(&exit_key, thread_exits) == 0;
    void *page = mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (page == MAP_FAILED || madvise(page, 4096, MADV_WIPEONFORK) != 0) { // kernels before 4.14
        pthread_atfork(nullptr, nullptr, after_fork);
        return;
    }
    fork_word = static_cast<uint32_t *>(page);
    *fork_word = last_fork_generation;
}

bool same_call(const Op &a, const Op &b) {
    return a.what == b.what && a.ep == b.ep && a.ctx == b.ctx && a.raddr == b.raddr && a.fi_addr == b.fi_addr &&
           a.len == b.len;
}

// Changes to `retry` are bracketed so that flush_at_exit, on another thread, sees whole entries or none.
class RetryChange {
public:
    explicit RetryChange(Thread &thread) : seq_(&thread.retry_seq) {
        __atomic_store_n(seq_, *seq_ + 1, __ATOMIC_RELAXED);
        __atomic_thread_fence(__ATOMIC_RELEASE);
    }
    ~RetryChange() { __atomic_store_n(seq_, *seq_ + 1, __ATOMIC_RELEASE); }
    RetryChange(const RetryChange &) = delete;
    RetryChange &operator=(const RetryChange &) = delete;

private:
    uint32_t *seq_;
};

void drop_retry(Thread &thread, unsigned i) {
    const RetryChange change(thread);
    thread.retry[i] = thread.retry[--thread.retries];
}

void write_retry(Thread &thread, const Retry &retry) {
    write_op(thread, retry.op, retry.t_first, retry.t_last, -FI_EAGAIN, retry.attempts, retry.nest);
}

int find_retry(Thread &thread, const Op &op) {
    for (unsigned i = 0; i < thread.retries; ++i) {
        if (!same_call(thread.retry[i].op, op)) continue;
        if (thread.retry[i].endpoints_closed == current_endpoints_closed()) return static_cast<int>(i);
        const Retry old = thread.retry[i]; // perhaps of another endpoint that stood here
        drop_retry(thread, i);
        write_retry(thread, old);
        return -1;
    }
    return -1;
}

// The entry of `fid`, else a free one, else one that nobody has asked for since something was closed, else (sixteen
// objects in use share this stretch) the first.
template <class Seen, unsigned Entries> Seen &place_of(Seen (&all)[Entries], uint64_t fid) {
    const unsigned home = spread(fid, Entries);
    Seen *vacant = nullptr, *stale = nullptr;
    for (unsigned i = 0; i < kProbe; ++i) {
        Seen &seen = all[(home + i) & (Entries - 1)];
        if (seen.fid == fid) return seen;
        if (seen.fid == 0 && !vacant) vacant = &seen;
        if (seen.generation != current_generation() && !stale) stale = &seen;
    }
    return vacant ? *vacant : stale ? *stale : all[home];
}

template <class Seen> bool is_fresh(const Seen &seen, uint64_t fid) {
    return seen.fid == fid && seen.generation == current_generation();
}

} // namespace

Thread *thread_slow() {
    const int saved = errno;
    if (*fork_word == 0) after_fork();
    Thread *thread = this_thread ? this_thread : claim();
    if (thread) {
        reset(*thread);
        this_thread = thread;
        if (exit_key_made) pthread_setspecific(exit_key, thread);
    }
    errno = saved;
    return thread;
}

void retry_later(Thread &thread, const Op &op, uint64_t t_first, uint64_t t_last, uint8_t nest) {
    const int found = find_retry(thread, op);
    if (found >= 0) {
        const RetryChange change(thread);
        thread.retry[found].t_last = t_last;
        ++thread.retry[found].attempts;
        return;
    }
    if (thread.retries == kRetries) {
        unsigned oldest = 0;
        for (unsigned i = 1; i < kRetries; ++i)
            if (thread.retry[i].t_last < thread.retry[oldest].t_last) oldest = i;
        const Retry old = thread.retry[oldest];
        drop_retry(thread, oldest);
        write_retry(thread, old);
    }
    const RetryChange change(thread);
    thread.retry[thread.retries++] = {op, t_first, t_last, 1, current_endpoints_closed(), nest};
}

bool retry_ended(Thread &thread, const Op &op, Retry *ended) {
    const int found = find_retry(thread, op);
    if (found < 0) return false;
    *ended = thread.retry[found];
    drop_retry(thread, static_cast<unsigned>(found));
    return true;
}

void flush_retries(Thread &thread, uint64_t ep) {
    for (unsigned i = thread.retries; i-- > 0;) {
        if (ep && thread.retry[i].op.ep != ep) continue;
        const Retry old = thread.retry[i];
        drop_retry(thread, i);
        write_retry(thread, old);
    }
}

const EpSeen &ep_seen_slow(Thread &thread, uint64_t ep) {
    EpSeen &seen = place_of(thread.eps, ep);
    if (is_fresh(seen, ep)) return seen;
    const RegistryLock lock;
    const Object *object = registry_find(ep);
    seen = {ep, current_generation(), object ? static_cast<uint32_t>(object->tx_flags) : 0,
            object ? static_cast<uint32_t>(object->rx_flags) : 0};
    return seen;
}

// Counts of empty polls that belong to another queue (at the same address, or one that gives way) are written.
CqSeen &cq_seen_slow(Thread &thread, uint64_t cq) {
    CqSeen &seen = place_of(thread.cqs, cq);
    if (is_fresh(seen, cq)) return seen;
    const CqSeen before = seen;
    {
        const RegistryLock lock;
        const Object *object = registry_find(cq);
        const Object *domain = object ? registry_find(object->parent) : nullptr;
        seen.fid = cq;
        seen.id = object ? object->id : 0;
        seen.generation = current_generation();
        seen.format = object ? static_cast<uint8_t>(object->format) : 0;
        seen.has_source = domain && domain->has_source;
    }
    if (before.fid != cq || before.id != seen.id) {
        seen.empties = 0;
        if (before.empties) write_idle(before);
    }
    return seen;
}

CntrSeen &cntr_seen_slow(Thread &thread, uint64_t cntr) {
    CntrSeen &seen = place_of(thread.cntrs, cntr);
    if (!is_fresh(seen, cntr)) seen = {cntr, current_generation(), {false, false}, {0, 0}};
    return seen;
}

void flush_idle_everywhere(uint64_t cq) {
    Thread *const own = thread_now();
    if (!own) return;
    for (Thread *thread = __atomic_load_n(&threads, __ATOMIC_ACQUIRE); thread; thread = thread->next) {
        if (!__atomic_load_n(&thread->in_use, __ATOMIC_ACQUIRE)) continue;
        for (CqSeen &seen : thread->cqs) {
            if (seen.fid != cq) continue;
            CqSeen taken = seen;
            taken.empties = __atomic_exchange_n(&seen.empties, 0, __ATOMIC_RELAXED);
            if (taken.empties) write_idle(taken);
        }
    }
}

void flush_at_exit() {
    Thread *const own = __atomic_load_n(&threads, __ATOMIC_ACQUIRE) ? thread_now() : nullptr;
    if (!own) return;
    flush(*own);
    for (Thread *thread = __atomic_load_n(&threads, __ATOMIC_ACQUIRE); thread; thread = thread->next) {
        if (thread == own || !__atomic_load_n(&thread->in_use, __ATOMIC_ACQUIRE)) continue;
        for (CqSeen &seen : thread->cqs)
            if (seen.fid && seen.empties) write_idle(seen);
        const uint32_t seq = __atomic_load_n(&thread->retry_seq, __ATOMIC_ACQUIRE);
        Retry copy[kRetries];
        memcpy(static_cast<void *>(copy), thread->retry, sizeof copy);
        const uint32_t count = thread->retries;
        __atomic_thread_fence(__ATOMIC_ACQUIRE);
        if ((seq & 1) || __atomic_load_n(&thread->retry_seq, __ATOMIC_RELAXED) != seq || count > kRetries) continue;
        for (uint32_t i = 0; i < count; ++i)
            write_retry(*own, copy[i]);
    }
}

} // namespace efaprof::ofi
