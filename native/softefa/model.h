// The wire model: what the knobs are and what they cost. Pure: no clock, no state beyond the counters passed in.
// Every random draw is a hash of (seed, who, which operation, which part, what for), so that a run repeats however
// the operations of different queues interleave.
#pragma once

#include <stdint.h>

namespace softefa {

struct Model {
    double rate_bits_s = 0;     // payload bits per second of one device, each way; 0: no limit
    double ops_s = 0;           // operations per second that one device starts; 0: no limit
    double pps = 0;             // packets per second of one device, each way; 0: no limit
    double latency_ns = 0;      // last bit out to visible; completions take it a second time
    double jitter_ns = 0;       // mean of an exponential addition, cut at ten times the mean
    double reorder = 0;         // probability that a part takes a slower path
    double spread_ns = 10e3;    // a slower path adds up to this
    double loss = 0;            // probability that a packet is lost
    double rto_ns = 50e3;       // what one loss costs
    double corrupt = 0;         // probability that one bit of a part arrives flipped
    double rnr_ns = 100e3;      // pause before a send to a queue without receives is tried again
    double timeout_ns = 100e6;  // how long a dead peer is waited for
    uint32_t corrupt_after = 0; // operations of each queue pair that are left whole first: a protocol's own greetings
    uint32_t window = 0;        // operations in flight of one queue pair; 0: no limit
    uint32_t retries = 7;       // losses of one packet before the peer counts as unresponsive
    uint32_t mtu = 8928;        // payload bytes of a packet
    uint32_t counters = 0;      // 1: the device has completion counters
    uint64_t seed = 1;
    double line_bits_s = 100e9; // what the device says it is when rate is not limited
};

// One `key=value`, in base units. False: no such key, or no such value.
bool model_set(Model &model, const char *key, const char *value);
// Writes the whole model as key=value,… ; returns what snprintf does.
int model_text(const Model &model, char *out, int size);

enum class Draw : uint32_t { Jitter = 1, Detour, DetourSize, Loss, Corrupt, CorruptWhere };

// Where a draw is made: the device, the queue pair's number on it, the operation's on that, the part's in that.
struct Place {
    uint32_t device, queue;
    uint64_t operation;
    uint32_t part;
};

uint64_t draw_bits(const Model &model, const Place &place, Draw what, uint32_t round = 0);
double draw_unit(const Model &model, const Place &place, Draw what, uint32_t round = 0); // [0, 1)

struct Flight {
    double delay_ns;      // from the last bit out to the arrival of this part
    uint32_t retransmits; // packets sent again
    bool detour;
    bool lost; // given up after `retries`
};

uint32_t packets_of(const Model &model, uint64_t bytes);
double wire_ns(const Model &model, uint64_t bytes, uint32_t packets); // how long a part holds the wire
Flight flight_of(const Model &model, const Place &place, uint32_t packets);

} // namespace softefa
