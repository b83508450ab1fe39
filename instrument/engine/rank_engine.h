// One rank behind the C interface: an engine with its lane, proxy and exchange, and what a caller may do with them.
#pragma once

#include <optional>

#include "../gda/carrier.h"
#include "../gda/queue_pair.h"
#include "../proxy/loop.h"
#include "../workload/carrier.h"
#include "../workload/exchange.h"
#include "../workload/lane.h"
#include "efaprof_moe.h"
#include "peers.h"

namespace efaprof::dispatch {

class RankEngine {
public:
    // All of these may fail() and are called guarded by `stop`.
    void open(const Options &options, uint32_t rank);
    void contact(void *bytes) const;
    void connect(const void *contacts);
    void begin_step(uint32_t step, StepKind kind, bool is_resting);
    void end_step();
    struct Given {
        uint32_t tokens;
        const void *x;
        const int64_t *experts;
        const float *weights;
    };
    struct Received {
        void *x;
        int32_t *experts;
        float *weights;
        int32_t *counts;
    };
    void dispatch(uint32_t layer, const Given &given, const Received &received);
    void combine(const void *answers, void *result);
    // Lets the peers come to their end too, for a while.
    void part();
    // Not guarded, last: ends the threads and gives everything back.
    void close();

    Stop &stop() { return stop_; }
    const Options &options() const { return options_; }
    const Engine &engine() const { return engine_; }
    bool is_connected() const { return lane_.has_value(); }
    bool is_in_step() const { return is_in_step_; }
    bool has_tokens() const { return has_tokens_; }
    const LaneCounts &counts() const { return lane_->counts(); }

private:
    bool is_posting() const { return options_.path == Path::Gdaki; }
    void start(const Identity *identities);
    void record_options() const;
    void mark(efaprof_phase phase);
    void enter(efaprof_phase phase);
    void computed(efaprof_compute what);
    void lay_out(const Given &given);
    void hand_over(const Received &received);
    void add_up(const void *answers);

    Options options_;
    double ticks_per_ns_ = 0;
    uint32_t thread_count_ = 0;
    Stop stop_ = {};
    Contact contacts_[protocol::MAX_RANKS] = {};
    Engine engine_ = {};
    Threads threads_;
    bool has_threads_ = false;
    PeerWatch watch_;
    GdaQueuePair pair_; // path gdaki
    std::optional<RingCarrier> ring_;
    std::optional<GdaCarrier<protocol::CqWatch>> posting_;
    std::optional<Lane> lane_;
    std::optional<Exchange> exchange_;
    float *sum_ = nullptr; // [hidden]
    uint32_t step_ = 0, layer_ = 0;
    StepKind kind_ = StepKind::Decode;
    bool is_in_step_ = false;
    bool has_tokens_ = false; // of a dispatch of this step
    efaprof_phase last_ = EFAPROF_PHASE_NONE;
    uint64_t since_ = 0; // the caller's own work began
};

} // namespace efaprof::dispatch
