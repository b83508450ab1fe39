// efaprof-dispatch: the instrumented dispatch paths, with kernels on a CPU or on GPUs.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../gda/limits.h"
#include "../gda/posters.h"
#include "../gpu/library.h"
#include "../gpu/mps.h"
#include "launch.h"
#include "ring_bench.h"
#include "summary.h"

namespace {

using namespace efaprof::dispatch;

// Ranks that share a GPU need a service around them.
int launch_on_gpus(Job &job) {
    char why[240];
    Mps mps;
    set_stop(&job.stop, 0);
    // A kernel that were loaded only when it is launched could wait for one that already spins for it.
    setenv("CUDA_MODULE_LOADING", "EAGER", 1);
    if (!open_gpu_library(why, sizeof why) || !mps.start(job.options.shape.ranks, why, sizeof why)) {
        fprintf(stderr, "efaprof-dispatch: %s\n", why);
        return EXIT_REFUSED;
    }
    int code = launch(job);
    mps.stop();
    return code;
}

} // namespace

int main(int count, char **words) {
    if (count > 1 && strcmp(words[1], "ring") == 0) return bench_ring(count - 1, words + 1);
    if (count > 1 && strcmp(words[1], "limits") == 0) return show_limits(count - 1, words + 1);
    if (count > 1 && strcmp(words[1], "posters") == 0) return bench_posters(count - 1, words + 1);
    if (count > 1 && strcmp(words[1], "mps") == 0) return lend_mps(count - 1, words + 1);
    Job *job = make_job(parse_options(count, words));
    int code = job->options.device == Device::Cuda ? launch_on_gpus(*job) : launch(*job);
    if (code != 0) return code;
    if (!is_all_verified(*job)) return EXIT_FAILED;
    print_summary(*job);
    return 0;
}
