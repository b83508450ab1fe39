#include "options.h"

#include <errno.h>
#include <getopt.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../protocol/routing.h"
#include "../proxy/stop.h"

namespace efaprof::dispatch {

namespace {

constexpr const char *HELP =
    "usage: efaprof-dispatch [options]\n"
    "Decode steps of a Mixture-of-Experts model over libfabric, on this host: each rank is a process, its kernel a\n"
    "CPU thread (emulated), its ring, proxy and remote writes are real. Data is verified every step.\n"
    "\n"
    "  --ranks N --layers N --steps N --warmup N --tokens N (per rank) --hidden N --topk N --experts N (in all)\n"
    "  --channels N            channels of a pair of ranks, each closed by a signal per phase\n"
    "  --compute-us N          time that stands for the rest of a layer\n"
    "  --signal MODE           imm, fence or fence-batch\n"
    "  --provider NAME         of libfabric: tcp, shm, efa, efa-direct, …\n"
    "  --proxies N             rings of a rank, each with a proxy and an endpoint of its own; a channel keeps to one\n"
    "  --threads N             of a rank: 2, or 3 with receiving threads beside the proxies; auto: 3 with two cores a\n"
    "                          rank and two a proxy\n"
    "  --device cpu|cuda       where the kernel runs: a CPU thread (emulated) or a GPU\n"
    "  --dtype f32|bf16|fp8    of a token's elements; f32 on a CPU, bf16 or fp8 (with a scale per 128) on a GPU\n"
    "  --drain N               commands posted before completions get their turn\n"
    "  --more                  posts that follow each other share a doorbell (FI_MORE)\n"
    "  --pin                   threads stay on the NUMA node of the GPU\n"
    "  --no-stamps             no stamps in the GPU's kernels\n"
    "  --stamps-in-turns       only in every other step, for what they cost; for runs that are not recorded\n"
    "  --ring N --window N     commands in the ring, operations in flight (powers of two)\n"
    "  --path PATH             proxy: a proxy posts; gdaki: the kernel posts work queue entries by itself (EFA)\n"
    "  --queues SOURCE         gdaki: libfabric (efa gda ops), verbs, or auto: the first that is there\n"
    "  --completion WAY        gdaki: cq, or counter: the device counts, with --signal fence or fence-batch\n"
    "  --batch N               gdaki: entries that one doorbell announces\n"
    "  --send-queue N          gdaki: entries of the send queue [--window]\n"
    "  --inject LAYER=TIME     add that much to every operation in kernel, ring, proxy, libfabric, nic or rx\n"
    "  --late RANK=TIME        that rank computes so much longer in every layer; repeatable\n"
    "  --timeout S             fail when a lane waits that long for a peer\n"
    "  --seed N --json\n"
    "\n"
    "usage: efaprof-dispatch limits [--queues SOURCE] [--json]\n"
    "What a kernel cannot do on EFA, shown failing: atomic signals, a receiver that expects order, two local pieces.\n"
    "\n"
    "usage: efaprof-dispatch posters [--device cpu|cuda] [--posters N] [--entries N] [--batch N] [--send-queue N]\n"
    "                                [--delay-ns N] [--queues SOURCE] [--seed N] [--timeout S] [--json]\n"
    "Threads, or warps of a GPU, that post to one queue pair with random pauses: every entry must arrive once and "
    "whole.\n"
    "\n"
    "usage: efaprof-dispatch ring [--device cpu|cuda] [--commands N] [--trips N] [--json]\n"
    "Speed of the ring alone, between two threads, or between a GPU's kernel and a thread.\n";

[[noreturn, gnu::format(printf, 1, 2)]] void refuse(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    fputs("efaprof-dispatch: ", stderr);
    vfprintf(stderr, format, arguments);
    fputs("\n", stderr);
    va_end(arguments);
    exit(EXIT_REFUSED);
}

uint64_t number(const char *name, const char *text, uint64_t least, uint64_t most) {
    char *end = nullptr;
    errno = 0;
    unsigned long long value = strtoull(text, &end, 10);
    if (errno != 0 || end == text || *end != 0 || text[0] == '-' || value < least || value > most)
        refuse("--%s must be a whole number from %llu to %llu, not %s", name, static_cast<unsigned long long>(least),
               static_cast<unsigned long long>(most), text);
    return value;
}

uint32_t number32(const char *name, const char *text, uint32_t least, uint32_t most) {
    return static_cast<uint32_t>(number(name, text, least, most));
}

uint64_t duration_ns(const char *name, const char *text) {
    constexpr struct {
        const char *unit;
        double ns;
    } UNITS[] = {{"ns", 1}, {"us", 1e3}, {"ms", 1e6}, {"s", 1e9}};
    char *end = nullptr;
    double value = strtod(text, &end);
    for (const auto &unit : UNITS) {
        if (end != text && strcmp(end, unit.unit) == 0 && value >= 0 && value * unit.ns <= 60e9)
            return static_cast<uint64_t>(value * unit.ns);
    }
    refuse("--%s must be a time up to 60s, such as 200us, not %s", name, text);
}

void add_inject(Inject &inject, const char *text) {
    const struct {
        const char *layer;
        uint64_t *target;
    } LAYERS[] = {{"kernel", &inject.kernel_ns},       {"ring", &inject.ring_ns}, {"proxy", &inject.proxy_ns},
                  {"libfabric", &inject.libfabric_ns}, {"nic", &inject.nic_ns},   {"rx", &inject.rx_ns}};
    const char *equals = strchr(text, '=');
    for (const auto &layer : LAYERS) {
        if (equals != nullptr && strlen(layer.layer) == static_cast<size_t>(equals - text) &&
            strncmp(text, layer.layer, strlen(layer.layer)) == 0) {
            *layer.target = duration_ns("inject", equals + 1);
            return;
        }
    }
    refuse("--inject must be LAYER=TIME with a layer of kernel, ring, proxy, libfabric, nic, rx, not %s", text);
}

// Times of one rank each, so whether there is such a rank is known when all options are.
void add_late(Options &options, const char *text) {
    char *equals = nullptr;
    unsigned long rank = strtoul(text, &equals, 10);
    if (equals == text || *equals != '=' || text[0] == '-' || rank >= protocol::MAX_RANKS)
        refuse("--late must be RANK=TIME, such as 1=200us, not %s", text);
    options.late_ns[rank] = duration_ns("late", equals + 1);
}

SignalMode signal_of(const char *text) {
    constexpr SignalMode MODES[] = {SignalMode::Imm, SignalMode::Fence, SignalMode::FenceBatch};
    for (SignalMode mode : MODES) {
        if (strcmp(text, signal_name(mode)) == 0) return mode;
    }
    refuse("--signal must be imm, fence or fence-batch, not %s", text);
}

Device device_of(const char *text) {
    if (strcmp(text, "cpu") == 0) return Device::Cpu;
    if (strcmp(text, "cuda") == 0) return Device::Cuda;
    refuse("--device must be cpu or cuda, not %s", text);
}

uint32_t element_bytes(const char *text) {
    constexpr struct {
        const char *name;
        uint32_t bytes;
    } TYPES[] = {{"f32", 4}, {"bf16", 2}, {"fp8", 1}};
    for (const auto &type : TYPES) {
        if (strcmp(text, type.name) == 0) return type.bytes;
    }
    refuse("--dtype must be f32, bf16 or fp8, not %s", text);
}

Path path_of(const char *text) {
    if (strcmp(text, "proxy") == 0) return Path::Proxy;
    if (strcmp(text, "gdaki") == 0) return Path::Gdaki;
    refuse("--path must be proxy or gdaki, not %s", text);
}

QueueSource source_of(const char *text) {
    QueueSource source;
    if (!parse_source(text, source)) refuse("--queues must be auto, libfabric or verbs, not %s", text);
    return source;
}

bool counts_of(const char *text) {
    if (strcmp(text, "cq") == 0) return false;
    if (strcmp(text, "counter") == 0) return true;
    refuse("--completion must be cq or counter, not %s", text);
}

uint32_t power_of_two(const char *name, const char *text, uint32_t least, uint32_t most) {
    uint32_t value = number32(name, text, least, most);
    if ((value & (value - 1)) != 0) refuse("--%s must be a power of two, not %s", name, text);
    return value;
}

// What the kernels of the GPU path are written for.
void check_device(const Options &options) {
    const protocol::Shape &shape = options.shape;
    if (options.device == Device::Cpu) {
        if (shape.element_bytes != sizeof(float)) refuse("--dtype bf16 and fp8 are types of --device cuda");
        if (options.is_pinned) refuse("--pin keeps threads near a GPU: add --device cuda");
        return;
    }
    uint32_t unit = shape.element_bytes == 1 ? 128 : 8;
    if (shape.element_bytes == sizeof(float)) refuse("--device cuda moves --dtype bf16 or fp8");
    if (shape.hidden % unit != 0 || shape.hidden > 32768)
        refuse("--hidden %u: a kernel moves whole vectors, multiples of %u up to 32768", shape.hidden, unit);
    if (options.ring < 64)
        refuse("--ring %u: a warp pushes 32 commands at a time, so it must be 64 or more", options.ring);
    if (shape.experts / shape.ranks > 2048) refuse("--experts: at most 2048 of a rank with --device cuda");
}

// What kernels on a GPU do not do when they post by themselves.
void check_posting_kernel(const Options &options) {
    if (options.path != Path::Gdaki || options.device != Device::Cuda) return;
    if (options.takes_turns) refuse("--stamps-in-turns needs --path proxy");
    if (options.inject.nic_ns != 0 || options.inject.rx_ns != 0)
        refuse(
            "--inject: with --path gdaki --device cuda, only kernel: nobody but the kernel could hold nic and rx back");
}

void check(const Options &options) {
    const protocol::Shape &shape = options.shape;
    check_device(options);
    check_posting_kernel(options);
    if (options.path == Path::Gdaki && strcmp(options.provider, "efa-direct") != 0)
        refuse("--path gdaki posts to an EFA device, not through provider %s: use --provider efa-direct",
               options.provider);
    if (options.proxies > 1 && options.path == Path::Gdaki)
        refuse("--proxies %u: on path gdaki the kernel posts by itself, there is no proxy", options.proxies);
    if (options.proxies > shape.channels)
        refuse("--proxies %u: a channel keeps to one of them, and there are %u channels", options.proxies,
               shape.channels);
    if (options.posting.counts && options.signal == SignalMode::Imm)
        refuse("--completion counter reads no completion queue, where immediates arrive: use --signal fence");
    if (shape.topk > shape.experts)
        refuse("--topk %u is more than the %u experts: a token's experts are distinct", shape.topk, shape.experts);
    if (shape.experts % shape.ranks != 0)
        refuse("--experts %u cannot be shared out evenly over %u ranks", shape.experts, shape.ranks);
    for (uint32_t rank = shape.ranks; rank < protocol::MAX_RANKS; rank++) {
        if (options.late_ns[rank] != 0) refuse("--late %u=…: there are %u ranks, counted from 0", rank, shape.ranks);
    }
    if (protocol::token_bytes(shape) > UINT32_MAX)
        refuse("a token of %llu bytes is over the limit of a command, %u bytes: lower --hidden",
               static_cast<unsigned long long>(protocol::token_bytes(shape)), UINT32_MAX);
    if (protocol::heap_of(shape).units > UINT32_MAX)
        refuse("%llu bytes of buffers a rank are over the reach of a command, 64 GiB: lower --hidden or --tokens",
               static_cast<unsigned long long>(protocol::heap_of(shape).units * protocol::UNIT_BYTES));
}

enum Code {
    HELP_CODE = 256,
    RANKS,
    LAYERS,
    STEPS,
    WARMUP,
    TOKENS,
    HIDDEN,
    TOPK,
    EXPERTS,
    CHANNELS,
    COMPUTE,
    SIGNAL,
    SEED,
    PROVIDER,
    THREADS,
    PROXIES,
    RING,
    DEVICE,
    DTYPE,
    DRAIN,
    MORE,
    PIN,
    NO_STAMPS,
    TAKE_TURNS,
    WINDOW_CODE,
    INJECT,
    LATE,
    CORRUPT,
    NO_IMM,
    TIMEOUT,
    PATH_CODE,
    QUEUES,
    COMPLETION,
    BATCH,
    SEND_QUEUE,
    FUZZ,
    JSON
};

constexpr option LONG_OPTIONS[] = {{"help", no_argument, nullptr, HELP_CODE},
                                   {"ranks", required_argument, nullptr, RANKS},
                                   {"layers", required_argument, nullptr, LAYERS},
                                   {"steps", required_argument, nullptr, STEPS},
                                   {"warmup", required_argument, nullptr, WARMUP},
                                   {"tokens", required_argument, nullptr, TOKENS},
                                   {"hidden", required_argument, nullptr, HIDDEN},
                                   {"topk", required_argument, nullptr, TOPK},
                                   {"experts", required_argument, nullptr, EXPERTS},
                                   {"channels", required_argument, nullptr, CHANNELS},
                                   {"compute-us", required_argument, nullptr, COMPUTE},
                                   {"signal", required_argument, nullptr, SIGNAL},
                                   {"seed", required_argument, nullptr, SEED},
                                   {"provider", required_argument, nullptr, PROVIDER},
                                   {"threads", required_argument, nullptr, THREADS},
                                   {"proxies", required_argument, nullptr, PROXIES},
                                   {"ring", required_argument, nullptr, RING},
                                   {"device", required_argument, nullptr, DEVICE},
                                   {"dtype", required_argument, nullptr, DTYPE},
                                   {"drain", required_argument, nullptr, DRAIN},
                                   {"more", no_argument, nullptr, MORE},
                                   {"pin", no_argument, nullptr, PIN},
                                   {"no-stamps", no_argument, nullptr, NO_STAMPS},
                                   {"stamps-in-turns", no_argument, nullptr, TAKE_TURNS},
                                   {"window", required_argument, nullptr, WINDOW_CODE},
                                   {"inject", required_argument, nullptr, INJECT},
                                   {"late", required_argument, nullptr, LATE},
                                   {"timeout", required_argument, nullptr, TIMEOUT},
                                   {"path", required_argument, nullptr, PATH_CODE},
                                   {"queues", required_argument, nullptr, QUEUES},
                                   {"completion", required_argument, nullptr, COMPLETION},
                                   {"batch", required_argument, nullptr, BATCH},
                                   {"send-queue", required_argument, nullptr, SEND_QUEUE},
                                   {"fuzz", required_argument, nullptr, FUZZ},
                                   {"corrupt", required_argument, nullptr, CORRUPT},
                                   {"no-imm", no_argument, nullptr, NO_IMM},
                                   {"json", no_argument, nullptr, JSON},
                                   {nullptr, 0, nullptr, 0}};

void take_shape(protocol::Shape &shape, int code, const char *text) {
    switch (code) {
    case RANKS: shape.ranks = number32("ranks", text, 2, protocol::MAX_RANKS); break;
    case TOKENS: shape.tokens = number32("tokens", text, 1, 65536); break;
    case HIDDEN: shape.hidden = number32("hidden", text, 1, UINT32_MAX / 2); break;
    case TOPK: shape.topk = number32("topk", text, 1, protocol::MAX_TOPK); break;
    case EXPERTS: shape.experts = number32("experts", text, 1, 65535); break;
    case CHANNELS: shape.channels = number32("channels", text, 1, protocol::MAX_CHANNELS); break;
    default: break;
    }
}

void take_posting(Posting &posting, int code, const char *text) {
    switch (code) {
    case QUEUES: posting.queues = source_of(text); break;
    case COMPLETION: posting.counts = counts_of(text); break;
    case BATCH: posting.batch = number32("batch", text, 1, 64); break;
    case SEND_QUEUE: posting.send_queue = power_of_two("send-queue", text, 1, 4096); break;
    case FUZZ: posting.fuzz = number32("fuzz", text, 0, 1000); break;
    default: break;
    }
}

void take(Options &options, int code, const char *text) {
    switch (code) {
    case PATH_CODE: options.path = path_of(text); break;
    case HELP_CODE: fputs(HELP, stdout); exit(0);
    case LAYERS: options.layers = number32("layers", text, 1, 65535); break;
    case STEPS: options.steps = number32("steps", text, 1, 100000000); break;
    case WARMUP: options.warmup = number32("warmup", text, 0, 100000000); break;
    case COMPUTE: options.compute_ns = number("compute-us", text, 0, 60000000) * 1000; break;
    case SIGNAL: options.signal = signal_of(text); break;
    case SEED: options.seed = number("seed", text, 0, UINT64_MAX); break;
    case PROVIDER: options.provider = text; break;
    case THREADS: options.threads = strcmp(text, "auto") == 0 ? 0 : number32("threads", text, 2, 3); break;
    case PROXIES: options.proxies = number32("proxies", text, 1, protocol::MAX_PROXIES); break;
    case DEVICE: options.device = device_of(text); break;
    case DTYPE: options.shape.element_bytes = element_bytes(text); break;
    case DRAIN: options.drain = number32("drain", text, 1, 1 << 20); break;
    case MORE: options.has_more = true; break;
    case PIN: options.is_pinned = true; break;
    case NO_STAMPS: options.has_stamps = false; break;
    case TAKE_TURNS: options.takes_turns = true; break;
    case RING: options.ring = power_of_two("ring", text, 2, 1 << 20); break;
    case WINDOW_CODE: options.window = power_of_two("window", text, 1, protocol::WINDOW / 2); break;
    case TIMEOUT: options.timeout_s = number32("timeout", text, 1, 3600); break;
    case INJECT: add_inject(options.inject, text); break;
    case LATE: add_late(options, text); break;
    case CORRUPT: options.corrupt_step = static_cast<int64_t>(number("corrupt", text, 0, INT32_MAX)); break;
    case NO_IMM: options.has_no_imm = true; break;
    case JSON: options.is_json = true; break;
    default: take_posting(options.posting, code, text); take_shape(options.shape, code, text);
    }
}

} // namespace

bool parse_source(const char *text, QueueSource &source) {
    constexpr struct {
        const char *name;
        QueueSource source;
    } SOURCES[] = {{"auto", QueueSource::Auto}, {"libfabric", QueueSource::Libfabric}, {"verbs", QueueSource::Verbs}};
    for (const auto &one : SOURCES) {
        if (strcmp(text, one.name) != 0) continue;
        source = one.source;
        return true;
    }
    return false;
}

const char *signal_name(SignalMode mode) {
    switch (mode) {
    case SignalMode::Imm: return "imm";
    case SignalMode::Fence: return "fence";
    case SignalMode::FenceBatch: return "fence-batch";
    }
    return "";
}

Options parse_options(int count, char **words) {
    Options options;
    opterr = 0;
    for (int code; (code = getopt_long(count, words, ":", LONG_OPTIONS, nullptr)) != -1;) {
        if (code == '?' || code == ':')
            refuse("%s %s; --help lists the options", words[optind - 1],
                   code == ':' ? "needs a value" : "is not an option, or not a whole one");
        take(options, code, optarg);
    }
    if (optind != count) refuse("%s is not an option; --help lists them", words[optind]);
    check(options);
    return options;
}

} // namespace efaprof::dispatch
