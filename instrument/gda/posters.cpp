#include "posters.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../gpu/library.h"
#include "../proxy/make.h"
#include "../proxy/wait.h"
#include "../workload/job.h"
#include "loop.h"

namespace efaprof::dispatch {

namespace {

using protocol::PostPlan;
using protocol::PostsSeen;
using protocol::PostStage;

constexpr uint32_t MOST_THREADS = 64, LANES = 32, REQUESTS = 65536;

struct Asked {
    QueueSource source = QueueSource::Auto;
    bool is_on_gpu = false, is_json = false;
    uint64_t posters = 4, entries = 20000, batch = 16, send_queue = 64, delay_ns = 2000, seed = 1, timeout_s = 20;
};

struct Bench {
    Asked asked;
    Job *job;
    PostPlan plan;
    GdaQueues *queues;
    uint64_t *words;
    uint64_t ended; // operations, as the reader told
    uint32_t *arrivals;
    uint16_t *ends;
    PostsSeen seen;
    uint64_t give_up; // ticks
};

struct Poster {
    Bench *bench;
    uint32_t number;
    pthread_t thread;
};

template <typename IsReady> void wait(const Bench &bench, const char *what, IsReady is_ready, uint64_t &looks) {
    for (Idle idle; !is_ready(); looks++) {
        idle.nothing();
        if (efaprof_now() > bench.give_up)
            fail(Cause::Failed, "a poster waited %llu s for %s", static_cast<unsigned long long>(bench.asked.timeout_s),
                 what);
    }
}

void pause(const Bench &bench, uint32_t poster, uint64_t turn, PostStage after) {
    uint64_t ns = protocol::post_pause(bench.plan, poster, turn, after);
    if (ns != 0)
        wait_until(efaprof_now() + static_cast<uint64_t>(static_cast<double>(ns) * bench.job->ticks_per_ns),
                   bench.job->ticks_per_ns);
}

// False: there is nothing left to post.
bool post_group(Bench &bench, uint32_t poster, uint64_t turn, uint64_t &missed) {
    const PostPlan &plan = bench.plan;
    protocol::SendQueue &send = bench.queues->send;
    uint32_t count = protocol::post_count(plan, poster, turn);
    uint64_t place = protocol::reserve(send, count), looks = 0;
    if (place >= plan.entries) return false;
    if (plan.entries - place < count) count = static_cast<uint32_t>(plan.entries - place);
    pause(bench, poster, turn, PostStage::Reserved);
    for (uint32_t i = 0; i < count; i++) {
        wait(
            bench, "space in the send queue",
            [&] { return protocol::has_space(send, place + i, protocol::load_acquire(&bench.ended)); }, looks);
        protocol::store_relaxed(&bench.words[place + i], protocol::post_word(plan, place + i));
        protocol::write_entry(send, place + i, protocol::post_entry(plan, place + i));
    }
    pause(bench, poster, turn, PostStage::Written);
    wait(
        bench, "its turn to ring the doorbell", [&] { return protocol::is_turn(send, place); }, missed);
    protocol::fence_system();
    pause(bench, poster, turn, PostStage::Fenced);
    protocol::ring_doorbell(send, place + count);
    protocol::fetch_add(&bench.seen.doorbells, 1);
    return true;
}

void *post(void *argument) {
    auto &poster = *static_cast<Poster *>(argument);
    Bench &bench = *poster.bench;
    guarded(&bench.job->stop, 0, [&] {
        uint64_t missed = 0;
        for (uint64_t turn = 0; post_group(bench, poster.number, turn, missed); turn++) {
        }
        protocol::fetch_add(&bench.seen.turns_missed, missed);
    });
    return nullptr;
}

// Until everything has ended and arrived; the posters hear of ends alone.
void read_completions(Bench &bench) {
    PostsSeen &seen = bench.seen;
    uint64_t begin = efaprof_now(), looks = 0;
    auto take = [&](const protocol::Completion &found) {
        if (found.status != SOFTEFA_OK) {
            seen.status = found.status;
            fail(Cause::Failed, "request %u ended with status %u (%s)", found.req_id, found.status,
                 status_name(found.status));
        }
        if (found.queue == SOFTEFA_SQ && seen.ends < bench.plan.entries) bench.ends[seen.ends] = found.req_id;
        if (found.queue != SOFTEFA_SQ && seen.arrivals < bench.plan.entries) bench.arrivals[seen.arrivals] = found.imm;
        (found.queue == SOFTEFA_SQ ? seen.ends : seen.arrivals)++;
    };
    auto look = [&] {
        protocol::look(bench.queues->completions, take, [](uint32_t, const protocol::Completion &) {});
        protocol::store_release(&bench.ended, seen.ends);
        return seen.ends >= bench.plan.entries && seen.arrivals >= bench.plan.entries;
    };
    wait(bench, "everything to arrive", look, looks);
    seen.ns = static_cast<uint64_t>(static_cast<double>(efaprof_now() - begin) / bench.job->ticks_per_ns);
}

void run_threads(Bench &bench) {
    auto *posters = make<Poster>(bench.asked.posters);
    for (uint32_t i = 0; i < bench.asked.posters; i++) {
        posters[i] = {&bench, i, {}};
        if (pthread_create(&posters[i].thread, nullptr, post, &posters[i]) != 0)
            fail(Cause::Failed, "thread %u could not be started", i);
    }
    bool is_through = guarded(&bench.job->stop, 0, [&] { read_completions(bench); });
    for (uint32_t i = 0; i < bench.asked.posters; i++)
        pthread_join(posters[i].thread, nullptr);
    free(posters);
    if (!is_through) leave_if_stopped();
}

void run_warps(Bench &bench) {
    const Asked &asked = bench.asked;
    gpu::PosterOptions options = {0,
                                  static_cast<uint32_t>(asked.posters),
                                  asked.timeout_s * 1000000000,
                                  bench.plan,
                                  bench.queues->send,
                                  bench.queues->completions,
                                  bench.words,
                                  bench.arrivals,
                                  bench.ends};
    if (gpu_library().count() < 1) fail(Cause::Refused, "--device cuda: there is no GPU here, or no driver for it");
    check_gpu(gpu_library().bench_posters(&options, &bench.seen));
    if (bench.seen.status != SOFTEFA_OK)
        fail(Cause::Failed, "an entry ended with status %u (%s)", bench.seen.status,
             status_name(static_cast<uint8_t>(bench.seen.status)));
    if (bench.seen.has_given_up)
        fail(Cause::Failed, "a warp waited %llu s: %llu of %llu entries ended, %llu arrived",
             static_cast<unsigned long long>(asked.timeout_s), static_cast<unsigned long long>(bench.seen.ends),
             static_cast<unsigned long long>(bench.plan.entries), static_cast<unsigned long long>(bench.seen.arrivals));
}

// Everything came once and whole; returns whether it came in the order of the places.
bool check(const Bench &bench) {
    const PostPlan &plan = bench.plan;
    auto *times = make<uint8_t>(plan.entries);
    auto *requests = make<uint64_t>(REQUESTS);
    bool is_ordered = true;
    for (uint64_t i = 0; i < plan.entries; i++) {
        uint32_t place = bench.arrivals[i];
        if (place >= plan.entries || times[place]++ != 0)
            fail(Cause::Mismatch, "arrival %llu names place %u, which %s", static_cast<unsigned long long>(i), place,
                 place >= plan.entries ? "was not posted" : "has arrived before");
        is_ordered = is_ordered && place == i;
        requests[bench.ends[i]]++;
    }
    for (uint64_t i = 0; i < plan.entries; i++) {
        uint64_t wanted = plan.entries / REQUESTS + (i % REQUESTS < plan.entries % REQUESTS ? 1 : 0);
        if (requests[i % REQUESTS] != wanted)
            fail(Cause::Mismatch, "request %llu ended %llu times, not %llu",
                 static_cast<unsigned long long>(i % REQUESTS), static_cast<unsigned long long>(requests[i % REQUESTS]),
                 static_cast<unsigned long long>(wanted));
        if (bench.words[plan.entries + i] != protocol::post_word(plan, i))
            fail(Cause::Mismatch, "the entry of place %llu brought another word than it was posted with",
                 static_cast<unsigned long long>(i));
    }
    if (bench.seen.doorbells == 0 || bench.seen.doorbells > plan.entries)
        fail(Cause::Mismatch, "%llu doorbells for %llu entries", static_cast<unsigned long long>(bench.seen.doorbells),
             static_cast<unsigned long long>(plan.entries));
    free(times);
    free(requests);
    return is_ordered;
}

void print(const Bench &bench, const char *source, bool is_ordered) {
    const PostsSeen &seen = bench.seen;
    auto entries = static_cast<double>(bench.plan.entries);
    const char *kind = bench.asked.is_on_gpu ? "warps" : "threads";
    auto count = static_cast<unsigned long long>(bench.plan.entries),
         doorbells = static_cast<unsigned long long>(seen.doorbells),
         missed = static_cast<unsigned long long>(seen.turns_missed);
    auto posters = static_cast<unsigned>(bench.asked.posters);
    double ns = static_cast<double>(seen.ns) / entries;
    if (bench.asked.is_json)
        printf("{\"device\": \"%s\", \"queues\": \"%s\", \"posters\": %u, \"entries\": %llu, \"doorbells\": %llu, "
               "\"turns_missed\": %llu, \"in_order\": %s, \"ns_per_entry\": %.1f}\n",
               bench.asked.is_on_gpu ? "cuda" : "cpu", source, posters, count, doorbells, missed,
               is_ordered ? "true" : "false", ns);
    else
        printf("%u %s, %s: %llu entries by %llu doorbells (%.2f each), every word right and once, %s; %llu looks at a "
               "turn "
               "that had not come; %.0f ns an entry\n",
               posters, kind, source, count, doorbells, entries / static_cast<double>(seen.doorbells),
               is_ordered ? "in the order of their places" : "in another order than their places'", missed, ns);
}

void run(Bench &bench) {
    const Asked &asked = bench.asked;
    Loop loop({asked.source, asked.entries * 2 * sizeof(uint64_t), static_cast<uint32_t>(asked.send_queue),
               static_cast<uint32_t>(4 * asked.send_queue)});
    bench.queues = &loop.queues();
    bench.words = reinterpret_cast<uint64_t *>(loop.memory());
    bench.arrivals = make<uint32_t>(asked.entries);
    bench.ends = make<uint16_t>(asked.entries);
    const protocol::SendQueue &send = bench.queues->send;
    bench.plan = {asked.entries,
                  asked.seed,
                  bench.queues->base,
                  bench.queues->lkey,
                  static_cast<uint32_t>(asked.batch),
                  asked.delay_ns,
                  bench.queues->targets[0]};
    const uint32_t LIMITS[] = {send.count, send.max_batch, asked.is_on_gpu ? LANES : send.count};
    for (uint32_t most : LIMITS) {
        if (bench.plan.batch > most) bench.plan.batch = most;
    }
    bench.give_up =
        efaprof_now() + static_cast<uint64_t>(static_cast<double>(asked.timeout_s) * 1e9 * bench.job->ticks_per_ns);
    asked.is_on_gpu ? run_warps(bench) : run_threads(bench);
    print(bench, loop.source(), check(bench));
    free(bench.arrivals);
    free(bench.ends);
}

uint64_t number(const char *name, const char *text, uint64_t least, uint64_t most) {
    char *end = nullptr;
    unsigned long long found = strtoull(text, &end, 10);
    if (end == text || *end != 0 || text[0] == '-' || found < least || found > most)
        fail(Cause::Refused, "posters: %s must be a whole number from %llu to %llu, not %s", name,
             static_cast<unsigned long long>(least), static_cast<unsigned long long>(most), text);
    return found;
}

// False: there is no such number.
bool take_number(Asked &asked, const char *name, const char *text) {
    const struct {
        const char *name;
        uint64_t *value, least, most;
    } NUMBERS[] = {{"--posters", &asked.posters, 1, MOST_THREADS},
                   {"--entries", &asked.entries, 1, 4000000},
                   {"--batch", &asked.batch, 1, 64},
                   {"--send-queue", &asked.send_queue, 1, 4096},
                   {"--delay-ns", &asked.delay_ns, 0, 1000000000},
                   {"--seed", &asked.seed, 0, UINT64_MAX},
                   {"--timeout", &asked.timeout_s, 1, 3600}};
    for (const auto &one : NUMBERS) {
        if (strcmp(name, one.name) != 0) continue;
        *one.value = number(name, text, one.least, one.most);
        return true;
    }
    return false;
}

void take_options(Asked &asked, int count, char **words) {
    for (int i = 1; i < count; i++) {
        const char *value = i + 1 < count ? words[i + 1] : "nothing";
        if (strcmp(words[i], "--json") == 0)
            asked.is_json = true;
        else if (strcmp(words[i], "--device") == 0 && (strcmp(value, "cpu") == 0 || strcmp(value, "cuda") == 0))
            asked.is_on_gpu = strcmp(words[++i], "cuda") == 0;
        else if ((strcmp(words[i], "--queues") == 0 && parse_source(value, asked.source)) ||
                 take_number(asked, words[i], value))
            i++;
        else
            fail(Cause::Refused, "posters: %s is not an option, or not a whole one; --help lists them", words[i]);
    }
    if ((asked.send_queue & (asked.send_queue - 1)) != 0)
        fail(Cause::Refused, "posters: --send-queue must be a power of two");
    if (asked.is_on_gpu && asked.posters > gpu::MOST_POSTERS)
        fail(Cause::Refused, "posters: --posters: at most %u warps post beside the one that reads", gpu::MOST_POSTERS);
    char why[240];
    if (asked.is_on_gpu && !open_gpu_library(why, sizeof why)) fail(Cause::Refused, "posters: %s", why);
}

} // namespace

int bench_posters(int count, char **words) {
    static Bench bench;
    bench.asked = Asked();
    bench.job = make_job(Options());
    set_stop(&bench.job->stop, 0);
    bool is_through = guarded(&bench.job->stop, 0, [&] {
        take_options(bench.asked, count, words);
        run(bench);
    });
    if (is_through) return 0;
    fprintf(stderr, "efaprof-dispatch: %s\n", bench.job->stop.message);
    return bench.job->stop.cause == Cause::Refused ? EXIT_REFUSED : EXIT_FAILED;
}

} // namespace efaprof::dispatch
