// Ranks whose processes run on this host are watched: one that has ended stops every wait here, and is named.
#pragma once

#include <pthread.h>
#include <stdint.h>

#include <efaprof/format.h>

#include "../proxy/stop.h"

namespace efaprof::dispatch {

// Which process a rank is.
struct Identity {
    uint64_t boot_id[2];
    uint64_t pid_ns;
    uint64_t start;
    uint32_t pid;
    uint32_t rank;
};
Identity identity_here(uint32_t rank);
bool is_one_host(const Identity *identities, uint32_t ranks);

class PeerWatch {
public:
    // Looks until `stop`; peers of other hosts and pid namespaces are left out.
    void start(Stop &stop, uint32_t own_rank, const Identity *identities, uint32_t ranks);
    void stop();

private:
    static void *run(void *watch);
    void look() const;

    Stop *stop_ = nullptr;
    uint32_t own_rank_ = 0;
    Identity *watched_ = nullptr;
    uint32_t count_ = 0;
    pthread_t thread_;
    bool is_running_ = false;
    pthread_mutex_t lock_ = PTHREAD_MUTEX_INITIALIZER;
    pthread_cond_t wake_;
    bool is_over_ = false;
};

} // namespace efaprof::dispatch
