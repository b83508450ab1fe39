// The library's one entry.
#include "lane.h"

namespace efaprof::gpu {

namespace {

constexpr Api TABLE = {API_VERSION, device_count, device_facts, open_lane,    launch_step, done_of,       stamps_of,
                       free_stamps, spans_of,     posts_of,     arrivals_of,  settle_lane, sample_of,     health_of,
                       exchange,    stop_lane,    is_idle,      close_lane,   begin_step,  dispatch_call, combine_call,
                       end_of_step, part_lane,    bench_ring,   bench_posters};

} // namespace

extern "C" __attribute__((visibility("default"))) const Api *efaprof_gpu_api() {
    return &TABLE;
}

} // namespace efaprof::gpu
