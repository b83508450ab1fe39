// The ring from a kernel to the proxy: its command, its producer and its consumer.
//
// A command is 32 bytes, two halves of 16:
//
//   0         4         8         12     14    15    16         24       28
//   | src_off | dst_off | bytes   | peer |kind |chan | t_push   | seq    | flags |
//   offsets in units of 16 bytes                     31 ─ wire sequence ─ 16 │ 15 ─ enter ─ 4 │ 3 ─ bits ─ 0
//
// The store of the last word (seq and flags) publishes it; bit LAP of flags says in which lap of the ring it was
// written, so that nothing needs clearing: the consumer takes a slot when its LAP bit is that of the lap it is in.
// The head stays with the producer. The consumer writes the tail back at most once per TAIL_EVERY commands, or
// when it finds the ring empty; the producer keeps a copy of it and rereads it only when the ring looks full.
#pragma once

#include "hd.h"

namespace efaprof::protocol {

constexpr uint32_t UNIT_BYTES = 16;
constexpr uint64_t TAIL_EVERY = 64;

enum CommandFlag : uint32_t {
    FLAG_LAP = 1u << 0,
    FLAG_SIGNAL = 1u << 1, // tells a consumer at the peer: signals and barriers
    FLAG_IMM = 1u << 2,    // carries an immediate
    FLAG_FENCE = 1u << 3,  // to be issued only after every earlier command to that peer has completed
};
constexpr unsigned WIRE_SHIFT = 16;

// How long before its push a command was begun, where the pusher is a kernel: 8 bits times a power of two, in units of
// 32 ns, the step of the clock. Exact below 8 µs, within 0.4 % above.
constexpr unsigned ENTER_SHIFT = 4, ENTER_UNIT_NS = 32;
EFAPROF_HD uint32_t enter_flags(uint64_t ns) {
    constexpr uint64_t MOST = uint64_t{0xFF} << 15;
    uint64_t units = ns / ENTER_UNIT_NS;
    if (units > MOST) units = MOST;
    auto bits = static_cast<uint32_t>(units);
#ifdef __CUDA_ARCH__
    uint32_t width = 32 - static_cast<uint32_t>(__clz(static_cast<int>(bits)));
#else
    uint32_t width = bits == 0 ? 0 : 32 - static_cast<uint32_t>(__builtin_clz(bits));
#endif
    uint32_t exponent = width > 8 ? width - 8 : 0;
    return (exponent << 8 | bits >> exponent) << ENTER_SHIFT;
}
EFAPROF_HD uint64_t enter_ns(uint32_t flags) {
    uint32_t code = flags >> ENTER_SHIFT & 0xFFFu;
    return (uint64_t{code & 0xFFu} << (code >> 8)) * ENTER_UNIT_NS;
}

struct alignas(32) Command {
    uint32_t src_off;
    uint32_t dst_off;
    uint32_t bytes;
    uint16_t peer;
    uint8_t kind; // enum efaprof_cmd_kind
    uint8_t channel;
    uint64_t t_push; // clock of the pusher, just before it publishes
    uint32_t seq;    // low half of the command's number
    uint32_t flags;
};
static_assert(sizeof(Command) == 32, "two halves of 16 bytes");

EFAPROF_HD uint32_t lap_flag(uint64_t seq, uint64_t capacity) {
    return (seq / capacity & 1) == 0 ? FLAG_LAP : 0u;
}

// Both sides address the same slots (a power of two of them, zeroed at first) and the same tail word.
struct Producer {
    Command *slots;
    const uint64_t *tail;
    uint64_t capacity;
    uint64_t head; // number of the next command
    uint64_t cached_tail;
};

EFAPROF_HD bool has_room(Producer &ring) {
    if (ring.head - ring.cached_tail < ring.capacity) return true;
    ring.cached_tail = load_acquire(ring.tail);
    return ring.head - ring.cached_tail < ring.capacity;
}

// The words of a slot; the third is t_push. The last holds the command's number and LAP bit, and publishes the others.
EFAPROF_HD uint64_t first_word(const Command &command) {
    return uint64_t{command.dst_off} << 32 | command.src_off;
}
EFAPROF_HD uint64_t second_word(const Command &command) {
    return uint64_t{command.channel} << 56 | uint64_t{command.kind} << 48 | uint64_t{command.peer} << 32 |
           command.bytes;
}
EFAPROF_HD uint64_t last_word(const Command &command, uint64_t seq, uint64_t capacity) {
    uint32_t flags = (command.flags & ~uint32_t{FLAG_LAP}) | lap_flag(seq, capacity);
    return uint64_t{flags} << 32 | static_cast<uint32_t>(seq);
}

EFAPROF_HD void publish_at(Command *slots, uint64_t capacity, uint64_t seq, const Command &command) {
    auto *slot = reinterpret_cast<uint64_t *>(&slots[seq & (capacity - 1)]);
    store_pair_relaxed(slot, first_word(command), second_word(command));
    store_pair_release(slot + 2, command.t_push, last_word(command, seq, capacity));
}

// Only after has_room.
EFAPROF_HD void publish(Producer &ring, const Command &command) {
    publish_at(ring.slots, ring.capacity, ring.head, command);
    ring.head++;
}

struct Consumer {
    const Command *slots;
    uint64_t *tail;
    uint64_t capacity;
    uint64_t next; // number of the next command to take
    uint64_t written_tail;
};

EFAPROF_HD bool is_published(const Consumer &ring, uint64_t seq) {
    auto *slot = reinterpret_cast<const uint64_t *>(&ring.slots[seq & (ring.capacity - 1)]);
    return (static_cast<uint32_t>(load_acquire(slot + 3) >> 32) & FLAG_LAP) == lap_flag(seq, ring.capacity);
}

// The next command, left in its slot; false when there is none yet.
EFAPROF_HD bool peek(const Consumer &ring, Command &command) {
    if (!is_published(ring, ring.next)) return false;
    auto *slot = reinterpret_cast<const uint64_t *>(&ring.slots[ring.next & (ring.capacity - 1)]);
    uint64_t first = load_relaxed(slot), second = load_relaxed(slot + 1), last = load_relaxed(slot + 3);
    command.src_off = static_cast<uint32_t>(first);
    command.dst_off = static_cast<uint32_t>(first >> 32);
    command.bytes = static_cast<uint32_t>(second);
    command.peer = static_cast<uint16_t>(second >> 32);
    command.kind = static_cast<uint8_t>(second >> 48);
    command.channel = static_cast<uint8_t>(second >> 56);
    command.t_push = load_relaxed(slot + 2);
    command.seq = static_cast<uint32_t>(last);
    command.flags = static_cast<uint32_t>(last >> 32);
    return true;
}

EFAPROF_HD void write_tail(Consumer &ring) {
    if (ring.written_tail != ring.next) {
        store_release(ring.tail, ring.next);
        ring.written_tail = ring.next;
    }
}

// Gives the slot of the peeked command back.
EFAPROF_HD void take(Consumer &ring) {
    ring.next++;
    if (ring.next - ring.written_tail >= TAIL_EVERY) write_tail(ring);
}

// 0 when nothing waits, else 1 + floor(log2(commands waiting)): commands are published in order, so looking at
// a few slots ahead is enough.
EFAPROF_HD uint8_t waiting_log2(const Consumer &ring) {
    uint8_t depth = 0;
    for (uint64_t reach = 1; reach <= ring.capacity && is_published(ring, ring.next + reach - 1); reach *= 2)
        depth++;
    return depth;
}

} // namespace efaprof::protocol
