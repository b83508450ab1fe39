#include "peers.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <core/life.h>
#include <core/sysfile.h>

#include "../proxy/make.h"

namespace efaprof::dispatch {

namespace {

constexpr long LOOK_NS = 100000000;

bool is_same_place(const Identity &one, const Identity &other) {
    return memcmp(one.boot_id, other.boot_id, sizeof one.boot_id) == 0 && one.pid_ns == other.pid_ns && one.pid_ns != 0;
}

} // namespace

Identity identity_here(uint32_t rank) {
    Identity identity = {};
    identity.rank = rank;
    Viewpoint here = viewpoint_here();
    memcpy(identity.boot_id, here.boot_id, sizeof identity.boot_id);
    identity.pid_ns = here.pid_ns;
    char text[1024];
    identity.start = parse_stat(text, read_whole("/proc/self/stat", text, sizeof text)).start;
    identity.pid = static_cast<uint32_t>(getpid());
    return identity;
}

bool is_one_host(const Identity *identities, uint32_t ranks) {
    bool is_one = true;
    for (uint32_t rank = 1; rank < ranks; rank++)
        is_one = is_one && memcmp(identities[0].boot_id, identities[rank].boot_id, sizeof identities[0].boot_id) == 0;
    return is_one;
}

void PeerWatch::start(Stop &stop, uint32_t own_rank, const Identity *identities, uint32_t ranks) {
    stop_ = &stop;
    own_rank_ = own_rank;
    watched_ = make<Identity>(ranks);
    const Identity &own = identities[own_rank];
    for (uint32_t rank = 0; rank < ranks; rank++) {
        bool is_own = identities[rank].pid == own.pid;
        if (!is_own && is_same_place(identities[rank], own)) watched_[count_++] = identities[rank];
    }
    if (count_ == 0) return;
    pthread_condattr_t clock;
    pthread_condattr_init(&clock);
    pthread_condattr_setclock(&clock, CLOCK_MONOTONIC);
    pthread_cond_init(&wake_, &clock);
    pthread_condattr_destroy(&clock);
    int result = pthread_create(&thread_, nullptr, run, this);
    if (result != 0) fail(Cause::Failed, "pthread_create: %s", strerror(result));
    is_running_ = true;
}

void PeerWatch::stop() {
    if (is_running_) {
        pthread_mutex_lock(&lock_);
        is_over_ = true;
        pthread_cond_signal(&wake_);
        pthread_mutex_unlock(&lock_);
        pthread_join(thread_, nullptr);
        pthread_cond_destroy(&wake_);
        is_running_ = false;
    }
    free(watched_);
    watched_ = nullptr;
}

void *PeerWatch::run(void *argument) {
    auto &watch = *static_cast<PeerWatch *>(argument);
    pthread_setname_np(pthread_self(), "peers");
    pthread_mutex_lock(&watch.lock_);
    while (!watch.is_over_) {
        timespec due;
        clock_gettime(CLOCK_MONOTONIC, &due);
        due.tv_nsec += LOOK_NS;
        if (due.tv_nsec >= 1000000000) {
            due.tv_sec++;
            due.tv_nsec -= 1000000000;
        }
        pthread_cond_timedwait(&watch.wake_, &watch.lock_, &due);
        if (!watch.is_over_) watch.look();
    }
    pthread_mutex_unlock(&watch.lock_);
    return nullptr;
}

void PeerWatch::look() const {
    Viewpoint here = viewpoint_here();
    for (uint32_t i = 0; i < count_; i++) {
        const Identity &peer = watched_[i];
        efaprof_header asked = {};
        memcpy(asked.boot_id, peer.boot_id, sizeof asked.boot_id);
        asked.pid_ns = peer.pid_ns;
        asked.pid = peer.pid;
        asked.process_start = peer.start;
        if (life_of(here, asked) == Life::dead)
            tell_stop(*stop_, own_rank_, Cause::Failed, "rank %u (pid %u) has ended", peer.rank, peer.pid);
    }
}

} // namespace efaprof::dispatch
