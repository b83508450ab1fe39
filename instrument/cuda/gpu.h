// What efaprof-dispatch and libefaprof-cuda.so say to each other. The program opens the library by name when a GPU is
// asked for, so that it runs where there is none.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "../protocol/command.h"
#include "../protocol/heap.h"
#include "../protocol/post_check.h"
#include "../protocol/rings.h"
#include "../protocol/wqe.h"

namespace efaprof::gpu {

constexpr uint32_t API_VERSION = 6;
constexpr const char *LIBRARY = "libefaprof-cuda.so";
constexpr const char *ENTRY = "efaprof_gpu_api";

// One event of a kernel, 16 bytes, in the clock of the GPU (%globaltimer, ns).
struct alignas(16) Stamp {
    uint64_t time;
    uint32_t value;
    uint16_t kind;  // enum StampKind
    uint16_t layer; // of the begin and end of dispatch and combine; of a head its ring; else 0
};
static_assert(sizeof(Stamp) == 16, "one store");

enum StampKind : uint16_t {
    STAMP_FILL_BEGIN = 1, // value: the layer
    STAMP_LAYOUT_END = 2,
    STAMP_DISPATCH_BEGIN = 3, // value: low half of the number of the next command; also of the three below
    STAMP_DISPATCH_END = 4,
    STAMP_COMBINE_BEGIN = 5,
    STAMP_COMBINE_END = 6,
    STAMP_WAIT_BEGIN = 7, // value: low half of the number of the next command
    STAMP_WAIT_END = 8,   // value: polls
    STAMP_EXPERTS_BEGIN = 9,
    STAMP_EXPERTS_END = 10,
    STAMP_REDUCE_BEGIN = 11,
    STAMP_REDUCE_END = 12,
    STAMP_VERIFY_BEGIN = 13,
    STAMP_VERIFY_END = 14,
    STAMP_STEP_BEGIN = 15, // of a model of somebody else's; value: the step, layer: its kind
    STAMP_STEP_END = 16,
    STAMP_HEAD = 17, // value: low half of the number of the next command in ring `layer`; of all rings but the first
};
// Fill 1, layout 1, dispatch 6, experts 2, combine 8, reduce 2, verify 2; of each further ring, where it stood at the
// end of dispatch, at combine's flush and at its end.
constexpr uint32_t stamps_of_layer(uint32_t proxies) {
    return 22 + 3 * (proxies - 1);
}

// An operation whose entry a kernel wrote, in the clock of the GPU; times are ns after `enter`. In slot `number mod
// capacity` of pinned memory.
struct alignas(64) PostStamp {
    uint64_t done; // its completion was seen; 0: not yet
    uint64_t enter;
    uint32_t ordered, slot, space, built, turn, fenced, rung;
    uint32_t bytes;
    uint16_t peer;
    uint8_t kind, channel; // as in a command
    uint16_t flags;        // enum protocol::CommandFlag
    uint16_t batch;        // entries that the doorbell announced
    uint32_t in_flight;    // operations before it
    uint32_t reserved;
};
static_assert(sizeof(PostStamp) == 64, "four stores");

// An arrival that was handed over, in that order.
struct alignas(16) ArrivalStamp {
    uint64_t seen;
    uint32_t imm;
    uint32_t rest; // ns until it was handed over, and the bits below
};
constexpr uint32_t ARRIVAL_HELD = 1u << 30, ARRIVAL_SIGNAL = 1u << 31, ARRIVAL_NS = ARRIVAL_HELD - 1;

// Why a step ended early.
enum class FaultCode : uint32_t {
    None = 0,
    Timeout = 1, // a wait took too long: a = rank, b = channel, got = wanted count
    Stopped = 2, // the host said so
    Notice = 3,  // a notice does not belong here: a = source
    Head = 4,    // a token's head does not: a = source, b = slot
    Payload = 5, // a token's payload differs from the reference: a = source, b = slot, element = byte
    Routes = 6,  // its routes do: a = source, b = slot
    Counts = 7,  // tokens or counts per expert differ: a = source, b = expert or the number of experts
    Result = 8,  // an own token's result is out of tolerance: a = token, element, got, expected
    Expert = 9,  // a route names an expert that does not exist: a = token, b = choice
    // Of a kernel that posts by itself:
    Status = 10,     // an operation or arrival ended with an error: a = status, b = queue, element = request
    Completion = 11, // a completion fits nothing that was posted: a = why, b = what it names, element = request
    Sequence = 12,   // it arrived twice, or too far ahead: a = source, b = channel, element = sequence
    Counter = 13,    // the device counted errors: a = how many, b = writes in flight
};
enum class WaitFor : uint32_t {
    Barrier = 0,
    Tails = 1,
    Completions = 2,
    Room = 3,
    Packed = 4,
    Order = 5,    // own earlier writes to a peer
    Requests = 6, // an operation in flight to end
    Space = 7,    // in the send queue
    Turn = 8,     // to ring the doorbell
};

struct Fault {
    FaultCode code;
    uint32_t step, layer;
    uint32_t a, b, element;
    float got, expected;
    WaitFor what; // of a timeout
};

// Written when a step is over; `steps` last.
struct alignas(64) StepDone {
    uint64_t head;   // commands pushed so far, into all rings
    uint64_t stamps; // made so far, those that found no room included
    uint64_t puts, notifies, signals, barriers;
    uint64_t verified; // tokens
    uint64_t ended;    // where kernels post by themselves: operations
    uint64_t arrivals; // likewise: handed over
    Fault fault;
    uint64_t steps; // over
};

// Begin and end of a layer's dispatch or combine kernel, whether stamps are on or not.
struct Span {
    uint64_t begin, end;
};

enum class Fence : uint32_t { None, EveryTail, FirstTail };

// A queue pair that the kernels drive by themselves.
struct Posting {
    bool is_on;
    uint32_t batch;          // entries that one doorbell announces, at most
    uint32_t window;         // operations in flight, at most; a power of two
    uint64_t stamp_capacity; // of operations, and of arrivals; a power of two
    protocol::SendQueue send;
    protocol::CqWatch completions;
    protocol::CounterWatch counter;  // `done` is null: ends of operations are read from the completion queue
    const protocol::Target *targets; // [rank]
    uint64_t base;                   // address of the registered memory, as the device knows it
    uint32_t lkey;
    uint16_t qpn;
    uint32_t fuzz; // tests only: of each thousand entries, so many are written with a random bit flipped
};

// A ring of commands, and what its proxy tells.
struct Ring {
    protocol::Command *commands;
    uint64_t *tail;
    void *told;        // [source][channel], a count first in each
    void *completions; // the count of completed commands first
};

// Everything a rank's kernels need. Pointers are of the host; the memory behind them is pinned by open().
struct Setup {
    uint32_t device; // ordinal
    uint32_t rank;
    protocol::Shape shape;
    protocol::Heap heap;
    uint32_t layers;
    uint64_t seed;
    uint64_t compute_ns;   // stand-in for the rest of a layer
    uint64_t kernel_delay; // ns that every command waits before it is pushed
    uint64_t timeout_ns;   // longest wait of a kernel
    uint64_t corrupt_step; // tests only: damage a token in that step; UINT64_MAX: never
    Fence fence;
    bool has_sequenced_puts; // puts and notices carry immediates
    bool has_imm;            // signals do
    bool has_stamps;
    bool takes_turns;        // every other step without stamps, for what they cost
    bool is_model;           // of somebody else's: no steps of our own
    uint64_t stamp_capacity; // a power of two

