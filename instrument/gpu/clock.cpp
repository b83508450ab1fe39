#include "clock.h"

#include <math.h>
#include <time.h>

#include "../proxy/record.h"
#include "library.h"

namespace efaprof::dispatch {

namespace {

constexpr uint32_t TRIPS = 128; // 0.3 ms, in which the clocks drift apart by some ns
constexpr double PERIOD_NS = 100e6, APART_NS = 200e6;

} // namespace

GpuClock::GpuClock(double ticks_per_ns)
    : nominal_(ticks_per_ns), rate_(ticks_per_ns), period_(static_cast<uint64_t>(PERIOD_NS * ticks_per_ns)) {}

double GpuClock::drift_ppm() const {
    return (rate_ / nominal_ - 1) * 1e6;
}

// Each trip bounds the distance of the clocks from both sides; what all of them leave open is the error.
GpuClock::Pair GpuClock::exchange() {
    gpu::Trip trips[TRIPS];
    check_gpu(gpu_library().exchange(lane_, efaprof_now, trips, TRIPS));
    const gpu::Trip &middle = trips[TRIPS / 2];
    auto apart = [](uint64_t from, uint64_t to) { return static_cast<double>(static_cast<int64_t>(to - from)); };
    double low = -1e18, high = 1e18; // of the host's time when the GPU's was middle.sent, less middle.seen; ns
    for (const gpu::Trip &trip : trips) {
        double seen = apart(middle.seen, trip.seen) / rate_;
        low = fmax(low, seen - apart(middle.sent, trip.back));
        high = fmin(high, seen - apart(middle.sent, trip.sent));
    }
    double best = (low + high) / 2;
    return {middle.sent, middle.seen + static_cast<uint64_t>(static_cast<int64_t>(best * rate_)), fabs(high - low) / 2};
}

void GpuClock::start(gpu::Lane *lane, ClockLine &line) {
    lane_ = lane;
    first_ = last_ = exchange();
    error_ns_ = first_.half_ns;
    count_ = 1;
    line = {first_.gpu_ns, first_.ticks, rate_};
    timespec nap = {0, static_cast<long>(APART_NS)};
    nanosleep(&nap, nullptr);
    sample(line);
    error_ns_ = fmax(first_.half_ns, last_.half_ns); // the rate was a guess until now
}

void GpuClock::sample(ClockLine &line) {
    Pair now = exchange();
    double astray = fabs(static_cast<double>(static_cast<int64_t>(now.ticks - line.ticks_at(now.gpu_ns)))) / rate_;
    error_ns_ = fmax(error_ns_, now.half_ns + astray);
    last_ = now;
    rate_ = static_cast<double>(now.ticks - first_.ticks) / static_cast<double>(now.gpu_ns - first_.gpu_ns);
    line = {now.gpu_ns, now.ticks, rate_};
    count_++;
    record_counter("gpu.clock.half_ns", static_cast<int64_t>(now.half_ns), GAUGE);
    record_counter("gpu.clock.astray_ns", static_cast<int64_t>(astray), GAUGE);
}

} // namespace efaprof::dispatch
