#include "limits.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "../protocol/sequence.h"
#include "../workload/job.h"
#include "loop.h"

namespace efaprof::dispatch {

namespace {

constexpr uint32_t WRITES = 64; // of the channel whose receiver expects order
constexpr size_t BYTES = 4096;
constexpr double PATIENCE_S = 5;
constexpr uint8_t NO_OPERATION = 3; // the first opcode that EFA does not define: it has no atomic one

enum class Seen : uint8_t { Failed, Worked, Nothing }; // Nothing: what it takes to fail did not happen

struct Finding {
    const char *name;
    Seen seen;
    int status; // of the completion, -1: none came
    char said[240];
};

[[gnu::format(printf, 2, 3)]] void say(Finding &finding, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(finding.said, sizeof finding.said, format, arguments);
    va_end(arguments);
}

// The end of the one operation that was posted.
void judge(Loop &loop, double ticks_per_ns, Finding &finding) {
    protocol::Completion end;
    if (!loop.next(end, PATIENCE_S * 1e9 * ticks_per_ns)) {
        finding.seen = Seen::Nothing;
        say(finding, "no completion came for %.0f s", PATIENCE_S);
        return;
    }
    finding.status = end.status;
    finding.seen = end.status == SOFTEFA_OK ? Seen::Worked : Seen::Failed;
    say(finding, "error completion, status %u: %s", end.status, status_name(end.status));
}

Finding atomic_signal(QueueSource source, double ticks_per_ns) {
    Finding finding = {"put_signal by atomic fetch-add", Seen::Nothing, -1, ""};
    Loop loop({source, BYTES, WRITES, 4 * WRITES});
    softefa_wqe wqe = loop.write_of(0, 1024, 8, 1);
    loop.memory()[0] = 1; // what is to be added
    wqe.meta.ctrl1 = static_cast<uint8_t>((wqe.meta.ctrl1 & ~SOFTEFA_CTRL1_OP) | NO_OPERATION);
    loop.post(wqe);
    judge(loop, ticks_per_ns, finding);
    if (finding.seen == Seen::Failed && loop.memory()[1024] == 0) {
        size_t length = strlen(finding.said);
        snprintf(finding.said + length, sizeof finding.said - length,
                 "; the signal was not set: EFA has send, read and write, no atomic");
    }
    return finding;
}

Finding two_pieces(QueueSource source, double ticks_per_ns) {
    Finding finding = {"RDMA write of two local pieces", Seen::Nothing, -1, ""};
    Loop loop({source, BYTES, WRITES, 4 * WRITES});
    softefa_wqe wqe = loop.write_of(0, 1024, 64, 1);
    wqe.meta.length = 2;
    loop.post(wqe);
    judge(loop, ticks_per_ns, finding);
    return finding;
}

// A consumer that takes the next operation to be the next arrival, as on a connection that keeps order, and one that
// holds arrivals back until it is their turn, over the same arrivals.
struct Receivers {
    uint32_t in_order = 0;  // operations that the first has taken
    uint32_t first_odd = 0; // the arrival at which it lost its place, and what it had expected
    uint32_t expected = 0;
    bool has_lost = false;
    protocol::Window window = {};
    uint64_t handed = 0; // operations that the second has handed over

