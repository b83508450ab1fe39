#include "launch.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "rank.h"

namespace efaprof::dispatch {

namespace {

// From the first rank's end to the signals that make the others end, in ms.
constexpr int64_t TERM_AFTER_MS = 1000, KILL_AFTER_MS = 1500;
constexpr long POLL_NS = 50000000;

int64_t now_ms() {
    timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * 1000 + time.tv_nsec / 1000000;
}

struct Child {
    pid_t pid;
    bool has_ended;
    bool was_signalled; // by the launcher
    int status;
};

class Launcher {
public:
    explicit Launcher(Job &job) : job_(job) {}

    int run() {
        sigemptyset(&watched_);
        constexpr int NUMBERS[] = {SIGCHLD, SIGINT, SIGTERM, SIGHUP};
        for (int number : NUMBERS)
            sigaddset(&watched_, number);
        sigprocmask(SIG_BLOCK, &watched_, &before_);
        set_stop(&job_.stop, 0);
        fflush(nullptr); // or the ranks would print it again
        for (uint32_t rank = 0; rank < ranks(); rank++)
            start(rank);
        while (running_ > 0)
            step();
        int code = explain();
        if (code != 0) remove_regions();
        return code;
    }

private:
    uint32_t ranks() const { return job_.options.shape.ranks; }

    void start(uint32_t rank) {
        pid_t parent = getpid(), pid = fork();
        if (pid == 0) {
            prctl(PR_SET_PDEATHSIG, SIGTERM);
            if (getppid() != parent) _exit(EXIT_STOPPED);
            signal(SIGINT, SIG_IGN); // Ctrl-C goes to the whole group; the launcher stops the ranks
            sigprocmask(SIG_SETMASK, &before_, nullptr);
            run_rank(job_, rank);
            exit(0);
        }
        if (pid < 0) {
            fprintf(stderr, "efaprof-dispatch: rank %u cannot be started: %s\n", rank, strerror(errno));
            children_[rank].has_ended = true;
            children_[rank].status = EXIT_FAILED << 8;
            stop();
            return;
        }
        children_[rank].pid = pid;
        running_++;
    }

    void stop() {
        __atomic_store_n(&job_.stop.stopped, 1u, __ATOMIC_RELEASE);
        if (stopped_ms_ == 0) stopped_ms_ = now_ms();
    }

    void step() {
        timespec wait = {0, POLL_NS};
        int number = sigtimedwait(&watched_, nullptr, &wait);
        if (number > 0 && number != SIGCHLD) {
            own_signal_ = number;
            stop();
        }
        for (uint32_t rank = 0; rank < ranks(); rank++)
            reap(children_[rank]);
        if (stopped_ms_ == 0) return;
        int64_t since = now_ms() - stopped_ms_;
        if (since >= TERM_AFTER_MS) signal_all(since >= KILL_AFTER_MS ? SIGKILL : SIGTERM);
    }

    void reap(Child &child) {
        if (child.has_ended || waitpid(child.pid, &child.status, WNOHANG) != child.pid) return;
        child.has_ended = true;
        running_--;
        if (child.status != 0) stop();
    }

    void signal_all(int number) {
        for (uint32_t rank = 0; rank < ranks(); rank++) {
            if (!children_[rank].has_ended) {
                children_[rank].was_signalled = true;
                kill(children_[rank].pid, number);
            }
        }
    }

    void remove_regions() const {
        for (uint32_t proxy = 0; proxy < job_.options.proxies; proxy++) {
            for (uint32_t rank = 0; rank < ranks(); rank++)
                remove_region(job_.contacts[proxy][rank]);
        }
    }

    // A rank that a signal killed is the cause, whatever its peers noticed and said about it first.
    int explain() const {
        for (uint32_t rank = 0; rank < ranks(); rank++) {
            const Child &child = children_[rank];
            if (WIFSIGNALED(child.status) && !child.was_signalled) {
                int number = WTERMSIG(child.status);
                fprintf(stderr,
                        "efaprof-dispatch: rank %u (pid %d) was killed by signal %d (%s); the others were stopped\n",
                        rank, child.pid, number, strsignal(number));
                return EXIT_FAILED;
            }
        }
        if (own_signal_ != 0) {
            fprintf(stderr, "efaprof-dispatch: stopped by signal %d (%s)\n", own_signal_, strsignal(own_signal_));
            return 128 + own_signal_;
        }
        return explain_stop();
    }

    int explain_stop() const {
        const Stop &stop = job_.stop;
        if (__atomic_load_n(&stop.written, __ATOMIC_ACQUIRE) != 0) {
            if (stop.cause == Cause::Refused)
                fprintf(stderr, "efaprof-dispatch: %s\n", stop.message);
            else
                fprintf(stderr, "efaprof-dispatch: rank %u: %s%s\n", stop.rank,
                        stop.cause == Cause::Mismatch ? "data does not verify: " : "", stop.message);
            return stop.cause == Cause::Refused ? EXIT_REFUSED : EXIT_FAILED;
        }
        for (uint32_t rank = 0; rank < ranks(); rank++) {
            if (children_[rank].status != 0) {
                fprintf(stderr, "efaprof-dispatch: rank %u ended with code %d and said nothing\n", rank,
                        WEXITSTATUS(children_[rank].status));
                return EXIT_FAILED;
            }
        }
        return 0;
    }

    Job &job_;
    sigset_t watched_, before_;
    Child children_[protocol::MAX_RANKS] = {};
    uint32_t running_ = 0;
    int64_t stopped_ms_ = 0; // when the ranks were told to stop; 0: they were not
    int own_signal_ = 0;
};

} // namespace

int launch(Job &job) {
    return Launcher(job).run();
}

} // namespace efaprof::dispatch
