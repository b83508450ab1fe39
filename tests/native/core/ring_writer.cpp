// ring_writer ACCOUNTS THREADS RECORDS TIMER_US: THREADS threads write RECORDS records each (0: until killed). With
// TIMER_US > 0 a timer interrupts each thread that often and its handler writes records too. Thread t has tag and
// account 2t, its handler 2t + 1.
#include "probe.h"

#include <csignal>
#include <ctime>
#include <pthread.h>
#include <sys/syscall.h>

namespace {

probe::Account *g_accounts;
uint64_t g_records;
long g_timer_us;
__thread uint32_t t_tag;

void on_timer(int) {
    const uint32_t tag = t_tag + 1;
    for (int i = 0; i < 2; ++i)
        probe::write_record(tag, g_accounts[tag]);
}

timer_t start_timer() {
    sigevent event{};
    event.sigev_notify = SIGEV_THREAD_ID;
    event.sigev_signo = SIGPROF;
    event._sigev_un._tid = static_cast<pid_t>(syscall(SYS_gettid));
    timer_t timer;
    itimerspec every{};
    every.it_value.tv_nsec = every.it_interval.tv_nsec = g_timer_us * 1000;
    if (timer_create(CLOCK_MONOTONIC, &event, &timer) != 0 || timer_settime(timer, 0, &every, nullptr) != 0)
        probe::fail("timer");
    return timer;
}

void check_signal_mask() { // a first record blocks signals while it makes the ring
    sigset_t mask;
    probe::write_record(t_tag, g_accounts[t_tag]);
    pthread_sigmask(SIG_SETMASK, nullptr, &mask);
    for (int number = 1; number < 32; ++number)
        if (sigismember(&mask, number) == 1) probe::fail("signal mask was changed");
}

void *run(void *argument) {
    t_tag = static_cast<uint32_t>(reinterpret_cast<uintptr_t>(argument)) * 2;
    timer_t timer{};
    if (g_timer_us > 0) timer = start_timer();
    probe::Account &account = g_accounts[t_tag];
    check_signal_mask();
    for (uint64_t i = 1; g_records == 0 || i < g_records; ++i)
        probe::write_record(t_tag, account);
    if (g_timer_us > 0) timer_delete(timer);
    return nullptr;
}

} // namespace

int main(int argc, char **argv) {
    if (argc != 5) probe::fail("usage");
    g_accounts = probe::map_accounts(argv[1]);
    const int threads = atoi(argv[2]);
    g_records = strtoull(argv[3], nullptr, 10);
    g_timer_us = atol(argv[4]);
    struct sigaction action {};
    action.sa_handler = on_timer;
    action.sa_flags = SA_RESTART;
    sigaction(SIGPROF, &action, nullptr);
    pthread_t ids[64];
    for (int i = 1; i < threads; ++i)
        pthread_create(&ids[i], nullptr, run, reinterpret_cast<void *>(static_cast<uintptr_t>(i)));
    run(nullptr);
    for (int i = 1; i < threads; ++i)
        pthread_join(ids[i], nullptr);
    return 0;
}
