#include "names.h"

#include <core/writer.h>

#include <pthread.h>
#include <regex.h>
#include <stdlib.h>
#include <string.h>
#include <wchar.h>

namespace efaprof::nvtx {

// ---- texts ----------------------------------------------------------------------------------------

Text text_of(const void *ascii) {
    const auto *at = static_cast<const char *>(ascii);
    return {at != nullptr ? at : "", at != nullptr ? strnlen(at, EFAPROF_NAME_MAX + 1) : 0};
}

static unsigned encode(uint32_t c, char *into) {
    if (c < 0x80) {
        into[0] = static_cast<char>(c);
        return 1;
    }
    if (c >= 0x110000 || (c >= 0xd800 && c < 0xe000)) c = 0xfffd;
    const unsigned more = c < 0x800 ? 1 : c < 0x10000 ? 2 : 3;
    static const unsigned char lead[] = {0, 0xc0, 0xe0, 0xf0};
    into[0] = static_cast<char>(lead[more] | c >> 6 * more);
    for (unsigned i = 1; i <= more; ++i)
        into[i] = static_cast<char>(0x80 | (c >> 6 * (more - i) & 0x3f));
    return more + 1;
}

Narrow::Narrow(const void *wide) : size(0) {
    const auto *at = static_cast<const wchar_t *>(wide);
    if (at == nullptr) return;
    for (; *at != 0 && size <= EFAPROF_NAME_MAX; ++at) // one byte more than a record holds: it is counted as cut
        size += encode(static_cast<uint32_t>(*at), bytes + size);
}

// ---- handles --------------------------------------------------------------------------------------
// Ours are pointers to what they mean. Those of another tool stand in a table: only ever added to, looked up without a
// lock. When it is full, the names of later handles are not known.

namespace {
struct Meaning {
    uint64_t bytes;
    char text[];
};
struct Entry {
    Handle handle;
    Meaning *meaning;
};
constexpr unsigned kEntries = 1u << 14; // a power of two
Entry g_entries[kEntries];
bool g_foreign; // handles are another tool's
pthread_mutex_t g_adding = PTHREAD_MUTEX_INITIALIZER;

unsigned place_of(Handle handle) {
    return static_cast<unsigned>((reinterpret_cast<uintptr_t>(handle) * 0x9E3779B97F4A7C15u) >> 40) & (kEntries - 1);
}

void add(Handle handle, Meaning *meaning) {
    pthread_mutex_lock(&g_adding);
    unsigned at = place_of(handle);
    for (unsigned i = 0; i < kEntries; ++i, at = (at + 1) & (kEntries - 1)) {
        Entry &entry = g_entries[at];
        if (entry.handle != nullptr && entry.handle != handle) continue;
        __atomic_store_n(&entry.meaning, meaning, __ATOMIC_RELEASE); // of a handle used again: the newest
        __atomic_store_n(&entry.handle, handle, __ATOMIC_RELEASE);
        break;
    }
    pthread_mutex_unlock(&g_adding);
}

const Meaning *found(Handle handle) {
    unsigned at = place_of(handle);
    for (unsigned i = 0; i < kEntries; ++i, at = (at + 1) & (kEntries - 1)) {
        const Handle there = __atomic_load_n(&g_entries[at].handle, __ATOMIC_ACQUIRE);
        if (there == handle) return __atomic_load_n(&g_entries[at].meaning, __ATOMIC_ACQUIRE);
        if (there == nullptr) return nullptr;
    }
    return nullptr;
}
} // namespace

Handle remember(Handle handle, Text text) {
    auto *meaning = static_cast<Meaning *>(malloc(sizeof(Meaning) + text.bytes));
    if (meaning == nullptr) return handle;
    meaning->bytes = text.bytes;
    memcpy(meaning->text, text.at, text.bytes);
    if (handle == nullptr) return meaning;
    __atomic_store_n(&g_foreign, true, __ATOMIC_RELEASE);
    add(handle, meaning);
    return handle;
}

Text text_of_handle(Handle handle) {
    if (handle == nullptr) return {"", 0};
    const bool foreign = __atomic_load_n(&g_foreign, __ATOMIC_ACQUIRE);
    const Meaning *meaning = foreign ? found(handle) : static_cast<const Meaning *>(handle);
    if (meaning == nullptr) return {"", 0};
    return {meaning->text, meaning->bytes};
}

uint64_t domain_id(Handle domain) {
    const Text text = text_of_handle(domain);
    return text.bytes != 0 ? name(text.at, text.bytes) : 0;
}

// ---- steps ----------------------------------------------------------------------------------------

static regex_t g_pattern;
static bool g_has_pattern;
static uint64_t g_known[1024]; // id, with its lowest bit saying whether it is a step: of the names seen last

void read_step_pattern() {
    const char *given = getenv("EFAPROF_STEP");
    char anchored[512];
    if (given == nullptr || *given == 0 || strlen(given) > sizeof anchored - 5) return;
    strcat(strcat(strcpy(anchored, "^("), given), ")$");
    g_has_pattern = regcomp(&g_pattern, anchored, REG_EXTENDED | REG_NOSUB) == 0;
}

bool is_step(uint64_t id, Text text) {
    if (!g_has_pattern) return false;
    uint64_t &known = g_known[(id >> 1) % (sizeof g_known / sizeof *g_known)];
    const uint64_t seen = __atomic_load_n(&known, __ATOMIC_RELAXED);
    if (seen >> 1 == id >> 1 && seen != 0) return (seen & 1) != 0;
    char whole[EFAPROF_NAME_MAX + 1];
    const uint64_t bytes = text.bytes < EFAPROF_NAME_MAX ? text.bytes : EFAPROF_NAME_MAX;
    memcpy(whole, text.at, bytes);
    whole[bytes] = 0;
    const bool matches = regexec(&g_pattern, whole, 0, nullptr, 0) == 0;
    __atomic_store_n(&known, (id & ~uint64_t{1}) | (matches ? 1 : 0), __ATOMIC_RELAXED);
    return matches;
}

} // namespace efaprof::nvtx
