#include "ranges.h"

#include "names.h"

#include <core/annotate.h>
#include <core/writer.h>

#include <errno.h>
#include <pthread.h>
#include <sys/mman.h>

namespace efaprof::nvtx {

namespace {

struct Open {
    Said said;
    Handle domain;
    uint64_t t_begin;
    uint32_t generation; // of the process: a child does not end what its parent began
    int level;           // in its domain
};

void note_lost(const char *what) {
    const Text text = text_of(what);
    efaprof_note record{};
    record.name = name(text.at, text.bytes);
    record.h = {now(), 0, EFAPROF_KIND(EFAPROF_SHAPE_NOTE, 2), 0};
    if (void *room = reserve(1)) {
        *static_cast<efaprof_note *>(room) = record;
        publish(room, 1);
    }
}

void write(const Open &open, uint64_t t_end, uint8_t what, uint16_t depth, uint16_t flags) {
    if (!recording() || open.generation != process_now()->generation) return;
    efaprof_range range{};
    range.h.t_end = t_end;
    range.h.x = depth;
    range.name = open.said.name;
    range.payload = open.said.payload;
    range.t_begin = open.t_begin;
    range.domain = domain_id(open.domain);
    range.category = open.said.category;
    range.source = EFAPROF_SOURCE_NVTX;
    range.payload_type = open.said.payload_type;
    range.flags = flags;
    write_range(range, what);
}

// ---- of a thread ----------------------------------------------------------------------------------

constexpr unsigned kMostOpen = 500; // deeper ones are not recorded

struct Stack {
    unsigned open;
    unsigned beyond; // pushed when the stack was full
    unsigned steps;
    Open ranges[kMostOpen];
};

__thread Stack *t_stack __attribute__((tls_model("initial-exec")));
pthread_key_t g_key;
bool g_has_key;

void end_of_thread(void *stack) {
    t_stack = nullptr;
    munmap(stack, sizeof(Stack));
}

__attribute__((constructor)) void make_key() {
    g_has_key = pthread_key_create(&g_key, end_of_thread) == 0;
}

Stack *stack_now() {
    if (t_stack != nullptr) return t_stack;
    const int saved = errno;
    void *page = mmap(nullptr, sizeof(Stack), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (page != MAP_FAILED) {
        t_stack = static_cast<Stack *>(page);
        if (g_has_key) pthread_setspecific(g_key, page);
    }
    errno = saved;
    return t_stack;
}

// The innermost range of the domain; kMostOpen when it has none.
unsigned innermost(const Stack &stack, Handle domain) {
    for (unsigned i = stack.open; i-- > 0;)
        if (stack.ranges[i].domain == domain) return i;
    return kMostOpen;
}

} // namespace

void mark(Handle domain, const Said &said) {
    const uint64_t t = now();
    const Stack *stack = t_stack;
    write({said, domain, t, process_now()->generation, 0}, t, EFAPROF_SPAN_INSTANT,
          stack != nullptr ? static_cast<uint16_t>(stack->open) : 0, 0);
}

int push(Handle domain, const Said &said) {
    Stack *stack = stack_now();
    if (stack == nullptr) return -1;
    const unsigned outer = innermost(*stack, domain);
    const int level = outer < kMostOpen ? stack->ranges[outer].level + 1 : 0;
    if (stack->open == kMostOpen) {
        if (stack->beyond++ == 0) note_lost("NVTX ranges nest deeper than is recorded");
        return level;
    }
    if (said.is_step && stack->steps++ == 0) step_began(said.name, EFAPROF_SOURCE_NVTX);
    stack->ranges[stack->open++] = {said, domain, now(), process_now()->generation, level};
    return level;
}

int pop(Handle domain) {
    const uint64_t t_end = now();
    Stack *stack = t_stack;
    if (stack == nullptr) return -1;
    if (stack->beyond != 0) {
        --stack->beyond;
        return -1;
    }
    const unsigned at = innermost(*stack, domain);
    if (at == kMostOpen) return -1;
    const Open range = stack->ranges[at];
    const bool is_last = at + 1 == stack->open;
    for (unsigned i = at + 1; i < stack->open; ++i)
        stack->ranges[i - 1] = stack->ranges[i];
    --stack->open;
    if (range.said.is_step) --stack->steps;
    write(range, t_end, EFAPROF_SPAN_RANGE, static_cast<uint16_t>(at), is_last ? 0 : 1);
    return range.level;
}

// ---- of the process -------------------------------------------------------------------------------
// A range stands in one of the places that its id gives it. A place that is being filled or emptied has the id kBusy.

namespace {

constexpr RangeId kBusy = 1;
constexpr RangeId kFirst = 0xefa0ull << 48;
constexpr unsigned kPlaces = 16;
constexpr unsigned kGroups = 512; // a power of two

struct Started {
    RangeId id; // 0: free
    Open range;
};
Started g_started[kGroups][kPlaces];
RangeId g_ids = kFirst;
bool g_full;

Started *group_of(RangeId id) {
    return g_started[static_cast<unsigned>((id * 0x9E3779B97F4A7C15u) >> 40) & (kGroups - 1)];
}

bool turn(Started &place, RangeId from, RangeId to) {
    return __atomic_compare_exchange_n(&place.id, &from, to, false, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED);
}

} // namespace

RangeId start(RangeId id, Handle domain, const Said &said) {
    if (id == 0) id = __atomic_fetch_add(&g_ids, 1, __ATOMIC_RELAXED);
    if (said.is_step) step_began(said.name, EFAPROF_SOURCE_NVTX);
    Started *group = group_of(id);
    for (unsigned i = 0; i < kPlaces; ++i) {
        if (!turn(group[i], 0, kBusy)) continue;
        group[i].range = {said, domain, now(), process_now()->generation, 0};
        __atomic_store_n(&group[i].id, id, __ATOMIC_RELEASE);
        return id;
    }
    if (!__atomic_exchange_n(&g_full, true, __ATOMIC_RELAXED))
        note_lost("more NVTX ranges were open than are recorded");
    return id;
}

void end(RangeId id) {
    const uint64_t t_end = now();
    if (id <= kBusy) return;
    Started *group = group_of(id);
    for (unsigned i = 0; i < kPlaces; ++i) {
        if (__atomic_load_n(&group[i].id, __ATOMIC_RELAXED) != id || !turn(group[i], id, kBusy)) continue;
        const Open range = group[i].range;
        __atomic_store_n(&group[i].id, RangeId{0}, __ATOMIC_RELEASE);
        return write(range, t_end, EFAPROF_SPAN_RANGE, 0, 1);
    }
}

} // namespace efaprof::nvtx
