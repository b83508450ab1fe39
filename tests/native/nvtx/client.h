// A small NVTX client of our own: the same tables and the same search for a tool as NVTX 3, and as much of its
// interface as the tests call. Every program or library that includes it is a client of its own, as with NVTX.
#pragma once

#include <dlfcn.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <wchar.h>

typedef void (*function)(void);

enum { CORE = 1, CORE2 = 5, FUNCTIONS = 16 };
static function core[FUNCTIONS], core2[FUNCTIONS], nothing[FUNCTIONS];
static function *core_table[FUNCTIONS], *core2_table[FUNCTIONS], *nothing_table[FUNCTIONS];

// What a function pointer is before anyone asked for a tool.
static void not_begun(void) {}

static int module_functions(int module, function ***table, unsigned *size) {
    *table = module == CORE ? core_table : module == CORE2 ? core2_table : nothing_table;
    *size = FUNCTIONS;
    return 1;
}
static const struct {
    size_t size;
    int (*module_functions)(int, function ***, unsigned *);
} callbacks = {sizeof callbacks, module_functions};

static const void *export_table(uint32_t id) {
    return id == 1 ? &callbacks : NULL;
}

static int begin_nvtx(void) {
    for (int i = 1; i < FUNCTIONS; ++i) {
        core_table[i] = &core[i];
        core2_table[i] = &core2[i];
        nothing_table[i] = &nothing[i];
        core[i] = core2[i] = nothing[i] = not_begun;
    }
    const char *path = getenv("NVTX_INJECTION64_PATH");
    void *tool = path != NULL ? dlopen(path, RTLD_LAZY) : NULL;
    int (*init)(const void *(*)(uint32_t)) = NULL;
    if (tool != NULL) *(void **)&init = dlsym(tool, "InitializeInjectionNvtx2");
    const int told = init != NULL ? init(export_table) : 0;
    for (int i = 1; i < FUNCTIONS; ++i) {
        if (!told || core[i] == not_begun) core[i] = NULL;
        if (!told || core2[i] == not_begun) core2[i] = NULL;
        if (!told || nothing[i] == not_begun) nothing[i] = NULL;
    }
    return told;
}

struct attributes {
    uint16_t version, size;
    uint32_t category;
    int32_t color_type;
    uint32_t color;
    int32_t payload_type, reserved;
    union {
        uint64_t u64;
        int64_t i64;
        double f64;
        uint32_t u32;
        int32_t i32;
        float f32;
    } payload;
    int32_t message_type;
    const void *message;
};
enum { ASCII = 1, WIDE = 2, REGISTERED = 3 };

static inline struct attributes saying(int type, const void *message) {
    struct attributes a = {3, sizeof a, 0, 0, 0, 0, 0, {0}, type, message};
    return a;
}

#define CALL(table, number, type, none, arguments) (table[number] != NULL ? ((type)table[number])arguments : (none))

static inline void mark_ex(const struct attributes *a) {
    if (core[1]) ((void (*)(const void *))core[1])(a);
}
static inline void mark_a(const char *text) {
    if (core[2]) ((void (*)(const char *))core[2])(text);
}
static inline void mark_w(const wchar_t *text) {
    if (core[3]) ((void (*)(const wchar_t *))core[3])(text);
}
static inline uint64_t start_ex(const struct attributes *a) {
    return CALL(core, 4, uint64_t(*)(const void *), 0, (a));
}
static inline uint64_t start_a(const char *text) {
    return CALL(core, 5, uint64_t(*)(const char *), 0, (text));
}
static inline uint64_t start_w(const wchar_t *text) {
    return CALL(core, 6, uint64_t(*)(const wchar_t *), 0, (text));
}
static inline void end(uint64_t id) {
    if (core[7]) ((void (*)(uint64_t))core[7])(id);
}
static inline int push_ex(const struct attributes *a) {
    return CALL(core, 8, int (*)(const void *), -2, (a));
}
static inline int push_a(const char *text) {
    return CALL(core, 9, int (*)(const char *), -2, (text));
}
static inline int push_w(const wchar_t *text) {
    return CALL(core, 10, int (*)(const wchar_t *), -2, (text));
}
static inline int pop(void) {
    return CALL(core, 11, int (*)(void), -2, ());
}
static inline void name_category(uint32_t category, const char *text) {
    if (core[12]) ((void (*)(uint32_t, const char *))core[12])(category, text);
}
static inline void domain_mark_ex(const void *domain, const struct attributes *a) {
    if (core2[1]) ((void (*)(const void *, const void *))core2[1])(domain, a);
}
static inline uint64_t domain_start_ex(const void *domain, const struct attributes *a) {
    return CALL(core2, 2, uint64_t(*)(const void *, const void *), 0, (domain, a));
}
static inline void domain_end(const void *domain, uint64_t id) {
    if (core2[3]) ((void (*)(const void *, uint64_t))core2[3])(domain, id);
}
static inline int domain_push_ex(const void *domain, const struct attributes *a) {
    return CALL(core2, 4, int (*)(const void *, const void *), -2, (domain, a));
}
static inline int domain_pop(const void *domain) {
    return CALL(core2, 5, int (*)(const void *), -2, (domain));
}
static inline const void *register_a(const void *domain, const char *text) {
    return CALL(core2, 10, const void *(*)(const void *, const char *), NULL, (domain, text));
}
static inline const void *register_w(const void *domain, const wchar_t *text) {
    return CALL(core2, 11, const void *(*)(const void *, const wchar_t *), NULL, (domain, text));
}
static inline const void *create_a(const char *text) {
    return CALL(core2, 12, const void *(*)(const char *), NULL, (text));
}
static inline const void *create_w(const wchar_t *text) {
    return CALL(core2, 13, const void *(*)(const wchar_t *), NULL, (text));
}
