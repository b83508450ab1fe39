// ring_family ACCOUNTS HOW: a process with three writing threads starts children in the way named and everybody
// writes. Tags and accounts: parent's threads 0..2, child 10, grandchild 11, a thread of the child 12.
#include "probe.h"

#include <pthread.h>
#include <sched.h>
#include <spawn.h>
#include <sys/syscall.h>
#include <sys/wait.h>

extern char **environ;

namespace {

constexpr int kRecords = 2000;
probe::Account *g_accounts;
const char *g_path;

void write_many(uint32_t tag, int records = kRecords) {
    for (int i = 0; i < records; ++i)
        probe::write_record(tag, g_accounts[tag]);
}

void *run(void *tag) {
    write_many(static_cast<uint32_t>(reinterpret_cast<uintptr_t>(tag)));
    return nullptr;
}

pthread_t start(uintptr_t tag) {
    pthread_t id;
    if (pthread_create(&id, nullptr, run, reinterpret_cast<void *>(tag)) != 0) probe::fail("pthread_create");
    return id;
}

void wait_for(pid_t child) {
    int status;
    if (waitpid(child, &status, 0) != child || status != 0) probe::fail("child");
}

[[noreturn]] void be_child() {
    const pthread_t id = start(12); // a thread of the child may record before the thread that forked does
    pthread_join(id, nullptr);
    write_many(10);
    const pid_t grandchild = fork();
    if (grandchild == 0) {
        write_many(11);
        _exit(0);
    }
    wait_for(grandchild);
    write_many(10);
    _exit(0);
}

pid_t raw_fork() {
    return static_cast<pid_t>(syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0));
} // skips atfork handlers

pid_t spawn_self(const char *how) {
    char *arguments[] = {const_cast<char *>("ring_family"), const_cast<char *>(g_path), const_cast<char *>(how),
                         nullptr};
    pid_t child;
    if (posix_spawn(&child, "/proc/self/exe", nullptr, nullptr, arguments, environ) != 0) probe::fail("posix_spawn");
    return child;
}

pid_t vfork_self(const char *how) {
    const pid_t child = vfork();
    if (child == 0) {
        execl("/proc/self/exe", "ring_family", g_path, how, nullptr);
        _exit(127);
    }
    return child;
}

} // namespace

int main(int argc, char **argv) {
    if (argc != 3) probe::fail("usage");
    g_path = argv[1];
    g_accounts = probe::map_accounts(g_path);
    const char *how = argv[2];
    if (strcmp(how, "as-child") == 0) be_child();
    if (strcmp(how, "exec-once-more") == 0) {
        write_many(10);
        return 0;
    }
    pthread_t ids[2] = {start(1), start(2)};
    write_many(0);
    if (strcmp(how, "fork") == 0 || strcmp(how, "clone") == 0) {
        const pid_t child = how[0] == 'f' ? fork() : raw_fork();
        if (child == 0) be_child();
        write_many(0);
        wait_for(child);
    } else if (strcmp(how, "spawn") == 0 || strcmp(how, "vfork") == 0) {
        const pid_t child = how[0] == 's' ? spawn_self("as-child") : vfork_self("as-child");
        write_many(0);
        wait_for(child);
    }
    for (const pthread_t id : ids)
        pthread_join(id, nullptr);
    write_many(0);
    if (strcmp(how, "exec") == 0) execl("/proc/self/exe", "ring_family", g_path, "exec-once-more", nullptr);
    return 0;
}
