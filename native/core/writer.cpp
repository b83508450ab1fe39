#include "writer.h"

#include <cerrno>
#include <cstring>
#include <ctime>
#include <pthread.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace efaprof {

__thread State t_state __attribute__((tls_model("initial-exec")));

// ---- thread end -----------------------------------------------------------------------------------
// The key's destructor frees the ring. Destructors of other keys may still record afterwards: their thread then
// takes a ring again and arms the key again, for which POSIX gives four rounds.

static pthread_key_t g_key;
static bool g_has_key;

static void end_of_thread(void *) {
    State &s = t_state;
    enter(s);
    Ring *ring = s.ring;
    const bool own = process_now()->generation == s.generation; // in a forked child the ring is the parent's
    s.ring = nullptr;
    s.header = nullptr;
    s.edge = s.head = s.limit = 0;
    __atomic_signal_fence(__ATOMIC_SEQ_CST);
    if (ring != nullptr && own) ring_release(*ring);
    leave(s);
}

// At load, so that the key is among the first 32, for which glibc needs no malloc to keep a value: a thread's
// first record may be in a signal handler.
__attribute__((constructor)) static void make_key() {
    g_has_key = pthread_key_create(&g_key, end_of_thread) == 0;
}

static void arm_end_of_thread() {
    constexpr pthread_key_t keys_without_malloc = 32;
    if (g_has_key && g_key < keys_without_malloc) pthread_setspecific(g_key, &g_key);
    // Else: the ring of a dead thread is found by its tid (ring_take).
}

// ---- writing --------------------------------------------------------------------------------------

static void add(uint64_t *count, uint64_t n) {
    __atomic_fetch_add(count, n, __ATOMIC_RELAXED);
}

// For counts that only the ring's thread writes, outside of handlers.
static void add_own(uint64_t *count) {
    __atomic_store_n(count, __atomic_load_n(count, __ATOMIC_RELAXED) + 1, __ATOMIC_RELAXED);
}

void *reserve_nested(State &s) {
    // Atomic against a handler inside this handler. After a fork the header may be the parent's.
    const bool own = s.header != nullptr && process_now()->generation == s.generation;
    add(own ? &s.header->nested : &s.nested, 1);
    return nullptr;
}

void publish_lost(State &s) {
    s.edge = 0;
    s.failed += 1;
    leave(s);
}

static void *slot_at(State &s) {
    return s.slots + (s.head & s.mask) * EFAPROF_SLOT_BYTES;
}

// Room for a record in the ring that the thread has: asks the drain's tail, pads at the wrap. NULL = full.
static void *place(State &s, uint64_t slots) {
    const uint64_t capacity = s.mask + 1;
    const uint64_t left = capacity - (s.head & s.mask);
    const uint64_t pad = left < slots ? left : 0;
    if (s.head + pad + slots > s.limit) {
        const uint64_t tail = __atomic_load_n(&s.header->tail, __ATOMIC_ACQUIRE);
        if (tail <= s.head && tail + capacity > s.limit) s.limit = tail + capacity; // else: no tail of ours
        if (s.head + pad + slots > s.limit) return nullptr;
    }
    if (pad != 0) {
        auto *record = static_cast<efaprof_head *>(slot_at(s));
        *record = efaprof_head{0, 0, EFAPROF_PAD, static_cast<uint16_t>(pad)};
        s.head += pad;
    }
    const uint64_t lap_end = (s.head | s.mask) + 1;
    s.edge = lap_end < s.limit ? lap_end : s.limit;
    return slot_at(s);
}

static bool announce_thread(State &s) {
    void *room = place(s, sizeof(efaprof_thread) / EFAPROF_SLOT_BYTES);
    if (room == nullptr) return false;
    efaprof_thread record{};
    record.h = {now(), 0, EFAPROF_KIND(EFAPROF_SHAPE_THREAD, 0), 0};
    record.pid = process_now()->pid;
    record.tid = __atomic_load_n(&s.ring->owner, __ATOMIC_RELAXED);
    record.process_start = process_now()->start;
    prctl(PR_GET_NAME, record.comm);
    memcpy(room, &record, sizeof record);
    s.head += sizeof record / EFAPROF_SLOT_BYTES;
    __atomic_store_n(&s.header->head, s.head, __ATOMIC_RELEASE);
    s.announce = 0;
    return true;
}

