#include "summary.h"

#include <inttypes.h>
#include <stdio.h>

namespace efaprof::dispatch {

namespace {

struct Totals {
    uint64_t puts, notifies, signals, barriers, operations, verified, wall_ns;
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
        if (result.wall_ns > totals.wall_ns) totals.wall_ns = result.wall_ns;
    }
    totals.operations = totals.puts + totals.notifies + totals.signals + totals.barriers;
    return totals;
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
        printf("%u ranks over %s (%s), %u threads a rank: %u steps of %u layers, %.1f us a step; %" PRIu64
               " operations; all %" PRIu64 " tokens verified\n",
               options.shape.ranks, first.provider, signal_name(options.signal), first.threads, options.steps,
               options.layers, step_us, totals.operations, totals.verified);
        return;
    }
    printf("{\"ranks\": %u, \"provider\": \"%s\", \"signal\": \"%s\", \"immediate\": %s, \"threads\": %u, "
           "\"layers\": %u, \"steps\": %u, \"warmup\": %u, \"wall_ns\": %" PRIu64 ", \"step_us\": %.3f, "
           "\"operations\": {\"put\": %" PRIu64 ", \"notify\": %" PRIu64 ", \"signal\": %" PRIu64
           ", \"barrier\": %" PRIu64 "}, \"verified_tokens\": %" PRIu64 "}\n",
           options.shape.ranks, first.provider, signal_name(options.signal), first.has_imm ? "true" : "false",
           first.threads, options.layers, options.steps, options.warmup, totals.wall_ns, step_us, totals.puts,
           totals.notifies, totals.signals, totals.barriers, totals.verified);
}

} // namespace efaprof::dispatch
