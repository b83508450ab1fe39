// The threads behind the lane, for each of its rings: one that does everything, or one that issues and one that
// completes and receives.
#pragma once

#include <pthread.h>

#include "state.h"

namespace efaprof::dispatch {

class Threads {
public:
    // `count` of 2 is the lane and one progress thread a ring, 3 the lane and a proxy and a receiving thread a ring.
    // Their names carry the rank, and which of several: proxy0, rx0, proxy0.1.
    void start(const Engine &engine, unsigned count);
    // After the lane set is_over in every engine and nothing is in flight.
    void join();

private:
    pthread_t threads_[2 * protocol::MAX_PROXIES];
    unsigned count_ = 0;
};

} // namespace efaprof::dispatch
