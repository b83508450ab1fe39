#include "mps.h"

#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "../protocol/routing.h"
#include "../proxy/stop.h"
#include "library.h"

namespace efaprof::dispatch {

namespace {

constexpr const char *CONTROL = "nvidia-cuda-mps-control";
constexpr const char *PIPE = "CUDA_MPS_PIPE_DIRECTORY", *LOG = "CUDA_MPS_LOG_DIRECTORY";
constexpr int PATIENCE_MS = 10000, NOT_THERE = 127, MOST_GPUS = 100;

// Exit code of a child that runs `body`; -1 when it was killed or took too long.
template <typename Body> int run_child(Body body) {
    pid_t pid = fork();
    if (pid == 0) _exit(body());
    if (pid < 0) return -1;
    for (int waited = 0; waited < PATIENCE_MS; waited += 10) {
        int status = 0;
        if (waitpid(pid, &status, WNOHANG) == pid) return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
        timespec nap = {0, 10000000};
        nanosleep(&nap, nullptr);
    }
    kill(pid, SIGKILL);
    waitpid(pid, nullptr, 0);
    return -1;
}

// In a child: a process that has asked CUDA anything cannot fork ranks that use it.
int count_gpus() {
    return run_child([] {
        int count = gpu_library().count();
        return count < 0 ? 0 : count > MOST_GPUS ? MOST_GPUS : count;
    });
}

int become_control(const char *input) {
    // The daemon, and the server that it starts, are not what is being recorded.
    constexpr const char *OF_RECORDERS[] = {"LD_PRELOAD", "CUDA_INJECTION64_PATH", "NVTX_INJECTION64_PATH"};
    for (const char *name : OF_RECORDERS)
        unsetenv(name);
    int nothing = open("/dev/null", O_RDWR | O_CLOEXEC), ends[2];
    if (nothing < 0 || pipe(ends) != 0) return NOT_THERE;
    if (input != nullptr && write(ends[1], input, strlen(input)) < 0) return NOT_THERE;
    close(ends[1]);
    dup2(input != nullptr ? ends[0] : nothing, STDIN_FILENO);
    dup2(nothing, STDOUT_FILENO);
    dup2(nothing, STDERR_FILENO);
    execlp(CONTROL, CONTROL, input != nullptr ? static_cast<char *>(nullptr) : "-d", static_cast<char *>(nullptr));
    return NOT_THERE;
}

int remove_entry(const char *path, const struct stat * /*status*/, int /*flag*/, struct FTW * /*where*/) {
    return remove(path);
}

} // namespace

bool Mps::start(uint32_t ranks, char *why, uint32_t bytes) {
    int gpus = count_gpus();
    if (gpus < 1) {
        snprintf(why, bytes, "--device cuda: there is no GPU here, or no driver for it");
        return false;
    }
    if (ranks <= static_cast<uint32_t>(gpus) || getenv(PIPE) != nullptr) return true;
    // Not TMPDIR: MPS makes sockets in it, whose paths are short. mkdtemp fills the six letters in.
    snprintf(folder_, sizeof folder_, "/tmp/efaprof-mps-XXXXXX");
    if (mkdtemp(folder_) == nullptr) {
        snprintf(why, bytes, "a folder for MPS: %s", strerror(errno));
        return false;
    }
    setenv(PIPE, folder_, 1);
    setenv(LOG, folder_, 1);
    int code = run_child([] { return become_control(nullptr); });
    is_running_ = code == 0;
    if (!is_running_) {
        snprintf(
            why, bytes,
            "%u ranks would share %d GPU%s, and MPS %s: their kernels would take turns of milliseconds; use --ranks "
            "%d, or start %s",
            ranks, gpus, gpus > 1 ? "s" : "", code == NOT_THERE ? "is not there" : "does not start", gpus, CONTROL);
        stop();
    }
    return is_running_;
}

void Mps::stop() {
    if (is_running_ && run_child([] { return become_control("quit -t 5\n"); }) != 0)
        fprintf(stderr, "efaprof-dispatch: the MPS daemon in %s did not end\n", folder_);
    is_running_ = false;
    if (folder_[0] != 0) nftw(folder_, remove_entry, 8, FTW_DEPTH | FTW_PHYS);
    folder_[0] = 0;
    unsetenv(PIPE);
    unsetenv(LOG);
}

int lend_mps(int count, char **words) {
    char *end = nullptr, why[240];
    unsigned long ranks = count == 2 ? strtoul(words[1], &end, 10) : 0;
    if (ranks < 1 || ranks > protocol::MAX_RANKS || *end != 0) {
        fprintf(stderr, "usage: efaprof-dispatch mps RANKS\n");
        return EXIT_REFUSED;
    }
    // Whoever started this says when it is over; signals to the group are for the ranks.
    signal(SIGINT, SIG_IGN);
    signal(SIGTERM, SIG_IGN);
    Mps mps;
    if (!open_gpu_library(why, sizeof why) || !mps.start(static_cast<uint32_t>(ranks), why, sizeof why)) {
        fprintf(stderr, "%s\n", why);
        return EXIT_REFUSED;
    }
    const char *where = getenv(PIPE);
    printf("%s\n", where == nullptr ? "" : where);
    fflush(stdout);
    char ignored[64];
    ssize_t got = 0;
    do
        got = read(STDIN_FILENO, ignored, sizeof ignored);
    while (got > 0 || (got < 0 && errno == EINTR));
    mps.stop();
    return 0;
}

} // namespace efaprof::dispatch
