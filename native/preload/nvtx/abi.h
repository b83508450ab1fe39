// What an NVTX client and a tool agree on: the callback tables of NVTX 3, as far as we take part. Declared here, so
// that no NVTX header is needed to build.
#pragma once

#include <stddef.h>
#include <stdint.h>

namespace efaprof::nvtx {

// ---- tables ---------------------------------------------------------------------------------------
// A client (each program or library that compiled NVTX in is one of its own) gives the tool a function that names its
// tables; a table is an array of pointers to the client's function pointers.
using Function = void (*)();
using GetExportTable = const void *(*)(uint32_t id);
using Initialize = int (*)(GetExportTable);

constexpr uint32_t kCallbacks = 1; // id of the table of callbacks
struct Callbacks {
    size_t struct_size;
    int (*module_functions)(int module, Function ***table, unsigned *size);
};

enum Module { kCore = 1, kCore2 = 5 };
constexpr unsigned kModules = 7; // one past the last
constexpr unsigned kFunctions = 16;

enum Core {
    kMarkEx = 1,
    kMarkA,
    kMarkW,
    kRangeStartEx,
    kRangeStartA,
    kRangeStartW,
    kRangeEnd,
    kRangePushEx,
    kRangePushA,
    kRangePushW,
    kRangePop,
};
enum Core2 {
    kDomainMarkEx = 1,
    kDomainRangeStartEx,
    kDomainRangeEnd,
    kDomainRangePushEx,
    kDomainRangePop,
    kRegisterStringA = 10,
    kRegisterStringW,
    kDomainCreateA,
    kDomainCreateW,
};

// ---- the payload extension ------------------------------------------------------------------------
struct ExtensionSegment {
    size_t id;
    size_t slots;
    intptr_t *functions;
};
struct Extension {
    uint16_t version, struct_size, module, compatibility;
    size_t segment_count;
    ExtensionSegment *segments;
    intptr_t (*export_function)(uint32_t id);
    const void *info;
};
using InitializeExtension = int (*)(Extension *);
constexpr uint16_t kPayloadModule = 2;
constexpr size_t kDomainIsEnabled = 7; // its slot in the only segment

// ---- events ---------------------------------------------------------------------------------------
using Handle = const void *; // of a domain or a registered string
using RangeId = uint64_t;

enum Message { kMessageNone = 0, kMessageAscii = 1, kMessageUnicode = 2, kMessageRegistered = 3 };

// A client may be older than a field, and then says a smaller size.
struct Attributes {
    uint16_t version;
    uint16_t size;
    uint32_t category;
    int32_t color_type;
    uint32_t color;
    int32_t payload_type; // as enum efaprof_payload
    int32_t reserved;
    uint64_t payload;
    int32_t message_type;
    const void *message;
};
static_assert(sizeof(Attributes) == 48 && offsetof(Attributes, message) == 40, "as NVTX 3 lays it out");

} // namespace efaprof::nvtx
