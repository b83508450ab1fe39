// What the lane of a rank shares with the issuer, the completer and the receiver of one of its rings, and who writes
// what. A rank has an engine for each of its rings; they share the lane and the registered memory, nothing else.
#pragma once

#include <rdma/fabric.h>

#include <stddef.h>
#include <stdint.h>

#include "../protocol/heap.h"
#include "../protocol/rings.h"
#include "delay.h"
#include "fabric.h"
#include "journal.h"

namespace efaprof::dispatch {

// One operation in flight; its address is the operation's libfabric context, so providers may scribble on the
// first 64 bytes until the completion. Slot of command `seq`: seq modulo the number of slots.
struct alignas(128) Slot {
    fi_context2 context;
    uint64_t op;         // ring:16 | seq:48
    uint64_t t_returned; // issuer, after the post returned; 0 before
    uint64_t t_seen;     // completer, when the completion was seen
    uint32_t bytes;
    uint16_t peer;
    uint16_t x;
    uint8_t depth; // operations in flight before it, as a power of two
    bool is_done;  // completer
};
static_assert(sizeof(Slot) == 128 && offsetof(Slot, context) == 0, "the context comes first");

// Written by the completer. `prefix` goes last: whoever sees it reach a value sees the rest as of then.
struct alignas(64) Completions {
    uint64_t prefix;                 // every command below this number has completed
    uint64_t t_told;                 // when prefix was last moved
    uint64_t last_seq, last_channel; // the command that completed last
    uint64_t total;
};

// Written by the receiver: the signals of one (source, channel) that were handed over. `count` goes last.
struct alignas(32) Told {
    uint64_t count;
    uint64_t wire_seq; // of the last signal
    uint64_t t_sig;    // when it was handed over
};

struct Engines;

struct Engine {
    uint16_t rank, ranks;
    uint16_t channels;       // data channels; one more carries the barriers
    uint16_t ring;           // its number in the job
    uint16_t proxy, proxies; // which of the rank's this is, and how many there are
    Engine *of_rank;         // all of them, side by side
    bool has_imm;
    uint64_t slot_count; // power of two: most operations in flight
    Delays delays;
    uint32_t drain; // commands posted before completions get their turn
    bool has_more;  // several posts share a doorbell (FI_MORE)
    Fabric fabric;

    uint8_t *memory; // registered, laid out by `heap`; the rank's
    protocol::Heap heap;
    protocol::Command *commands;
    uint64_t ring_capacity;
    uint64_t *ring_tail; // consumer → producer, on a cache line of its own

    Slot *slots;
    Completions completions;
    uint64_t *completed; // [peer], completer
    Told *told;          // [source][channel], receiver; of the channels that this ring carries
    Journal *journal;    // of a lane on a GPU, else null
    uint32_t is_over;    // lane → the other threads: nothing more will come
    uint32_t is_resting; // lane → the other threads: nothing will come for a while; look now and then
    Stop *stop;          // where the other threads' failures go; null: they end the process

    // The one that carries a channel; the rank's.
    Engine &of(uint32_t channel) const { return of_rank[protocol::proxy_of(channel, proxies)]; }
    Engines all() const;
    size_t word_index(uint32_t peer, uint32_t channel) const { return size_t{peer} * (channels + 1u) + channel; }
    uint8_t *at(uint64_t units) const { return memory + units * protocol::UNIT_BYTES; }
    size_t memory_bytes() const { return heap.units * protocol::UNIT_BYTES; }
    Slot &slot_of(uint64_t seq) const { return slots[seq & (slot_count - 1)]; }
    uint64_t op_of(uint64_t seq) const { return uint64_t{ring} << 48 | (seq & 0xFFFFFFFFFFFFu); }
};

struct Engines {
    Engine *first;
    uint32_t count;
    Engine *begin() const { return first; }
    Engine *end() const { return first + count; }
};
inline Engines Engine::all() const {
    return {of_rank, proxies};
}

} // namespace efaprof::dispatch
