// A tool as another profiler would be: it gives handles, numbers and levels of its own, and writes down what reaches
// it.
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <wchar.h>

typedef void (*function)(void);
struct callbacks {
    size_t size;
    int (*module_functions)(int, function ***, unsigned *);
};

static FILE *out(void) {
    static FILE *file;
    if (file == NULL) {
        file = fopen(getenv("NVTX_TOOL_LOG"), "a");
        setvbuf(file, NULL, _IONBF, 0);
    }
    return file;
}

static int level = 100;
static int push_a(const char *text) {
    fprintf(out(), "push %s\n", text ? text : "-");
    return level++;
}
static int pop(void) {
    fprintf(out(), "pop\n");
    return --level;
}
static uint64_t start_a(const char *text) {
    fprintf(out(), "start %s\n", text);
    return 0xabcdef0012345678u;
}
static void end(uint64_t id) {
    fprintf(out(), "end %llx\n", (unsigned long long)id);
}
static void name_category(uint32_t category, const char *text) {
    fprintf(out(), "category %u %s\n", category, text);
}
struct handle {
    char text[32];
};
static const void *create_a(const char *text) {
    struct handle *made = calloc(1, sizeof *made);
    fprintf(out(), "domain %s\n", text);
    strncpy(made->text, text, sizeof made->text - 1);
    return made;
}
static const void *register_a(const struct handle *domain, const char *text) {
    fprintf(out(), "register %s in %s\n", text, domain->text);
    return create_a(text);
}
static int domain_push_ex(const struct handle *domain, const void *attributes) {
    const struct handle *message = *(const struct handle *const *)((const char *)attributes + 40);
    const int type = *(const int32_t *)((const char *)attributes + 32);
    fprintf(out(), "push %s in %s\n", type == 3 ? message->text : "?", domain != NULL ? domain->text : "-");
    return level++;
}
static int domain_pop(const struct handle *domain) {
    fprintf(out(), "pop in %s\n", domain != NULL ? domain->text : "-");
    return --level;
}

int InitializeInjectionNvtx2(const void *(*export_table)(uint32_t));

int InitializeInjectionNvtx2(const void *(*export_table)(uint32_t)) {
    const struct callbacks *callbacks = export_table(1);
    function **core, **core2;
    unsigned size;
    if (!callbacks->module_functions(1, &core, &size) || !callbacks->module_functions(5, &core2, &size)) return 0;
    *core[5] = (function)start_a;
    *core[7] = (function)end;
    *core[9] = (function)push_a;
    *core[11] = (function)pop;
    *core[12] = (function)name_category;
    *core2[4] = (function)domain_push_ex;
    *core2[5] = (function)domain_pop;
    *core2[10] = (function)register_a;
    *core2[12] = (function)create_a;
    fprintf(out(), "attached\n");
    return 1;
}
