// ring_threads ACCOUNTS MODE: threads that come and go.
//   churn         10 000 short threads, at most 4 at a time, three records each (tag = account = slot of the four)
//   silent        400 threads, one at a time, that end by the raw exit system call, without key destructors
//   destructors   a thread records in a key destructor that runs after ours, in each of the four rounds; then main
//                 records at exit
#include "probe.h"

#include <climits>
#include <pthread.h>
#include <sys/syscall.h>

namespace {

constexpr int kThreads = 10000, kSilentThreads = 400, kAtATime = 4;
probe::Account *g_accounts;
pthread_key_t g_key;

void write_three(uint32_t tag) {
    for (int i = 0; i < 3; ++i)
        probe::write_record(tag, g_accounts[tag]);
}

void *run(void *slot) {
    write_three(static_cast<uint32_t>(reinterpret_cast<uintptr_t>(slot)));
    return nullptr;
}

void *run_silently(void *slot) {
    write_three(static_cast<uint32_t>(reinterpret_cast<uintptr_t>(slot)));
    syscall(SYS_exit, 0);
    return nullptr;
}

void churn() {
    for (int round = 0; round < kThreads / kAtATime; ++round) {
        pthread_t ids[kAtATime];
        for (uintptr_t slot = 0; slot < kAtATime; ++slot)
            if (pthread_create(&ids[slot], nullptr, run, reinterpret_cast<void *>(slot)) != 0) probe::fail("create");
        for (const pthread_t id : ids)
            pthread_join(id, nullptr);
    }
}

void churn_silently() {
    for (uintptr_t i = 0; i < kSilentThreads; ++i) {
        pthread_t id;
        if (pthread_create(&id, nullptr, run_silently, reinterpret_cast<void *>(i % kAtATime)) != 0)
            probe::fail("create");
        pthread_join(id, nullptr); // the kernel tells of a raw exit as well
    }
}

void on_key(void *round) {
    const auto n = reinterpret_cast<uintptr_t>(round);
    write_three(5);
    if (n < PTHREAD_DESTRUCTOR_ITERATIONS) pthread_setspecific(g_key, reinterpret_cast<void *>(n + 1));
}

void *run_with_key(void *) {
    pthread_setspecific(g_key, reinterpret_cast<void *>(uintptr_t{1}));
    write_three(5);
    return nullptr;
}

struct AtExit {
    ~AtExit() { write_three(6); }
};

void destructors() {
    if (pthread_key_create(&g_key, on_key) != 0) probe::fail("key"); // made after ours: its destructor runs after ours
    for (int i = 0; i < 8; ++i) {
        pthread_t id;
        pthread_create(&id, nullptr, run_with_key, nullptr);
        pthread_join(id, nullptr);
    }
    atexit([] { write_three(6); });
    static AtExit at_exit;
}

} // namespace

int main(int argc, char **argv) {
    if (argc != 3) probe::fail("usage");
    g_accounts = probe::map_accounts(argv[1]);
    if (strcmp(argv[2], "churn") == 0) churn();
    if (strcmp(argv[2], "silent") == 0) churn_silently();
    if (strcmp(argv[2], "destructors") == 0) destructors();
    return 0;
}
