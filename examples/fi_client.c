// A small verified libfabric client: one process posts operations, another is their target, and both sum checksums of
// the payloads. One line a case on stdout; exit code 1 when anything does not match, 77 when every case was skipped.
//
//   cc -O2 -o fi_client examples/fi_client.c -lfabric -lpthread
//   fi_client --self                          forks its own target and runs a mix of cases (2-5 s)
//   fi_client --self --op write --size 4096 --count 1000 --window 16 …
//   fi_client --listen 4711                   the target of one --connect
//   fi_client --connect 4711 --op send …
//
// Options of a case: --provider NAME, --op write|writedata|read|send|senddata|tagged|atomic|cancel, --size BYTES,
// --count N, --window N, --threads N, --cq-format context|msg|data|tagged, --inject, --selective (only the last of a
// window completes), --counter (a counter tells instead of completions), --more (FI_MORE), --wait (fi_cq_sread,
// fi_cntr_wait). In the line of a case, everything but eagain, empties and seconds is the same each time.
#include "fi_roles.h"

#include <arpa/inet.h>
#include <getopt.h>
#include <netinet/tcp.h>
#include <sys/wait.h>
#include <unistd.h>

static const char *const op_names[OPS] = {"write",    "writedata", "read",   "send",
                                          "senddata", "tagged",    "atomic", "cancel"};
static const char *const format_names[] = {"unspec", "context", "msg", "data", "tagged"};

// NULL when the provider can do it, else what it lacks.
static const char *lacks(const struct fi_info *info, const struct test_case *test) {
    if (!info) return "the provider offers no such endpoint";
    if (test->inject && test->op == OP_READ) return "a read has no inject form";
    if (test->inject && test->op == OP_CANCEL) return "a receive has no inject form";
    if (test->selective && test->op == OP_READ) return "a silent read cannot be verified";
    if (test->inject && test->size > info->tx_attr->inject_size) return "the size is over the provider's inject limit";
    if ((test->op == OP_WRITEDATA || test->op == OP_SENDDATA) && info->domain_attr->cq_data_size < 4)
        return "the provider carries no immediate data";
    if (test->size > info->ep_attr->max_msg_size) return "the size is over the provider's message limit";
    return NULL;
}

static const char *lacks_atomics(const struct side *side, const struct test_case *test) {
    size_t most = 0;
    if (test->op != OP_ATOMIC) return NULL;
    if (test->size % 8) return "an atomic works on 8-byte words";
    if (fi_atomicvalid(side->ep, FI_UINT64, FI_SUM, &most) != 0) return "the provider has no 64-bit sum";
    return test->size / 8 > most ? "the size is over the provider's atomic limit" : NULL;
}

static void print_case(const char *provider, const struct test_case *test) {
    printf("%-9s provider=%s size=%llu count=%llu window=%d threads=%d format=%s%s%s%s%s%s : ", op_names[test->op],
           provider, (unsigned long long)test->size, (unsigned long long)test->count, test->window, test->threads,
           format_names[test->format], test->inject ? " inject" : "", test->selective ? " selective" : "",
           test->counter ? " counter" : "", test->more ? " more" : "", test->wait ? " wait" : "");
}

enum outcome { OK, MISMATCH, SKIPPED };

static enum outcome report(struct side *side, const struct result *target, double seconds) {
    const struct test_case *test = side->test;
    struct counts *own = &side->counts;
    const uint64_t expected = expected_checksum(test);
    const uint64_t found = test->op == OP_READ ? own->checksum : target->checksum;
    const bool ok = test->op == OP_CANCEL ? own->errors == test->count : found == expected;
    printf("%s checksum=%016llx posts=%llu completions=%llu errors=%llu target_posts=%llu target_completions=%llu"
           " eagain=%llu empties=%llu target_empties=%llu seconds=%.3f\n",
           ok ? "ok" : "MISMATCH", (unsigned long long)found, (unsigned long long)own->posts,
           (unsigned long long)own->completions, (unsigned long long)own->errors, (unsigned long long)target->posts,
           (unsigned long long)target->completions, (unsigned long long)own->eagain, (unsigned long long)own->empties,
           (unsigned long long)target->empties, seconds);
    fflush(stdout);
    return ok ? OK : MISMATCH;
}

