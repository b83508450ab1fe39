#include "summary.h"

#include <inttypes.h>
#include <stdio.h>

namespace efaprof::dispatch {

namespace {

struct Totals {
    uint64_t puts, notifies, signals, barriers, operations, verified, wall_ns, checksum;
};

Totals total(const Job &job) {
    Totals totals = {};
    for (uint32_t rank = 0; rank < job.options.shape.ranks; rank++) {
        const Result &result = job.results[rank];
        totals.puts += result.lane.puts;
        totals.notifies += result.lane.notifies;
        totals.signals += result.lane.signals;
        totals.barriers += result.lane.barriers;
        totals.verified += result.verified;
        totals.checksum ^= result.checksum;
        if (result.wall_ns > totals.wall_ns) totals.wall_ns = result.wall_ns;
    }
    totals.operations = totals.puts + totals.notifies + totals.signals + totals.barriers;
    return totals;
}

// The slowest rank's.
GpuTimes worst_times(const Job &job) {
    GpuTimes worst = {};
    for (uint32_t rank = 0; rank < job.options.shape.ranks; rank++) {
        const GpuTimes &times = job.results[rank].gpu;
        worst.violations += times.violations;
        if (times.clock_error_ns > worst.clock_error_ns) worst.clock_error_ns = times.clock_error_ns;
        if (times.dispatch_p50_ns <= worst.dispatch_p50_ns) continue;
        uint64_t violations = worst.violations;
        uint32_t error = worst.clock_error_ns;
        worst = times;
        worst.violations = violations;
        worst.clock_error_ns = error;
    }
    return worst;
}

void print_gpu(const Job &job) {
    GpuTimes times = worst_times(job);
    printf("GPU: dispatch p50 %.2f us, combine p50 %.2f us; clocks fitted within %u ns (%u samples, %.1f ppm), %" PRIu64
           " violations\n",
           times.dispatch_p50_ns / 1e3, times.combine_p50_ns / 1e3, times.clock_error_ns, times.clock_samples,
           times.clock_drift_ppm, times.violations);
}

void print_gpu_json(const Job &job) {
    GpuTimes times = worst_times(job);
    printf(", \"gpu\": {\"stamps\": %s, \"dispatch_us\": {\"p50\": %.3f, \"p99\": %.3f}, \"combine_us\": {\"p50\": "
           "%.3f, \"p99\": %.3f}, \"clock_error_ns\": %u, \"clock_samples\": %u, \"clock_drift_ppm\": %.3f, "
           "\"violations\": %" PRIu64,
           job.options.has_stamps ? "true" : "false", times.dispatch_p50_ns / 1e3, times.dispatch_p99_ns / 1e3,
           times.combine_p50_ns / 1e3, times.combine_p99_ns / 1e3, times.clock_error_ns, times.clock_samples,
           times.clock_drift_ppm, times.violations);
    if (job.options.takes_turns)
        printf(", \"without_stamps\": {\"dispatch_us\": {\"p50\": %.3f}, \"combine_us\": {\"p50\": %.3f}}",
               times.bare_dispatch_p50_ns / 1e3, times.bare_combine_p50_ns / 1e3);
    printf("}");
}

} // namespace

bool is_all_verified(const Job &job) {
    const Options &options = job.options;
    uint64_t tokens = uint64_t{options.shape.ranks} * options.shape.tokens * options.layers;
    uint64_t expected = tokens * (uint64_t{options.warmup} + options.steps), verified = total(job).verified;
    if (verified == expected) return true;
    fprintf(stderr, "efaprof-dispatch: %" PRIu64 " of %" PRIu64 " tokens were verified\n", verified, expected);
    return false;
}

void print_summary(const Job &job) {
    const Options &options = job.options;
    const Result &first = job.results[0];
    Totals totals = total(job);
    double step_us = static_cast<double>(totals.wall_ns) / 1e3 / options.steps;
    if (!options.is_json) {
        if (options.device == Device::Cuda) print_gpu(job);
        char proxies[32] = "";
        if (options.proxies > 1) snprintf(proxies, sizeof proxies, "%u proxies and ", options.proxies);
        printf("%u ranks over %s (%s), %s%u threads a rank: %u steps of %u layers, %.1f us a step; %" PRIu64
               " operations; all %" PRIu64 " tokens verified\n",
               options.shape.ranks, first.provider, signal_name(options.signal), proxies, first.threads, options.steps,
               options.layers, step_us, totals.operations, totals.verified);
        return;
    }
    printf("{\"ranks\": %u, \"provider\": \"%s\", \"signal\": \"%s\", \"immediate\": %s, \"threads\": %u, \"proxies\": "
           "%u, "
           "\"layers\": %u, \"steps\": %u, \"warmup\": %u, \"wall_ns\": %" PRIu64 ", \"step_us\": %.3f, "
           "\"operations\": {\"put\": %" PRIu64 ", \"notify\": %" PRIu64 ", \"signal\": %" PRIu64
           ", \"barrier\": %" PRIu64 "}, \"verified_tokens\": %" PRIu64,
           options.shape.ranks, first.provider, signal_name(options.signal), first.has_imm ? "true" : "false",
           first.threads, options.proxies, options.layers, options.steps, options.warmup, totals.wall_ns, step_us,
           totals.puts, totals.notifies, totals.signals, totals.barriers, totals.verified);
    if (totals.checksum != 0) printf(", \"checksum\": \"%016" PRIx64 "\"", totals.checksum);
    if (options.device == Device::Cuda) print_gpu_json(job);
    printf("}\n");
}

} // namespace efaprof::dispatch
