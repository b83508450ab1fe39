// The threads behind the lane: one that does everything, or one that issues and one that completes and receives.
#pragma once

#include <pthread.h>

#include "state.h"

namespace efaprof::dispatch {

class Threads {
public:
    // `count` of 2 is the lane and one progress thread, 3 the lane, a proxy and a receiving thread. Their names
    // carry the rank: proxy0, rx0.
    void start(Engine &engine, unsigned count);
    // After the lane set engine.is_over and nothing is in flight.
    void join();

private:
    pthread_t threads_[2];
    unsigned count_ = 0;
};

} // namespace efaprof::dispatch