    uint8_t *memory; // laid out by `heap`
    Ring rings[protocol::MAX_PROXIES];
    uint32_t proxies;       // rings of the rank
    uint64_t ring_capacity; // of each
    uint32_t told_bytes, completions_bytes;

    Posting posting; // instead of the rings
};

// One round trip between the clocks: the GPU stamped `sent`, the host saw it and stamped `seen`, the GPU saw that and
// stamped `back`. So the host's clock read `seen` when the GPU's lay between the other two.
struct Trip {
    uint64_t sent, seen, back;
};

struct DeviceFacts {
    char name[96];
    int driver, runtime; // as CUDA numbers them
    int major, minor;
    int numa_node; // -1: not known
    uint32_t timer_step_ns;
};

struct RingRates {
    uint64_t trips;
    double trip_p50_ns, trip_p99_ns, trip_p999_ns, trip_least_ns;
    double nearest_p50_ns; // with the consumer on nearest_core
    int nearest_core;
    double relaxed_p50_ns;      // a bare word there and back, without a release
    double thread_per_s;        // one thread, a release for each command
    double warp_per_s;          // one warp, a command a lane
    double batch_per_s;         // one warp, four commands a lane
    double drain_per_s;         // four warps of such batches: what the consuming core takes
    double eager_tail_per_s;    // as drain, the tail written back after every command
    double uncached_tail_per_s; // as warp, the tail read for every batch
    double host_head_per_s;     // as warp, the head kept in host memory
    uint64_t commands;
    uint64_t wrong; // did not carry what was pushed
    uint32_t timer_step_ns;
    uint32_t capacity;    // commands in the ring
    double consumer_busy; // share of the consumer's looks that found a command, while draining
};

struct RingOptions {
    uint32_t device;
    uint64_t commands, trips;
    uint64_t timeout_ns;
};

// Warps that post to one queue pair, which is its own peer. Pointers are of the host.
struct PosterOptions {
    uint32_t device, posters;
    uint64_t timeout_ns;
    protocol::PostPlan plan;
    protocol::SendQueue send;
    protocol::CqWatch completions;
    uint64_t *words;    // the memory that is written from and to, pinned meanwhile
    uint32_t *arrivals; // [entries] filled: places, in the order in which they arrived
    uint16_t *ends;     // [entries] filled: requests, in the order in which they ended
};
constexpr uint32_t MOST_POSTERS = 31; // beside the warp that reads

struct Lane; // of the library

// One dispatch of a model of somebody else's: pointers to device memory, as in engine/efaprof_moe.h.
struct DispatchCall {
    uint32_t layer, tokens;
    const void *x; // bfloat16
    const int64_t *experts;
    const float *weights;
    void *recv_x;
    int32_t *recv_experts;
    float *recv_weights;
    int32_t *received;
};
struct CombineCall {
    uint32_t layer, tokens;
    const void *answers; // bfloat16 [row][choice][element]
    void *out;           // bfloat16 [token][element]
};

// Calls that return text return null when all is well; else why not, valid until the next call.
struct Api {
    uint32_t version;
    // Number of devices, without touching one; negative when there is no driver.
    int (*count)();
    const char *(*facts)(uint32_t device, DeviceFacts *facts);
    const char *(*open)(const Setup *setup, Lane **lane);
    // Starts the next step, which ends when done()->steps counts it.
    const char *(*launch)(Lane *lane);
    const StepDone *(*done)(const Lane *lane);
    const Stamp *(*stamps)(const Lane *lane);
    // Stamps below this number have been read.
    void (*free_stamps)(Lane *lane, uint64_t number);
    const Span *(*spans)(const Lane *lane); // [layer][dispatch, combine]
    // Of kernels that post by themselves. `settle` returns when everything has ended, or has been given up.
    const PostStamp *(*posts)(const Lane *lane);
    const ArrivalStamp *(*arrivals)(const Lane *lane);
    const char *(*settle)(Lane *lane);
    // Result of own token `step mod tokens` of the last layer, bfloat16 [hidden].
    const uint16_t *(*sample)(const Lane *lane);
    // Null while the device is well.
    const char *(*health)(Lane *lane);
    // Round trips between the clocks, between steps.
    const char *(*exchange)(Lane *lane, uint64_t (*now)(), Trip *trips, uint32_t count);
    // Tells the kernels to end; from any thread.
    void (*stop)(Lane *lane);
    // True once nothing runs any more.
    bool (*is_idle)(Lane *lane);
    void (*close)(Lane *lane);
    // Of a lane that is opened for a model of somebody else's: into a stream of the caller's, which may be capturing.
    const char *(*begin_step)(Lane *lane, uint32_t step, uint32_t kind, void *stream);
    const char *(*dispatch)(Lane *lane, const DispatchCall *call, void *stream);
    const char *(*combine)(Lane *lane, const CombineCall *call, void *stream);
    const char *(*end_step)(Lane *lane, void *stream);
    // A barrier of all ranks after the last step; returns when everything has completed, or has been given up.
    const char *(*part)(Lane *lane);
    const char *(*bench_ring)(const RingOptions *options, uint64_t (*now)(), double ticks_per_ns, RingRates *rates);
    const char *(*bench_posters)(const PosterOptions *options, protocol::PostsSeen *seen);
};

using Entry = const Api *(*)();

} // namespace efaprof::gpu
