// The calls behind the library's table; see gpu.h.
#pragma once

#include "gpu.h"

namespace efaprof::gpu {

const char *open_lane(const Setup *setup, Lane **lane);
const char *launch_step(Lane *lane);
const StepDone *done_of(const Lane *lane);
const Stamp *stamps_of(const Lane *lane);
void free_stamps(Lane *lane, uint64_t number);
const Span *spans_of(const Lane *lane);
const PostStamp *posts_of(const Lane *lane);
const ArrivalStamp *arrivals_of(const Lane *lane);
const char *settle_lane(Lane *lane);
const uint16_t *sample_of(const Lane *lane);
const char *health_of(Lane *lane);
const char *exchange(Lane *lane, uint64_t (*now)(), Trip *trips, uint32_t count);
void stop_lane(Lane *lane);
bool is_idle(Lane *lane);
void close_lane(Lane *lane);
const char *begin_step(Lane *lane, uint32_t step, uint32_t kind, void *stream);
const char *dispatch_call(Lane *lane, const DispatchCall *call, void *stream);
const char *combine_call(Lane *lane, const CombineCall *call, void *stream);
const char *end_of_step(Lane *lane, void *stream);
const char *part_lane(Lane *lane);

int device_count();
const char *device_facts(uint32_t device, DeviceFacts *facts);
const char *bench_ring(const RingOptions *options, uint64_t (*now)(), double ticks_per_ns, RingRates *rates);
const char *bench_posters(const PosterOptions *options, protocol::PostsSeen *seen);

} // namespace efaprof::gpu
