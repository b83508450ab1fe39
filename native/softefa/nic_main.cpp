// efaprof-softefa-nic: the process that is the NIC of every rank of one emulated fabric.
//
//   efaprof-softefa-nic --dir DIR --model key=value,… [--truth FILE] [--truth-most BYTES] [--ready-fd N]
//                       [--summary-fd N] [--set NAME=VALUE]… [-- CMD…]
//
// With CMD it runs CMD as its child, so that it is an ancestor of the ranks, and ends with CMD's exit code; without,
// it serves until SIGTERM or until its parent ends. `efaprof softefa` is its user interface.
#include "nic.h"

#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <math.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

namespace softefa {

int64_t now_ns() {
    timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000ll + t.tv_nsec;
}

namespace {

constexpr uint64_t kWakeTag = ~1ull, kSignalTag = ~2ull; // epoll tags beside those of nic_control.cpp
constexpr int kSpins = 100;                              // empty turns before each yield
constexpr int64_t kAwakeNs = 200000000; // yields, and does not sleep, for this long after the last work
constexpr int64_t kControlNs = 20000;   // control sockets are looked at this often while there is work
constexpr int64_t kSysfsNs = 10000000;
constexpr int64_t kStallNs = 100000;
constexpr double kNearNs = 20000;

Nic the_nic;
volatile sig_atomic_t asked_to_stop;
sighandler_t terminal_handlers[2]; // of SIGINT and SIGQUIT before us: the command gets them back
volatile pid_t command_pid;        // who is to get the signals that we are sent

void on_signal(int number) {
    if (command_pid > 0)
        kill(command_pid, number);
    else
        asked_to_stop = 1;
}

struct Args {
    const char *dir = nullptr, *model = "", *truth = nullptr;
    uint64_t truth_most = 4ull << 30;
    uint32_t devices = 2;
    int ready_fd = -1, summary_fd = -1;
    pid_t parent = getppid();
    char **command = nullptr;
};

[[noreturn]] void usage(const char *what) {
    fprintf(stderr, "efaprof-softefa-nic: %s\n", what);
    exit(2);
}

Args parse(int argc, char **argv) {
    Args args;
    for (int i = 1; i < argc; ++i) {
        if (strcmp(argv[i], "--") == 0) {
            args.command = argv + i + 1;
            break;
        }
        if (i + 1 >= argc) usage("an option lacks its value");
        const char *value = argv[++i];
        const char *name = argv[i - 1];
        if (strcmp(name, "--dir") == 0)
            args.dir = value;
        else if (strcmp(name, "--model") == 0)
            args.model = value;
        else if (strcmp(name, "--truth") == 0)
            args.truth = value;
        else if (strcmp(name, "--truth-most") == 0)
            args.truth_most = strtoull(value, nullptr, 10);
        else if (strcmp(name, "--devices") == 0)
            args.devices = static_cast<uint32_t>(strtoul(value, nullptr, 10));
        else if (strcmp(name, "--ready-fd") == 0)
            args.ready_fd = atoi(value);
        else if (strcmp(name, "--summary-fd") == 0)
            args.summary_fd = atoi(value);
        else if (strcmp(name, "--set") == 0) {
            if (putenv(const_cast<char *>(value)) != 0) usage("--set failed");
        } else
            usage("unknown option");
    }
    const int own[] = {args.ready_fd, args.summary_fd};
    for (int fd : own)
        if (fd >= 0) fcntl(fd, F_SETFD, FD_CLOEXEC); // ours, not the command's
    if (args.dir == nullptr) usage("--dir is missing");
    if (args.command != nullptr && *args.command == nullptr) usage("no command after --");
    return args;
}

bool parse_model(Model &model, const char *text) {
    char *copy = strdup(text), *rest = copy;
    bool ok = copy != nullptr;
    while (ok && rest != nullptr && *rest != '\0') {
        char *item = strsep(&rest, ",");
        char *equals = strchr(item, '=');
        if (equals == nullptr)
            ok = false;
        else {
            *equals = '\0';
            ok = model_set(model, item, equals + 1);
        }
    }
    free(copy);
    return ok;
}

bool watch(Nic &nic, int fd, uint64_t tag) {
    epoll_event event = {};
    event.events = EPOLLIN;
    event.data.u64 = tag;
    return fd >= 0 && epoll_ctl(nic.epoll, EPOLL_CTL_ADD, fd, &event) == 0;
}

bool open_nic(Nic &nic, const Args &args) {
    memory_open();
    nic.dir = args.dir;
    nic.epoch_ns = now_ns();
    nic.fabric_id = static_cast<uint32_t>(getpid()) * 2654435761u ^ static_cast<uint32_t>(nic.epoch_ns);
    nic.qpn_next = 1;
    nic.mrs = static_cast<Mr *>(calloc(65536, sizeof(Mr)));
    nic.epoll = epoll_create1(EPOLL_CLOEXEC);
    nic.wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    nic.status_fd = memfd_create("softefa-status", MFD_CLOEXEC);
    if (nic.mrs == nullptr || nic.epoll < 0 || nic.status_fd < 0 || ftruncate(nic.status_fd, SOFTEFA_PAGE) != 0)
        return false;
    void *page = mmap(nullptr, SOFTEFA_PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, nic.status_fd, 0);
    if (page == MAP_FAILED) return false;
    nic.status = static_cast<softefa_status_page *>(page);
    return watch(nic, nic.wake, kWakeTag) && sysfs_open(nic, args.devices) && control_open(nic) &&
           (args.truth == nullptr || truth_open(nic, args.truth, args.truth_most));
}

pid_t run_command(const Args &args, int &exec_error) {
    int report[2];
    if (pipe2(report, O_CLOEXEC) != 0) return -1;
    const pid_t child = fork();
    if (child == 0) {
        signal(SIGINT, terminal_handlers[0]);
        signal(SIGQUIT, terminal_handlers[1]);
        signal(SIGPIPE, SIG_DFL); // the handlers of the others end with exec
        execvp(args.command[0], args.command);
        const int error = errno;
        if (write(report[1], &error, sizeof error) < 0) _exit(126);
        _exit(error == ENOENT ? 127 : 126);
    }
    close(report[1]);
    exec_error = 0;
    if (read(report[0], &exec_error, sizeof exec_error) < 0) exec_error = 0;
    close(report[0]);
    return child;
}

void control_turn(Nic &nic, int timeout_us) {
    epoll_event events[16];
    const timespec wait = {0, timeout_us * 1000l};
    const int n = timeout_us == 0
                      ? epoll_wait(nic.epoll, events, 16, 0)
                      : static_cast<int>(syscall(SYS_epoll_pwait2, nic.epoll, events, 16, &wait, nullptr, 0));
    for (int i = 0; i < n; ++i) {
        const uint64_t tag = events[i].data.u64;
        if (tag == kWakeTag) {
            uint64_t count;
            if (read(nic.wake, &count, sizeof count) < 0 && errno != EAGAIN) perror("softefa: wake-up");
        } else if (tag == kSignalTag) {
            nic.stop = true;
        } else {
            control_event(nic, tag);
        }
    }
}

bool poll_queues(Nic &nic) {
    bool did = false;
    for (uint32_t d = 0, seen = 0; seen < nic.live_count && d < kMaxDevices; ++d) {
        Device *device = nic.live[d];
        if (device == nullptr) continue;
        ++seen;
        for (uint32_t q = 0; q < device->qp_count; ++q)
            did |= queue_poll(nic, *device->qps[q]);
    }
    return did;
}

bool turn(Nic &nic) {
    bool did = poll_queues(nic);
    const double now = model_now(nic);
    for (uint32_t d = 0, seen = 0; seen < nic.live_count && d < kMaxDevices; ++d) {
        if (nic.live[d] == nullptr) continue;
        ++seen;
        did |= wire_schedule(nic, *nic.live[d], now);
    }
    return did | wire_run(nic, now);
}

bool has_queued(const Nic &nic) {
    for (uint32_t d = 0, seen = 0; seen < nic.live_count && d < kMaxDevices; ++d) {
        const Device *device = nic.live[d];
        if (device == nullptr) continue;
        ++seen;
        if (device->read_first != nullptr) return true;
        for (uint32_t q = 0; q < device->qp_count; ++q)
            if (device->qps[q]->first != nullptr) return true;
    }
    return false;
}

// Nothing has happened for a while: wait for a doorbell (verbs clients write the eventfd), a socket, or the next
// event. A kernel that posts by itself cannot wake us, so the sleep is short.
void sleep_a_little(Nic &nic, int64_t idle_ns) {
    const double until_ns = wire_next(nic) - model_now(nic);
    int us = idle_ns > 5000000000 ? 1000 : 100;
    if (until_ns < us * 1e3) us = until_ns < 2000 ? 0 : static_cast<int>(until_ns / 1e3);
    __atomic_store_n(&nic.status->asleep, 1, __ATOMIC_SEQ_CST);
    __atomic_thread_fence(__ATOMIC_SEQ_CST); // we say that we sleep, then look; a client rings, then looks at us
    if (!turn(nic)) control_turn(nic, us);
    __atomic_store_n(&nic.status->asleep, 0, __ATOMIC_SEQ_CST);
}

void note_stall(Nic &nic, int64_t gap_ns) {
    if (gap_ns < kStallNs) return;
    ++nic.late.stalls;
    if (static_cast<double>(gap_ns) > nic.late.worst_stall_ns) nic.late.worst_stall_ns = static_cast<double>(gap_ns);
}

void serve(Nic &nic) {
    int64_t worked = now_ns(), controlled = 0, shown = 0, last = worked;
    int spins = 0;
    bool busy = false;
    while (!nic.stop && !asked_to_stop) {
        const bool did = turn(nic);
        const int64_t now = now_ns();
        if (busy) note_stall(nic, now - last);
        busy = did || nic.heap_count > 0 || has_queued(nic);
        last = now;
        if (did) {
            worked = now;
            spins = 0;
        }
        if (now - controlled > kControlNs) {
            control_turn(nic, 0);
            controlled = now;
        }
        if (now - shown > kSysfsNs) {
            for (uint32_t d = 0; d < kMaxDevices; ++d)
                if (nic.live[d] != nullptr) sysfs_refresh(nic, *nic.live[d]);
            if (now - worked > kSysfsNs) truth_flush(nic);
            shown = now;
        }
        if (did || ++spins < kSpins) continue;
        // An event that is nearly due is worth the core: whoever gets it by a yield may keep it for longer than that.
        if (wire_next(nic) - model_now(nic) < kNearNs) continue;
        spins = 0;
        if (busy || (now - worked < kAwakeNs && nic.live_count > 0))
            sched_yield();
        else
            sleep_a_little(nic, now - worked);
    }
}

int remove_one(const char *path, const struct stat *, int, FTW *) {
    return remove(path);
}

int exit_code_of(int status) {
    return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

void catch_signals(bool has_command) {
    struct sigaction action = {};
    action.sa_handler = on_signal;
    action.sa_flags = SA_RESTART;
    const int passed_on[] = {SIGTERM, SIGHUP, SIGUSR1, SIGUSR2};
    for (int number : passed_on)
        sigaction(number, &action, nullptr);
    signal(SIGPIPE, SIG_IGN);
    if (has_command) { // the terminal sends these to the command as well: it decides
        terminal_handlers[0] = signal(SIGINT, SIG_IGN);
        terminal_handlers[1] = signal(SIGQUIT, SIG_IGN);
    } else {
        sigaction(SIGINT, &action, nullptr);
        prctl(PR_SET_PDEATHSIG, SIGTERM);
    }
}

int finish(Nic &nic, const Args &args, pid_t child) {
    int code = 0;
    if (child > 0) {
        int status = 0;
        while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
        }
        code = exit_code_of(status);
    }
    __atomic_store_n(&nic.status->closed, 1, __ATOMIC_RELEASE);
    for (uint32_t d = 0; d < kMaxDevices; ++d)
        if (nic.live[d] != nullptr) sysfs_refresh(nic, *nic.live[d]);
    truth_close(nic);
    if (args.summary_fd >= 0) summary_write(nic, args.summary_fd);
    if (child < 0 && getppid() != args.parent) nftw(args.dir, remove_one, 16, FTW_DEPTH | FTW_PHYS); // nobody else will
    return code;
}

int run(int argc, char **argv) {
    const Args args = parse(argc, argv);
    Nic &nic = the_nic;
    if (!parse_model(nic.model, args.model)) usage("--model has a key or value that is not known");
    catch_signals(args.command != nullptr);
    prctl(PR_SET_TIMERSLACK, 1000);
    if (!open_nic(nic, args)) {
        fprintf(stderr, "efaprof-softefa-nic: cannot start in %s: %s\n", args.dir, strerror(errno));
        return 125;
    }
    pid_t child = -1;
    if (args.command != nullptr) {
        int exec_error = 0;
        child = run_command(args, exec_error);
        if (child < 0) return 125;
        command_pid = child;
        const int pidfd = static_cast<int>(syscall(SYS_pidfd_open, child, 0));
        if (exec_error == 0 && !watch(nic, pidfd, kSignalTag)) return 125;
        if (exec_error != 0) nic.stop = true;
    }
    if (args.ready_fd >= 0) {
        if (write(args.ready_fd, "1", 1) != 1) perror("softefa: ready");
        close(args.ready_fd);
    }
    serve(nic);
    return finish(nic, args, child);
}

} // namespace
} // namespace softefa

int main(int argc, char **argv) {
    return softefa::run(argc, argv);
}
