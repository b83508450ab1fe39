// The issuing lane of a rank: what a kernel does on the device, done by a CPU thread over the same protocol.
#pragma once

#include "../protocol/command.h"
#include "../proxy/record.h"
#include "../proxy/state.h"
#include "../proxy/wait.h"
#include "carrier.h"
#include "options.h"

namespace efaprof::dispatch {

struct LaneOptions {
    SignalMode signal;
    uint32_t timeout_s; // longest wait
    double ticks_per_ns;
};

// As MARK records say it.
enum class StepKind : uint16_t { Decode, Prefill, Mixed, WarmUp };

// Commands, over all steps.
struct LaneCounts {
    uint64_t puts, notifies, signals, barriers;
};

class Lane {
public:
    Lane(Engine &engine, Carrier &carrier, const LaneOptions &options);
    ~Lane();
    Lane(const Lane &) = delete;
    Lane &operator=(const Lane &) = delete;

    // From here on, commands and waits belong to this place.
    void mark(const Place &place, StepKind kind);
    const Place &place() const { return place_; }

    struct Transfer {
        uint8_t kind; // enum efaprof_cmd_kind: a put or a notify
        uint32_t peer;
        uint32_t channel;
        uint64_t source, target; // units
        uint32_t bytes;
    };
    void put(const Transfer &transfer);
    // Tells every peer that this rank has come here, and waits until they all have: begins a phase.
    void barrier();
    // Closes every channel to every peer, and waits until they have closed theirs.
    void send_tails();
    void wait_tails();
    // Waits until everything pushed so far has completed, and was told to be.
    void flush();
    // The same after the last step, unrecorded.
    void drain();
    // From here on, waits are at most so long.
    void set_timeout(uint32_t timeout_s);

    // A stretch of the lane's own work.
    void record_compute(efaprof_compute what, uint64_t begin, uint64_t end, uint64_t bytes) const;
    const LaneCounts &counts() const { return counts_; }

private:
    void signal(uint8_t kind, uint32_t peer, uint32_t channel, bool is_fenced);
    void push(const protocol::Command &asked, uint64_t t_enter);
    void look(Idle &idle, uint64_t begin, const char *what, uint32_t peer, uint32_t channel);
    uint32_t wait_completions();
    bool has_completed() const;
    void wait_signals(WaitKind kind, uint32_t first, uint32_t last);
    uint32_t peer_after(uint32_t i) const { return (engine_.rank + 1 + i) % engine_.ranks; }

    Engine &engine_;
    Carrier &carrier_;
    LaneOptions options_;
    uint64_t patience_; // ticks
    uint32_t looks_ = 0;
    uint64_t *wire_; // [peer][channel] sequenced operations so far
    Place place_ = {};
    uint64_t phases_ = 0; // begun: how often each word of this run has been signalled
    LaneCounts counts_ = {};
};

} // namespace efaprof::dispatch
