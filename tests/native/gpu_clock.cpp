// Fits a clock that is known (tests/fakes/fake_cuda.cpp) and prints, in ns: the bound that the fit claims, the largest
// distance of translated times from the truth, and how many exchanges there were.
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include <efaprof/trace.h>

#include "gpu/clock.h"
#include "gpu/library.h"
#include "workload/job.h"

using namespace efaprof::dispatch;

namespace {

// How far the line is from the truth now, ns: of several looks the one that was interrupted least.
double astray(const ClockLine &line, uint64_t (*gpu_ns)(), double ticks_per_ns) {
    uint64_t least = UINT64_MAX;
    double found = 0;
    for (int look = 0; look < 50; look++) {
        uint64_t before = efaprof_now(), gpu = gpu_ns(), after = efaprof_now();
        if (after - before >= least) continue;
        least = after - before;
        auto middle = static_cast<int64_t>(before + least / 2);
        found = static_cast<double>(static_cast<int64_t>(line.ticks_at(gpu)) - middle) / ticks_per_ns;
    }
    return found < 0 ? -found : found;
}

} // namespace

int main(int count, char **words) {
    char why[240];
    if (count != 2 || !open_gpu_library(why, sizeof why)) {
        fprintf(stderr, "%s\n", count != 2 ? "usage: gpu_clock FAKE" : why);
        return 2;
    }
    uint64_t (*gpu_ns)() = nullptr;
    void *symbol = dlsym(dlopen(words[1], RTLD_NOW), "fake_gpu_ns");
    memcpy(&gpu_ns, &symbol, sizeof gpu_ns);
    double ticks_per_ns = measure_ticks(), worst = 0;
    GpuClock clock(ticks_per_ns);
    ClockLine line = {};
    clock.start(nullptr, line);
    for (int turn = 0; turn < 8; turn++) {
        timespec nap = {0, 60000000};
        nanosleep(&nap, nullptr);
        double now = astray(line, gpu_ns, ticks_per_ns);
        worst = now > worst ? now : worst;
        if (clock.is_due(efaprof_now())) clock.sample(line);
    }
    printf("%llu %.0f %u\n", static_cast<unsigned long long>(clock.error_ns()), worst, clock.samples());
    return 0;
}
