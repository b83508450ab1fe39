#include "ring_bench.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../gpu/library.h"
#include "../protocol/ring_check.h"
#include "../proxy/wait.h"
#include "job.h"

namespace efaprof::dispatch {

namespace {

constexpr uint64_t CAPACITY = 1024;

struct alignas(64) Word {
    uint64_t value;
};

struct Bench {
    uint64_t commands = 2000000;
    uint64_t trips = 100000;
    alignas(64) protocol::Command slots[CAPACITY] = {};
    Word tail = {};
    Word ping = {}, pong = {}; // one cache line each way: the floor under any round trip
    uint64_t wrong = 0;        // commands that did not carry what was pushed
};

[[noreturn]] void die() {
    fputs("efaprof-dispatch ring: out of memory or threads\n", stderr);
    exit(EXIT_FAILED);
}

void push(protocol::Producer &ring, uint64_t seq) {
    for (Idle idle; !protocol::has_room(ring);)
        idle.nothing();
    protocol::publish(ring, protocol::command_of(seq));
}

void *consume(void *argument) {
    auto &bench = *static_cast<Bench *>(argument);
    protocol::Consumer ring = {bench.slots, &bench.tail.value, CAPACITY, 0, 0};
    Idle idle;
    for (protocol::Command command = {}; ring.next < bench.commands;) {
        if (!protocol::peek(ring, command)) {
            protocol::write_tail(ring);
            idle.nothing();
            continue;
        }
        bench.wrong += protocol::is_command_of(command, ring.next) ? 0 : 1;
        protocol::take(ring);
        idle.found();
    }
    protocol::write_tail(ring);
    return nullptr;
}

// Answers each command by a word, as the proxy tells a completion.
void *answer(void *argument) {
    auto &bench = *static_cast<Bench *>(argument);
    protocol::Consumer ring = {bench.slots, &bench.tail.value, CAPACITY, 0, 0};
    Idle idle;
    for (protocol::Command command = {}; ring.next < bench.trips;) {
        if (!protocol::peek(ring, command)) {
            idle.nothing();
            continue;
        }
        bench.wrong += protocol::is_command_of(command, ring.next) ? 0 : 1;
        protocol::take(ring);
        protocol::write_tail(ring);
        protocol::store_release(&bench.pong.value, ring.next);
        idle.found();
    }
    return nullptr;
}

void *echo(void *argument) {
    auto &bench = *static_cast<Bench *>(argument);
    Idle idle;
    for (uint64_t trip = 1; trip <= bench.trips; trip++) {
        while (protocol::load_acquire(&bench.ping.value) != trip)
            idle.nothing();
        protocol::store_release(&bench.pong.value, trip);
        idle.found();
    }
    return nullptr;
}

struct Trips {
    double p50_ns, p99_ns, mean_ns;
};

int compare(const void *left, const void *right) {
    uint64_t a = *static_cast<const uint64_t *>(left), b = *static_cast<const uint64_t *>(right);
    return a < b ? -1 : a > b;
}

Trips summarise(uint64_t *ticks, uint64_t count, double ticks_per_ns) {
    double sum = 0;
    for (uint64_t i = 0; i < count; i++)
        sum += static_cast<double>(ticks[i]);
    qsort(ticks, count, sizeof *ticks, compare);
    return {static_cast<double>(ticks[count / 2]) / ticks_per_ns,
            static_cast<double>(ticks[count - 1 - count / 100]) / ticks_per_ns,
            sum / static_cast<double>(count) / ticks_per_ns};
}

// Runs `other` on a second thread while `trip(i)` makes each round trip from this one.
template <typename MakeTrip> Trips measure(Bench &bench, void *(*other)(void *), double ticks_per_ns, MakeTrip trip) {
    auto *ticks = static_cast<uint64_t *>(calloc(bench.trips, sizeof(uint64_t)));
    pthread_t thread;
    bench.pong.value = 0;
    if (ticks == nullptr || pthread_create(&thread, nullptr, other, &bench) != 0) die();
    for (uint64_t i = 0; i < bench.trips; i++) {
        uint64_t begin = efaprof_now();
        trip(i);
        for (Idle idle; protocol::load_acquire(&bench.pong.value) != i + 1;)
            idle.nothing();
        ticks[i] = efaprof_now() - begin;
    }
    pthread_join(thread, nullptr);
    Trips trips = summarise(ticks, bench.trips, ticks_per_ns);
    free(ticks);
    return trips;
}

double push_rate(Bench &bench, double ticks_per_ns) {
    protocol::Producer ring = {bench.slots, &bench.tail.value, CAPACITY, 0, 0};
    pthread_t thread;
    if (pthread_create(&thread, nullptr, consume, &bench) != 0) die();
    uint64_t begin = efaprof_now();
    for (uint64_t seq = 0; seq < bench.commands; seq++)
        push(ring, seq);
    pthread_join(thread, nullptr);
    return static_cast<double>(bench.commands) * 1e9 * ticks_per_ns / static_cast<double>(efaprof_now() - begin);
}

void clear(Bench &bench) {
    memset(bench.slots, 0, sizeof bench.slots);
    bench.tail.value = 0;
}

uint64_t number(const char *name, const char *text) {
    char *end = nullptr;
    unsigned long long value = strtoull(text, &end, 10);
    if (end == text || *end != 0 || value < 100 || value > 1000000000) {
        fprintf(stderr, "efaprof-dispatch ring: %s must be a whole number from 100 to 1000000000, not %s\n", name,
                text);
        exit(EXIT_REFUSED);
    }
    return value;
}

void take_options(Bench &bench, bool &is_json, bool &is_on_gpu, int count, char **words) {
    for (int i = 1; i < count; i++) {
        const char *value = i + 1 < count ? words[i + 1] : "nothing";
        if (strcmp(words[i], "--json") == 0) {
            is_json = true;
        } else if (strcmp(words[i], "--device") == 0 && (strcmp(value, "cpu") == 0 || strcmp(value, "cuda") == 0)) {
            is_on_gpu = strcmp(words[++i], "cuda") == 0;
        } else if (strcmp(words[i], "--commands") == 0) {
            bench.commands = number(words[i++], value);
        } else if (strcmp(words[i], "--trips") == 0) {
            bench.trips = number(words[i++], value);
        } else {
            fprintf(stderr,
                    "efaprof-dispatch ring: %s is not an option, or not a whole one; there are --device cpu|cuda, "
                    "--commands, --trips, --json\n",
                    words[i]);
            exit(EXIT_REFUSED);
        }
    }
}

void print_gpu(const gpu::RingRates &rates, const gpu::DeviceFacts &facts, bool is_json) {
    if (!is_json) {
        printf("%s: round trip p50 %.0f ns (p99 %.0f, least %.0f), without a release %.0f ns; M commands/s: one thread "
               "%.2f, one warp %.1f, four a lane %.1f, drained by one core %.1f\n",
               facts.name, rates.trip_p50_ns, rates.trip_p99_ns, rates.trip_least_ns, rates.relaxed_p50_ns,
               rates.thread_per_s / 1e6, rates.warp_per_s / 1e6, rates.batch_per_s / 1e6, rates.drain_per_s / 1e6);
        return;
    }
    printf("{\"device\": \"cuda\", \"gpu\": \"%s\", \"driver\": %d, \"timer_step_ns\": %u, \"capacity\": %u, "
           "\"commands\": %llu, \"wrong\": %llu, \"trips\": %llu, ",
           facts.name, facts.driver, rates.timer_step_ns, rates.capacity,
           static_cast<unsigned long long>(rates.commands), static_cast<unsigned long long>(rates.wrong),
           static_cast<unsigned long long>(rates.trips));
    printf("\"round_trip_ns\": {\"p50\": %.0f, \"p99\": %.0f, \"p999\": %.0f, \"least\": %.0f}, "
           "\"relaxed_round_trip_ns\": {\"p50\": %.0f}, \"nearest_core\": {\"core\": %d, \"round_trip_ns\": {\"p50\": "
           "%.0f}}, ",
           rates.trip_p50_ns, rates.trip_p99_ns, rates.trip_p999_ns, rates.trip_least_ns, rates.relaxed_p50_ns,
           rates.nearest_core, rates.nearest_p50_ns);
    printf("\"commands_per_s\": {\"thread\": %.0f, \"warp\": %.0f, \"warp_batch\": %.0f, \"drain\": %.0f, "
           "\"drain_eager_tail\": %.0f, \"warp_uncached_tail\": %.0f, \"warp_host_head\": %.0f}, "
           "\"drain_looks_that_found\": %.4f}\n",
           rates.thread_per_s, rates.warp_per_s, rates.batch_per_s, rates.drain_per_s, rates.eager_tail_per_s,
           rates.uncached_tail_per_s, rates.host_head_per_s, rates.consumer_busy);
}

int bench_on_gpu(const Bench &bench, bool is_json, double ticks_per_ns) {
    constexpr uint64_t TIMEOUT_NS = 20000000000;
    char why[240];
    gpu::RingRates rates;
    gpu::DeviceFacts facts;
    if (!open_gpu_library(why, sizeof why)) {
        fprintf(stderr, "efaprof-dispatch ring: %s\n", why);
        return EXIT_REFUSED;
    }
    const gpu::Api &api = gpu_library();
    gpu::RingOptions options = {0, bench.commands, bench.trips, TIMEOUT_NS};
    const char *fault = api.count() < 1 ? "there is no GPU here, or no driver for it" : api.facts(0, &facts);
    if (fault == nullptr) fault = api.bench_ring(&options, efaprof_now, ticks_per_ns, &rates);
    if (fault != nullptr) {
        fprintf(stderr, "efaprof-dispatch ring: --device cuda: %s\n", fault);
        return EXIT_FAILED;
    }
    print_gpu(rates, facts, is_json);
    return rates.wrong == 0 ? 0 : EXIT_FAILED;
}

} // namespace

int bench_ring(int count, char **words) {
    static Stop stop;
    static Bench bench;
    bool is_json = false, is_on_gpu = false;
    take_options(bench, is_json, is_on_gpu, count, words);
    set_stop(&stop, 0);
    double ticks_per_ns = measure_ticks();
    if (is_on_gpu) return bench_on_gpu(bench, is_json, ticks_per_ns);
    double rate = push_rate(bench, ticks_per_ns);
    clear(bench);
    protocol::Producer ring = {bench.slots, &bench.tail.value, CAPACITY, 0, 0};
    Trips through = measure(bench, answer, ticks_per_ns, [&](uint64_t i) { push(ring, i); });
    Trips floor =
        measure(bench, echo, ticks_per_ns, [&](uint64_t i) { protocol::store_release(&bench.ping.value, i + 1); });
    if (bench.wrong != 0) {
        fprintf(stderr, "efaprof-dispatch ring: %llu commands did not carry what was pushed\n",
                static_cast<unsigned long long>(bench.wrong));
        return EXIT_FAILED;
    }
    if (is_json)
        printf("{\"commands\": %llu, \"commands_per_s\": %.0f, \"trips\": %llu, \"round_trip_ns\": {\"p50\": %.1f, "
               "\"p99\": %.1f, \"mean\": %.1f}, \"cache_line_ns\": {\"p50\": %.1f, \"p99\": %.1f, \"mean\": %.1f}}\n",
               static_cast<unsigned long long>(bench.commands), rate, static_cast<unsigned long long>(bench.trips),
               through.p50_ns, through.p99_ns, through.mean_ns, floor.p50_ns, floor.p99_ns, floor.mean_ns);
    else
        printf("%.2f M commands/s; round trip p50 %.0f ns, p99 %.0f ns; a bare cache line there and back p50 %.0f ns\n",
               rate / 1e6, through.p50_ns, through.p99_ns, floor.p50_ns);
    return 0;
}

} // namespace efaprof::dispatch