    void arrive(uint32_t imm) {
        uint32_t number = protocol::imm_seq(imm);
        if (number == in_order) {
            in_order++;
        } else if (!has_lost) {
            has_lost = true;
            first_odd = number;
            expected = in_order;
        }
        int64_t whole = 0;
        protocol::arrive(window, protocol::imm_seq(imm), whole);
        for (uint64_t seq = 0; protocol::hand_over(window, seq);)
            handed++;
    }
};

Finding in_order_receiver(QueueSource source, double ticks_per_ns) {
    Finding finding = {"receiver that expects order", Seen::Nothing, -1, ""};
    Loop loop({source, BYTES, WRITES, 4 * WRITES});
    for (uint32_t i = 0; i < WRITES; i++) {
        softefa_wqe wqe = loop.write_of(i, 1024 + i, 1, static_cast<uint16_t>(i));
        wqe.meta.ctrl1 = static_cast<uint8_t>(wqe.meta.ctrl1 | SOFTEFA_CTRL1_IMM);
        wqe.meta.imm = protocol::pack_imm(0, 0, i);
        loop.post(wqe);
    }
    Receivers receivers;
    protocol::Completion found;
    for (uint32_t ends = 0, arrivals = 0; ends < WRITES || arrivals < WRITES;) {
        if (!loop.next(found, PATIENCE_S * 1e9 * ticks_per_ns)) {
            say(finding, "%u of %u writes ended, %u arrived, then nothing for %.0f s", ends, WRITES, arrivals,
                PATIENCE_S);
            return finding;
        }
        if (found.status != SOFTEFA_OK) {
            finding.status = found.status;
            say(finding, "error completion, status %u: %s", found.status, status_name(found.status));
            return finding;
        }
        if (found.queue == SOFTEFA_SQ) {
            ends++;
            continue;
        }
        arrivals++;
        receivers.arrive(found.imm);
    }
    if (!receivers.has_lost) {
        finding.seen = Seen::Worked;
        say(finding, "all %u writes arrived in order here: nothing overtook (--emulate latency=10us,reorder=0.5)",
            WRITES);
        return finding;
    }
    finding.seen = receivers.handed == WRITES ? Seen::Failed : Seen::Nothing;
    say(finding,
        "stalled: rank 0 channel 0 waits for operation %u for ever, operation %u came before it; one that holds back "
        "handed over all %llu",
        receivers.expected, receivers.first_odd, static_cast<unsigned long long>(receivers.handed));
    return finding;
}

const char *seen_name(Seen seen) {
    switch (seen) {
    case Seen::Failed: return "fails";
    case Seen::Worked: return "works";
    case Seen::Nothing: return "unknown";
    }
    return "";
}

void print(const Finding *findings, size_t count, bool is_json) {
    for (size_t i = 0; i < count; i++) {
        const Finding &one = findings[i];
        if (is_json)
            printf("%s{\"name\": \"%s\", \"seen\": \"%s\", \"status\": %d, \"said\": \"%s\"}", i == 0 ? "[" : ", ",
                   one.name, seen_name(one.seen), one.status, one.said);
        else
            printf("%-32s %-8s %s\n", one.name, seen_name(one.seen), one.said);
    }
    if (is_json) puts("]");
}

} // namespace

int show_limits(int count, char **words) {
    bool is_json = false;
    Options options;
    for (int i = 1; i < count; i++) {
        if (strcmp(words[i], "--json") == 0)
            is_json = true;
        else if (strcmp(words[i], "--queues") == 0 && i + 1 < count &&
                 parse_source(words[i + 1], options.posting.queues))
            i++;
        else {
            fprintf(stderr, "efaprof-dispatch limits: %s is not an option: --queues auto|libfabric|verbs, --json\n",
                    words[i]);
            return EXIT_REFUSED;
        }
    }
    Job *job = make_job(options);
    set_stop(&job->stop, 0);
    QueueSource source = options.posting.queues;
    Finding findings[3];
    bool is_through = guarded(&job->stop, 0, [&] {
        findings[0] = atomic_signal(source, job->ticks_per_ns);
        findings[1] = in_order_receiver(source, job->ticks_per_ns);
        findings[2] = two_pieces(source, job->ticks_per_ns);
    });
    if (!is_through) {
        fprintf(stderr, "efaprof-dispatch: %s\n", job->stop.message);
        return job->stop.cause == Cause::Refused ? EXIT_REFUSED : EXIT_FAILED;
    }
    print(findings, 3, is_json);
    for (const Finding &one : findings) {
        if (one.seen != Seen::Failed) return EXIT_FAILED;
    }
    return 0;
}

} // namespace efaprof::dispatch
