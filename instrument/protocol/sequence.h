// Order on a wire that has none: what an immediate carries, and the window that puts arrivals back in order.
#pragma once

#include "hd.h"

namespace efaprof::protocol {

//   31 ─ source rank ─ 24 │ 23 ─ channel ─ 16 │ 15 ─ low bits of the wire sequence ─ 0
EFAPROF_HD uint32_t pack_imm(uint32_t src, uint32_t channel, uint64_t wire_seq) {
    return src << 24 | channel << 16 | static_cast<uint16_t>(wire_seq);
}
EFAPROF_HD uint32_t imm_src(uint32_t imm) {
    return imm >> 24;
}
EFAPROF_HD uint32_t imm_channel(uint32_t imm) {
    return imm >> 16 & 0xff;
}
EFAPROF_HD uint16_t imm_seq(uint32_t imm) {
    return static_cast<uint16_t>(imm);
}

// The wire sequence nearest to `next` whose low 16 bits are `low`; may lie before it (a late or repeated one).
EFAPROF_HD int64_t unwrap(uint64_t next, uint16_t low) {
    auto ahead = static_cast<int16_t>(static_cast<uint16_t>(low - static_cast<uint16_t>(next)));
    return static_cast<int64_t>(next) + ahead;
}

// Arrivals of one (source, channel). At most WINDOW sequences may be known beyond the oldest missing one. A sender
// keeps at most half as many in flight, so it is exceeded only where completions come long before delivery.
constexpr uint32_t WINDOW = 512;
static_assert(WINDOW <= 0x4000, "unwrapping needs room on both sides");

struct Window {
    uint64_t next; // oldest sequence that has not been handed over
    uint64_t here[WINDOW / 64];
};

enum class Arrival : uint8_t {
    Turn,     // it is the oldest missing one
    Held,     // earlier ones are missing
    Repeated, // seen before
    Beyond,   // WINDOW or more ahead of the oldest missing one
};

// Notes an arrival; `seq` becomes its whole sequence.
EFAPROF_HD Arrival arrive(Window &window, uint16_t low, int64_t &seq) {
    seq = unwrap(window.next, low);
    if (seq < static_cast<int64_t>(window.next)) return Arrival::Repeated;
    if (static_cast<uint64_t>(seq) - window.next >= WINDOW) return Arrival::Beyond;
    uint64_t bit = uint64_t{1} << (static_cast<uint64_t>(seq) % 64);
    uint64_t &word = window.here[static_cast<uint64_t>(seq) % WINDOW / 64];
    if ((word & bit) != 0) return Arrival::Repeated;
    word |= bit;
    return static_cast<uint64_t>(seq) == window.next ? Arrival::Turn : Arrival::Held;
}

// Takes the next sequence out of the window when it is here.
EFAPROF_HD bool hand_over(Window &window, uint64_t &seq) {
    uint64_t bit = uint64_t{1} << (window.next % 64);
    uint64_t &word = window.here[window.next % WINDOW / 64];
    if ((word & bit) == 0) return false;
    word &= ~bit;
    seq = window.next++;
    return true;
}

// Body of a signal: the number of sequenced operations of its (source, channel) up to and with itself, and the
// complement, which tells a whole body from one that is still being written.
struct alignas(16) Signal {
    uint64_t count;
    uint64_t complement;
};

EFAPROF_HD uint64_t read_signal(const Signal &signal) {
    uint64_t count = load_acquire(&signal.count), complement = load_acquire(&signal.complement);
    return count == ~complement ? count : 0;
}

} // namespace efaprof::protocol