static enum outcome run_case(int control, const char *provider, const struct test_case *test) {
    struct fi_info *info = find_info(provider, test);
    const char *missing = lacks(info, test);
    struct side side;
    if (!missing) {
        open_side(&side, info, test);
        missing = lacks_atomics(&side, test);
        if (missing) close_side(&side);
    }
    print_case(provider, test);
    if (missing) {
        printf("skipped: %s\n", missing);
        return SKIPPED;
    }
    side.completed = initiator_completed;
    struct initiator run = {.side = &side, .remote_slots = slots_of_region(test)};
    open_memory(&side, 64, (size_t)test->window * (size_t)test->threads);
    struct start start = {.test = *test, .slots = run.remote_slots, .name_bytes = sizeof start.name};
    snprintf(start.provider, sizeof start.provider, "%s", provider);
    TRY(fi_getname(&side.ep->fid, start.name, &start.name_bytes));
    put(control, &start, sizeof start);
    get(control, &run.peer, sizeof run.peer);
    TRY(fi_av_insert(side.av, run.peer.name, 1, &side.peer, 0, NULL) == 1 ? 0 : -FI_EADDRNOTAVAIL);

    const double began = now_s();
    run_workers(&run);
    const char finished = 1;
    put(control, &finished, 1);
    unsigned spins = 0;
    while (!has_input(control)) // acknowledgements may need our progress
        if (!poll_cq(&side, false)) pause_now_and_then(&spins);
    struct result target;
    get(control, &target, sizeof target);
    const enum outcome outcome = report(&side, &target, now_s() - began);
    close_side(&side);
    put(control, &finished, 1);
    return outcome;
}

// ---- command line
static int open_socket(int port, bool listens, int *bound) {
    const int fd = socket(AF_INET, SOCK_STREAM, 0), one = 1;
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    socklen_t bytes = sizeof address;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    if (!listens) {
        const double until = now_s() + patience_s; // the target may not be there yet
        while (connect(fd, (struct sockaddr *)&address, sizeof address) != 0) {
            if (now_s() > until) die("connect", -FI_ECONNREFUSED);
            usleep(10000);
        }
        return fd;
    }
    if (bind(fd, (struct sockaddr *)&address, sizeof address) != 0 || listen(fd, 1) != 0) die("bind", -FI_EADDRINUSE);
    getsockname(fd, (struct sockaddr *)&address, &bytes);
    if (bound) *bound = ntohs(address.sin_port);
    return fd;
}

static const struct test_case demo_cases[] = {
    // op, format, size, count, window, threads, inject, selective, counter, more, wait
    {OP_SEND, FI_CQ_FORMAT_CONTEXT, 64, 20000, 16, 1, .inject = false},
    {OP_SEND, FI_CQ_FORMAT_CONTEXT, 16, 20000, 16, 1, .inject = true},
    {OP_TAGGED, FI_CQ_FORMAT_TAGGED, 4096, 5000, 16, 1, .inject = false},
    {OP_WRITE, FI_CQ_FORMAT_MSG, 4096, 10000, 1, 1, .inject = false},
    {OP_WRITE, FI_CQ_FORMAT_MSG, 4096, 10000, 64, 1, .inject = false},
    {OP_WRITE, FI_CQ_FORMAT_CONTEXT, 8192, 5000, 32, 1, .selective = true},
    {OP_WRITEDATA, FI_CQ_FORMAT_DATA, 2048, 10000, 32, 1, .inject = false},
    {OP_READ, FI_CQ_FORMAT_CONTEXT, 16384, 2000, 8, 1, .counter = true},
    {OP_WRITE, FI_CQ_FORMAT_CONTEXT, 1048576, 100, 4, 1, .more = true},
    {OP_ATOMIC, FI_CQ_FORMAT_CONTEXT, 64, 5000, 8, 1, .inject = false},
    {OP_WRITE, FI_CQ_FORMAT_CONTEXT, 4096, 8000, 16, 2, .inject = false},
};

static int run_cases(int control, const char *provider, const struct test_case *cases, size_t count) {
    int seen[3] = {0};
    for (size_t i = 0; i < count; ++i)
        ++seen[run_case(control, provider, &cases[i])];
    const struct start end = {.provider = ""};
    put(control, &end, sizeof end);
    return seen[MISMATCH] ? 1 : seen[OK] ? 0 : 77;
}

static int index_of(const char *text, const char *const *names, int count, const char *option) {
    for (int i = 0; i < count; ++i)
        if (strcmp(text, names[i]) == 0) return i;
    fprintf(stderr, "fi_client: %s %s is not one of:", option, text);
    for (int i = 0; i < count; ++i)
        fprintf(stderr, " %s", names[i]);
    fprintf(stderr, "\n");
    exit(2);
}