// may_make: making the place where to count costs system calls, and may fail each time.
static void count_without_ring(State &s, Process &process, uint32_t tid, bool may_make) {
    s.failed += 1;
    efaprof_header *header =
        may_make ? ring_overflow(process, tid) : __atomic_load_n(&process.overflow, __ATOMIC_ACQUIRE);
    if (header == nullptr) return;
    add(&header->failed, __atomic_exchange_n(&s.failed, 0u, __ATOMIC_RELAXED));
    add(&header->nested, __atomic_exchange_n(&s.nested, 0u, __ATOMIC_RELAXED));
}

static void attach(State &s, Ring &ring) {
    s.slots = ring.slots;
    s.mask = ring.capacity - 1;
    s.head = __atomic_load_n(&ring.header->head, __ATOMIC_ACQUIRE); // with all that its last thread wrote
    s.limit = s.edge = s.head;
    s.announce = 1;
    s.ring = &ring;
    s.header = ring.header;
    add(&s.header->failed, __atomic_exchange_n(&s.failed, 0u, __ATOMIC_RELAXED));
    add(&s.header->nested, __atomic_exchange_n(&s.nested, 0u, __ATOMIC_RELAXED));
    arm_end_of_thread();
}

// The thread's ring in this generation of the process, taken when need be. false: this record is lost, and counted.
static bool have_ring(State &s) {
    constexpr uint32_t records_between_tries = 4096;
    Process *process = process_find();
    if (process == nullptr) return false;
    if (s.generation != process->generation) {
        s.header = nullptr;
        s.ring = nullptr;
        s.head = s.edge = s.limit = 0;
        s.waits = 0;
        s.generation = process->generation;
        rings_forget(process->generation, 0);
    }
    if (process->recording == 0) return false;
    if (s.ring != nullptr) return true;
    const bool tries = s.waits == 0;
    const auto tid = tries ? static_cast<uint32_t>(syscall(SYS_gettid)) : 0;
    Ring *ring = tries ? ring_take(*process, tid) : nullptr;
    if (ring == nullptr) {
        s.waits = tries ? records_between_tries : s.waits - 1;
        count_without_ring(s, *process, tid, tries);
        return false;
    }
    attach(s, *ring);
    return true;
}

static void *give_up(State &s) {
    leave(s);
    return nullptr;
}

static void *drop(State &s) {
    add_own(&s.header->dropped);
    return give_up(s);
}

// First record of the thread, after a fork, without a ring, or not a record at all.
__attribute__((noinline, cold)) static void *reserve_rare(State &s, uint32_t slots) {
    const int saved = errno;
    const bool have = have_ring(s);
    errno = saved;
    if (!have) return give_up(s);
    if (slots == 0 || slots > kMostSlots) {
        add(&s.header->failed, 1);
        return give_up(s);
    }
    if (s.announce != 0 && !announce_thread(s)) return drop(s); // full, and its THREAD record must come first
    void *room = place(s, slots);
    return room != nullptr ? room : drop(s);
}

void *reserve_slow(State &s, uint32_t slots) {
    const bool ready =
        s.generation == process_now()->generation && s.header != nullptr && s.announce == 0 && slots - 1 < kMostSlots;
    if (EFAPROF_UNLIKELY(!ready)) return reserve_rare(s, slots);
    void *room = place(s, slots);
    return EFAPROF_LIKELY(room != nullptr) ? room : drop(s);
}

// ---- records of our own -----------------------------------------------------------------------------

static uint64_t hash_of(const char *text, uint64_t bytes) {
    uint64_t hash = 0xcbf29ce484222325u;
    for (uint64_t i = 0; i < bytes; ++i)
        hash = (hash ^ static_cast<unsigned char>(text[i])) * 0x100000001b3u;
    return hash;
}

// Names are written again after this many slots: a bounded run gives up its oldest slots.
constexpr uint64_t kNameLastsSlots = 1u << 16;

static bool is_seen(const State &s, uint64_t id) {
    if (s.ring == nullptr || s.generation != process_now()->generation) return false;
    const NameSeen &seen = s.ring->seen[id % kNamesSeen];
    return seen.id == id && s.head - seen.head < kNameLastsSlots;
}

uint64_t name(const char *text, uint64_t bytes) {
    const bool is_cut = bytes > EFAPROF_NAME_MAX;
    if (is_cut) bytes = EFAPROF_NAME_MAX;
    const uint64_t id = hash_of(text, bytes);
    State &s = t_state;
    if (is_seen(s, id)) return id;
    const auto slots = static_cast<uint32_t>(1 + (bytes + EFAPROF_SLOT_BYTES - 1) / EFAPROF_SLOT_BYTES);
    auto *room = static_cast<unsigned char *>(reserve(slots));
    if (room == nullptr) return id;
    struct efaprof_name record {};
    record.h = {now(), 0, EFAPROF_KIND(EFAPROF_SHAPE_NAME, 0), static_cast<uint16_t>(bytes)};
    record.id = id;
    memcpy(room, &record, sizeof record);
    memset(room + sizeof record, 0, (slots - 1) * EFAPROF_SLOT_BYTES);
    memcpy(room + sizeof record, text, bytes);
    s.ring->seen[id % kNamesSeen] = {id, s.head};
    if (is_cut) add_own(&s.header->names_cut);
    publish(room, slots);
    return id;
}

