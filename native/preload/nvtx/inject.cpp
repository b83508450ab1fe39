// The entry that NVTX looks for in the library that NVTX_INJECTION64_PATH names. It is called once by every program or
// library that compiled NVTX in, at its first NVTX call. A tool that the user had named there himself comes first: it
// fills the client's table, and our functions call what it put there.
#include "names.h"
#include "ranges.h"

#include <core/writer.h>

#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>

#define EFAPROF_EXPORT extern "C" __attribute__((visibility("default")))

EFAPROF_EXPORT int InitializeInjectionNvtx2(efaprof::nvtx::GetExportTable get_export_table);

namespace efaprof::nvtx {
namespace {

// ---- the other tool -------------------------------------------------------------------------------

// What it put into the tables; null where it takes no part. Of several clients the first: a tool gives all the same.
Function g_next[kModules][kFunctions];
void *g_tool;
bool g_attached; // it took part in some client

template <class F> F next(unsigned module, unsigned function) {
    return reinterpret_cast<F>(__atomic_load_n(&g_next[module][function], __ATOMIC_ACQUIRE));
}

template <class F> F symbol_of_tool(const char *symbol) {
    return g_tool != nullptr ? reinterpret_cast<F>(dlsym(g_tool, symbol)) : nullptr;
}

void begin() {
    efaprof_set_producer("nvtx");
    read_step_pattern();
    const char *path = getenv("EFAPROF_NVTX_NEXT");
    if (path == nullptr || *path == 0) return;
    g_tool = dlopen(path, RTLD_LAZY);
    // Us again, by another path: there is no other tool.
    if (symbol_of_tool<Initialize>("InitializeInjectionNvtx2") == InitializeInjectionNvtx2) g_tool = nullptr;
}

void begin_once() {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, begin);
}

// ---- what is said ---------------------------------------------------------------------------------

Said said(Text text) {
    const uint64_t id = name(text.at, text.bytes);
    return {id, 0, 0, EFAPROF_PAYLOAD_NONE, is_step(id, text)};
}

Said said(const Attributes *attributes) {
    if (attributes == nullptr || attributes->size < sizeof *attributes) return said(Text{"", 0});
    const Narrow narrow(attributes->message_type == kMessageUnicode ? attributes->message : nullptr);
    Text text = narrow.text();
    if (attributes->message_type == kMessageAscii) text = text_of(attributes->message);
    if (attributes->message_type == kMessageRegistered) text = text_of_handle(attributes->message);
    Said found = said(text);
    found.category = attributes->category;
    const bool has_payload =
        attributes->payload_type >= EFAPROF_PAYLOAD_U64 && attributes->payload_type <= EFAPROF_PAYLOAD_F32;
    if (has_payload) {
        const bool is_half = attributes->payload_type >= EFAPROF_PAYLOAD_U32;
        found.payload_type = static_cast<uint8_t>(attributes->payload_type);
        found.payload = is_half ? attributes->payload & UINT32_MAX : attributes->payload;
    }
    return found;
}

// ---- our functions --------------------------------------------------------------------------------
// Each hands on what it was given. Where the other tool numbers ranges or makes handles, the client gets its.

template <class... A> bool hand_on(unsigned module, unsigned function, A... arguments) {
    const auto other = next<void (*)(A...)>(module, function);
    if (other != nullptr) other(arguments...);
    return other != nullptr;
}

template <class... A> int nested(unsigned module, unsigned function, int level, A... arguments) {
    const auto other = next<int (*)(A...)>(module, function);
    return other != nullptr ? other(arguments...) : level;
}

template <class... A> RangeId id_of(unsigned module, unsigned function, A... arguments) {
    const auto other = next<RangeId (*)(A...)>(module, function);
    return other != nullptr ? other(arguments...) : 0;
}

template <class... A> Handle handle_of(unsigned module, unsigned function, Text text, A... arguments) {
    const auto other = next<Handle (*)(A...)>(module, function);
    if (other == nullptr && !__atomic_load_n(&g_attached, __ATOMIC_ACQUIRE)) return remember(nullptr, text);
    // Another tool must never be shown a handle of ours; and it may give none, where it wants nothing of a domain.
    const Handle given = other != nullptr ? other(arguments...) : nullptr;
    return given != nullptr ? remember(given, text) : given;
}

void mark_ex(const Attributes *a) {
    mark(nullptr, said(a));
    hand_on(kCore, kMarkEx, a);
}
void mark_a(const char *text) {
    mark(nullptr, said(text_of(text)));
    hand_on(kCore, kMarkA, text);
}
void mark_w(const wchar_t *text) {
    mark(nullptr, said(Narrow(text).text()));
    hand_on(kCore, kMarkW, text);
}
RangeId start_ex(const Attributes *a) {
    return start(id_of(kCore, kRangeStartEx, a), nullptr, said(a));
}
RangeId start_a(const char *text) {
    return start(id_of(kCore, kRangeStartA, text), nullptr, said(text_of(text)));
}
RangeId start_w(const wchar_t *text) {
    return start(id_of(kCore, kRangeStartW, text), nullptr, said(Narrow(text).text()));
}
void end_of(RangeId id) {
    end(id);
    if (!is_own(id)) hand_on(kCore, kRangeEnd, id);
}
int push_ex(const Attributes *a) {
    return nested(kCore, kRangePushEx, push(nullptr, said(a)), a);
}
int push_a(const char *text) {
    return nested(kCore, kRangePushA, push(nullptr, said(text_of(text))), text);
}
int push_w(const wchar_t *text) {
    return nested(kCore, kRangePushW, push(nullptr, said(Narrow(text).text())), text);
}
int pop_() {
    return nested(kCore, kRangePop, pop(nullptr));
}

void domain_mark_ex(Handle domain, const Attributes *a) {
    mark(domain, said(a));
    hand_on(kCore2, kDomainMarkEx, domain, a);
}
RangeId domain_start_ex(Handle domain, const Attributes *a) {
    return start(id_of(kCore2, kDomainRangeStartEx, domain, a), domain, said(a));
}
void domain_end(Handle domain, RangeId id) {
    end(id);
    if (!is_own(id)) hand_on(kCore2, kDomainRangeEnd, domain, id);
}
int domain_push_ex(Handle domain, const Attributes *a) {
    return nested(kCore2, kDomainRangePushEx, push(domain, said(a)), domain, a);
}
int domain_pop(Handle domain) {
    return nested(kCore2, kDomainRangePop, pop(domain), domain);
}
Handle register_a(Handle domain, const char *text) {
    return handle_of(kCore2, kRegisterStringA, text_of(text), domain, text);
}
Handle register_w(Handle domain, const wchar_t *text) {
    return handle_of(kCore2, kRegisterStringW, Narrow(text).text(), domain, text);
}
Handle create_a(const char *text) {
    return handle_of(kCore2, kDomainCreateA, text_of(text), text);
}
Handle create_w(const wchar_t *text) {
    return handle_of(kCore2, kDomainCreateW, Narrow(text).text(), text);
}

// ---- tables ---------------------------------------------------------------------------------------

struct Ours {
    unsigned module, function;
    Function with;
};

template <class F> constexpr Function generic(F function) {
    return reinterpret_cast<Function>(function);
}

const Ours kOurs[] = {
    {kCore, kMarkEx, generic(mark_ex)},
    {kCore, kMarkA, generic(mark_a)},
    {kCore, kMarkW, generic(mark_w)},
    {kCore, kRangeStartEx, generic(start_ex)},
    {kCore, kRangeStartA, generic(start_a)},
    {kCore, kRangeStartW, generic(start_w)},
    {kCore, kRangeEnd, generic(end_of)},
    {kCore, kRangePushEx, generic(push_ex)},
    {kCore, kRangePushA, generic(push_a)},
    {kCore, kRangePushW, generic(push_w)},
    {kCore, kRangePop, generic(pop_)},
    {kCore2, kDomainMarkEx, generic(domain_mark_ex)},
    {kCore2, kDomainRangeStartEx, generic(domain_start_ex)},
    {kCore2, kDomainRangeEnd, generic(domain_end)},
    {kCore2, kDomainRangePushEx, generic(domain_push_ex)},
    {kCore2, kDomainRangePop, generic(domain_pop)},
    {kCore2, kRegisterStringA, generic(register_a)},
    {kCore2, kRegisterStringW, generic(register_w)},
    {kCore2, kDomainCreateA, generic(create_a)},
    {kCore2, kDomainCreateW, generic(create_w)},
};
constexpr unsigned kOursCount = sizeof kOurs / sizeof *kOurs;

// The client's pointer for one of our functions, null when the client has none.
Function *slot_of(const Callbacks &callbacks, const Ours &ours) {
    Function **table = nullptr;
    unsigned size = 0;
    if (callbacks.module_functions(static_cast<int>(ours.module), &table, &size) == 0 || table == nullptr)
        return nullptr;
    return ours.function < size ? table[ours.function] : nullptr;
}

int attach(GetExportTable get_export_table) {
    const auto *callbacks = static_cast<const Callbacks *>(get_export_table(kCallbacks));
    const auto tool = symbol_of_tool<Initialize>("InitializeInjectionNvtx2");
    Function before[kOursCount] = {};
    Function *slots[kOursCount] = {};
    const bool can = callbacks != nullptr && callbacks->struct_size >= sizeof *callbacks;
    for (unsigned i = 0; can && i < kOursCount; ++i)
        if ((slots[i] = slot_of(*callbacks, kOurs[i])) != nullptr) before[i] = *slots[i];
    const int told = tool != nullptr ? tool(get_export_table) : 0;
    if (told != 0) __atomic_store_n(&g_attached, true, __ATOMIC_RELEASE);
    if (!can || process_find() == nullptr || process_find()->recording == 0) return told;
    for (unsigned i = 0; i < kOursCount; ++i) {
        if (slots[i] == nullptr) continue;
        const Ours &ours = kOurs[i];
        const Function now_there = *slots[i];
        Function none = nullptr;
        if (told != 0 && now_there != before[i] && now_there != ours.with)
            __atomic_compare_exchange_n(&g_next[ours.module][ours.function], &none, now_there, false, __ATOMIC_ACQ_REL,
                                        __ATOMIC_RELAXED);
        *slots[i] = ours.with;
    }
    return 1;
}

uint8_t always_enabled(Handle) {
    return 1;
}

} // namespace
} // namespace efaprof::nvtx

using namespace efaprof::nvtx;

EFAPROF_EXPORT int InitializeInjectionNvtx2(GetExportTable get_export_table) {
    begin_once();
    return attach(get_export_table);
}

// Clients ask the payload extension whether a domain is wanted, and take the answer of a tool without the extension for
// no: then they send it no events at all. So we say yes where nobody else does; the rest of the extension is the other
// tool's.
EFAPROF_EXPORT int InitializeInjectionNvtxExtension(Extension *extension) {
    begin_once();
    const bool is_payload = extension->module == kPayloadModule && extension->segment_count > 0 &&
                            extension->segments[0].slots > kDomainIsEnabled;
    intptr_t *enabled = is_payload ? &extension->segments[0].functions[kDomainIsEnabled] : nullptr;
    const intptr_t before = enabled != nullptr ? *enabled : 0;
    const auto tool = symbol_of_tool<InitializeExtension>("InitializeInjectionNvtxExtension");
    const int told = tool != nullptr ? tool(extension) : 0;
    if (enabled == nullptr) return told;
    if (*enabled == before) *enabled = reinterpret_cast<intptr_t>(always_enabled);
    return 1;
}
