// nvtx_client WHAT...: calls NVTX in one way after another, and prints what it returned.
#include "client.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

extern int part_run(void);

static void texts(void) {
    printf("push %d\n", push_a("ascii"));
    printf("push %d\n", push_w(L"wide \u00e9 \u4e2d \U0001F600"));
    printf("pop %d\n", pop());
    printf("pop %d\n", pop());
    printf("pop without push %d\n", pop());
    mark_a("mark");
    mark_w(L"wide mark");
    push_a(NULL);
    pop();
    static char longer[400];
    memset(longer, 'x', sizeof longer - 1);
    push_a(longer);
    pop();
}

static void payloads(void) {
    struct attributes a = saying(ASCII, "u64");
    a.category = 7;
    a.payload_type = 1;
    a.payload.u64 = 1ull << 63;
    mark_ex(&a);
    a.message = "i64", a.payload_type = 2, a.payload.i64 = -5;
    mark_ex(&a);
    a.message = "f64", a.payload_type = 3, a.payload.f64 = 2.5;
    mark_ex(&a);
    a.message = "u32", a.payload_type = 4, a.payload.u64 = UINT64_MAX, a.payload.u32 = 9;
    mark_ex(&a);
    a.message = "i32", a.payload_type = 5, a.payload.i32 = -9;
    mark_ex(&a);
    a.message = "f32", a.payload_type = 6, a.payload.f32 = -0.5f;
    mark_ex(&a);
    a.message = "other", a.payload_type = 77;
    push_ex(&a);
    pop();
    a.size = 24; // an older client: it has no message
    mark_ex(&a);
}

static void domains(void) {
    const void *one = create_a("one"), *two = create_w(L"two");
    const void *registered = register_a(one, "registered"), *wide = register_w(two, L"registered wide");
    struct attributes a = saying(REGISTERED, registered), b = saying(REGISTERED, wide);
    // Ranges of two domains nest each for itself, whatever the order between them.
    printf("one %d\n", domain_push_ex(one, &a));
    printf("two %d\n", domain_push_ex(two, &b));
    printf("one %d\n", domain_push_ex(one, &a));
    printf("pop two %d\n", domain_pop(two));
    printf("pop one %d\n", domain_pop(one));
    printf("pop one %d\n", domain_pop(one));
    domain_mark_ex(two, &b);
    struct attributes c = saying(ASCII, "default domain");
    domain_push_ex(NULL, &c);
    domain_pop(NULL);
}

static void *end_there(void *id) {
    end((uint64_t)(uintptr_t)id);
    return NULL;
}

static void processes(void) {
    const uint64_t first = start_a("started"), second = start_w(L"started wide");
    struct attributes a = saying(ASCII, "started in a domain");
    const void *domain = create_a("one");
    const uint64_t third = domain_start_ex(domain, &a), fourth = start_ex(&a);
    end(first);
    end(first); // already ended
    end(0);
    end(123456789);
    pthread_t thread;
    pthread_create(&thread, NULL, end_there, (void *)(uintptr_t)second);
    pthread_join(thread, NULL);
    domain_end(domain, third);
    end(fourth);
}

static void deep(void) {
    for (int i = 0; i < 600; ++i)
        push_a("deep");
    for (int i = 0; i < 600; ++i)
        pop();
    push_a("shallow");
    pop();
    uint64_t many[9000];
    for (int i = 0; i < 9000; ++i)
        many[i] = start_a("many");
    for (int i = 0; i < 9000; ++i)
        end(many[i]);
}

static void killed(void) {
    push_a("never ended");
    push_a("ended");
    pop();
    fflush(stdout);
    abort();
}

static void forked(void) {
    push_a("begun before the fork");
    const pid_t child = fork();
    push_a(child == 0 ? "child" : "parent");
    pop();
    pop();
    fflush(stdout);
    if (child == 0) _exit(0);
    waitpid(child, NULL, 0);
}

int main(int argc, char **argv) {
    static const struct {
        const char *name;
        void (*run)(void);
    } all[] = {{"texts", texts}, {"payloads", payloads}, {"domains", domains}, {"processes", processes},
               {"deep", deep},   {"killed", killed},     {"forked", forked}};
    printf("tool %d\n", begin_nvtx());
    name_category(7, "seven");
    for (int i = 1; i < argc; ++i) {
        if (strcmp(argv[i], "part") == 0) printf("part %d\n", part_run());
        for (unsigned k = 0; k < sizeof all / sizeof *all; ++k)
            if (strcmp(argv[i], all[k].name) == 0) all[k].run();
    }
    return 0;
}