enum flag {
    SELF = 256,
    LISTEN,
    CONNECT,
    PROVIDER,
    OP,
    SIZE,
    COUNT,
    WINDOW,
    FORMAT,
    THREADS,
    INJECT,
    SELECTIVE,
    COUNTER,
    MORE,
    WAIT
};
static const struct option long_options[] = {{"self", 0, NULL, SELF},
                                             {"listen", 1, NULL, LISTEN},
                                             {"connect", 1, NULL, CONNECT},
                                             {"provider", 1, NULL, PROVIDER},
                                             {"op", 1, NULL, OP},
                                             {"size", 1, NULL, SIZE},
                                             {"count", 1, NULL, COUNT},
                                             {"window", 1, NULL, WINDOW},
                                             {"cq-format", 1, NULL, FORMAT},
                                             {"threads", 1, NULL, THREADS},
                                             {"inject", 0, NULL, INJECT},
                                             {"selective", 0, NULL, SELECTIVE},
                                             {"counter", 0, NULL, COUNTER},
                                             {"more", 0, NULL, MORE},
                                             {"wait", 0, NULL, WAIT},
                                             {NULL, 0, NULL, 0}};

static uint64_t number(const char *text, const char *option, uint64_t least, uint64_t most) {
    char *end;
    const unsigned long long value = strtoull(text, &end, 10);
    if (*end || value < least || value > most) {
        fprintf(stderr, "fi_client: %s %s is not a number from %llu to %llu\n", option, text, (unsigned long long)least,
                (unsigned long long)most);
        exit(2);
    }
    return value;
}

struct command {
    struct test_case test;
    const char *provider;
    bool is_self, has_case;
    int listen_port, connect_port; // -1: not given
};

static struct command parse(int argc, char **argv) {
    struct command command = {{OP_WRITE, FI_CQ_FORMAT_CONTEXT, 4096, 1000, 16, 1, .inject = false},
                              "tcp",
                              .listen_port = -1,
                              .connect_port = -1};
    struct test_case *test = &command.test;
    for (int c; (c = getopt_long(argc, argv, "", long_options, NULL)) != -1;) {
        command.has_case |= c >= OP;
        switch (c) {
        case SELF: command.is_self = true; break;
        case LISTEN: command.listen_port = (int)number(optarg, "--listen", 0, 65535); break;
        case CONNECT: command.connect_port = (int)number(optarg, "--connect", 1, 65535); break;
        case PROVIDER: command.provider = optarg; break;
        case OP: test->op = index_of(optarg, op_names, OPS, "--op"); break;
        case SIZE: test->size = number(optarg, "--size", 1, 1u << 30); break;
        case COUNT: test->count = number(optarg, "--count", 1, 1u << 30); break;
        case WINDOW: test->window = (int)number(optarg, "--window", 1, 4096); break;
        case FORMAT: test->format = index_of(optarg, format_names + 1, 4, "--cq-format") + 1; break;
        case THREADS: test->threads = (int)number(optarg, "--threads", 1, 64); break;
        case INJECT: test->inject = true; break;
        case SELECTIVE: test->selective = true; break;
        case COUNTER: test->counter = true; break;
        case MORE: test->more = true; break;
        case WAIT: test->wait = true; break;
        default: exit(2);
        }
    }
    const char *fault = NULL;
    if (optind != argc || command.is_self + (command.listen_port >= 0) + (command.connect_port >= 0) != 1)
        fault = "give one of --self, --listen PORT and --connect PORT (options: see the head of fi_client.c)";
    else if (test->threads > 1 && (test->selective || test->counter))
        fault = "--threads goes neither with --selective nor with --counter";
    if (fault) {
        fprintf(stderr, "fi_client: %s\n", fault);
        exit(2);
    }
    return command;
}

int main(int argc, char **argv) {
    const struct command command = parse(argc, argv);
    const struct test_case *cases = command.has_case ? &command.test : demo_cases;
    const size_t count = command.has_case ? 1 : sizeof demo_cases / sizeof *demo_cases;
    if (command.connect_port >= 0)
        return run_cases(open_socket(command.connect_port, false, NULL), command.provider, cases, count);

    int port = 0;
    const int listener = open_socket(command.is_self ? 0 : command.listen_port, true, &port);
    if (!command.is_self) return serve(accept(listener, NULL, NULL));
    const pid_t child = fork(); // before libfabric is touched
    if (child == 0) return serve(accept(listener, NULL, NULL));
    const int code = run_cases(open_socket(port, false, NULL), command.provider, cases, count);
    int status = 0;
    waitpid(child, &status, 0);
    return status != 0 ? 1 : code;
}
