// Stands in for libefaprof-cuda.so where the clocks are tested: a GPU whose clock is CLOCK_MONOTONIC, 5 ms ahead and
// 12 ppm too fast, 0.6 µs away in one direction and 1.1 µs in the other.
#include <time.h>

#include "cuda/gpu.h"

namespace efaprof::gpu {

namespace {

uint64_t host_ns() {
    timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return static_cast<uint64_t>(time.tv_sec) * 1000000000u + static_cast<uint64_t>(time.tv_nsec);
}

uint64_t gpu_ns() {
    static uint64_t first = host_ns();
    uint64_t now = host_ns();
    return now + 5000000 + (now - first) * 12 / 1000000;
}

void pass(uint64_t ns) {
    for (uint64_t due = host_ns() + ns; host_ns() < due;) {
    }
}

const char *exchange(Lane * /*lane*/, uint64_t (*now)(), Trip *trips, uint32_t count) {
    for (uint32_t trip = 0; trip < count; trip++) {
        trips[trip].sent = gpu_ns();
        pass(600);
        trips[trip].seen = now();
        pass(1100);
        trips[trip].back = gpu_ns();
    }
    return nullptr;
}

} // namespace

extern "C" __attribute__((visibility("default"))) const Api *efaprof_gpu_api() {
    static Api api = {};
    api.version = API_VERSION;
    api.exchange = exchange;
    return &api;
}
extern "C" __attribute__((visibility("default"))) uint64_t fake_gpu_ns() {
    return gpu_ns();
}

} // namespace efaprof::gpu