static int64_t nanoseconds(clockid_t clock) {
    timespec at;
    clock_gettime(clock, &at);
    return static_cast<int64_t>(at.tv_sec) * 1000000000 + at.tv_nsec;
}

static efaprof_clock_sample sample_clock() {
    efaprof_clock_sample best{};
    for (int i = 0; i < 8; ++i) { // the tightest of a few: one may be interrupted
        efaprof_clock_sample sample{};
        const uint64_t before = now();
        sample.monotonic_ns = nanoseconds(CLOCK_MONOTONIC);
        sample.realtime_ns = nanoseconds(CLOCK_REALTIME);
        const uint64_t width = now() - before;
        const uint64_t half = (width + 1) / 2;
        sample.h = {before + width / 2, half < UINT32_MAX ? static_cast<uint32_t>(half) : UINT32_MAX,
                    EFAPROF_KIND(EFAPROF_SHAPE_CLOCK, 0), 0};
        if (i == 0 || sample.h.dur < best.h.dur) best = sample;
    }
    return best;
}

static void write_one_slot(const void *record) {
    void *room = reserve(1);
    if (room == nullptr) return;
    memcpy(room, record, EFAPROF_SLOT_BYTES);
    publish(room, 1);
}

} // namespace efaprof

// ---- C ABI ------------------------------------------------------------------------------------------
using namespace efaprof;

extern "C" {

uint32_t efaprof_abi(void) {
    return EFAPROF_ABI_VERSION << 16 | EFAPROF_FORMAT_VERSION;
}

uint64_t efaprof_now(void) {
    return now();
}

uint32_t efaprof_clock_id(void) {
    return clock_find();
}

void efaprof_set_producer(const char *producer) {
    ring_set_producer(producer);
}

void *efaprof_reserve(uint32_t slots) {
    return reserve(slots);
}

void efaprof_publish(void *record, uint32_t slots) {
    publish(record, slots);
}

uint64_t efaprof_name(const char *text, uint64_t bytes) {
    return name(text, bytes);
}

int efaprof_recording(void) {
    return recording() ? 1 : 0;
}

void efaprof_pause(int paused) {
    Process *process = process_find();
    if (process == nullptr || process->recording == 0) return;
    if (paused != EFAPROF_PAUSE_NONE && __atomic_load_n(process->paused, __ATOMIC_RELAXED) == EFAPROF_PAUSE_NONE)
        __atomic_store_n(paused_at(*process), now(), __ATOMIC_RELAXED);
    __atomic_store_n(process->paused, static_cast<uint32_t>(paused), __ATOMIC_RELEASE);
}

uint32_t efaprof_paused(void) {
    const Process *process = process_find();
    return process != nullptr && process->recording != 0 ? __atomic_load_n(process->paused, __ATOMIC_ACQUIRE)
                                                         : static_cast<uint32_t>(EFAPROF_PAUSE_NONE);
}

uint32_t efaprof_steps_begun(void) {
    const Process *process = process_find();
    return process != nullptr && process->recording != 0 ? __atomic_load_n(process->paused + 1, __ATOMIC_ACQUIRE) : 0u;
}

void efaprof_stop(int stopped) {
    if (stopped != 0) __atomic_store_n(&efaprof_here.stopped_at, now(), __ATOMIC_RELAXED);
    __atomic_store_n(&efaprof_here.stopped, stopped != 0 ? 1u : 0u, __ATOMIC_RELEASE);
}

void efaprof_restart(void) {
    const int saved = errno;
    const uint32_t closed = process_now()->generation;
    process_renew();
    rings_forget(0, closed);
    errno = saved;
}

void efaprof_sample_clock(void) {
    const efaprof_clock_sample sample = sample_clock();
    write_one_slot(&sample);
}

void efaprof_counter(const char *text, uint64_t bytes, int64_t value, uint32_t what) {
    struct efaprof_counter record {};
    record.name = name(text, bytes);
    record.h = {now(), 0, static_cast<uint16_t>(EFAPROF_KIND(EFAPROF_SHAPE_COUNTER, what & 0xff)), 0};
    record.value = value;
    write_one_slot(&record);
}

} // extern "C"
