// Several processes on one GPU: without NVIDIA's Multi-Process Service their kernels take turns of milliseconds, and
// kernels that wait for each other would measure that.
#pragma once

#include <stdint.h>

namespace efaprof::dispatch {

// A daemon of the user's own, from `start` to `stop`. Both run in the launcher, which must not touch CUDA itself.
class Mps {
public:
    // Only where `ranks` share GPUs and no daemon is named in the environment already. False, with the reason in
    // `why`, when there are no GPUs, or the service is needed and does not start.
    bool start(uint32_t ranks, char *why, uint32_t bytes);
    void stop();

private:
    bool is_running_ = false;
    char folder_[64] = {};
};

// `efaprof-dispatch mps RANKS`: a daemon for a launcher that is not ours. Says on stdout where it is, or an empty line
// when none is needed, and ends it when stdin does. Exit code.
int lend_mps(int count, char **words);

} // namespace efaprof::dispatch
