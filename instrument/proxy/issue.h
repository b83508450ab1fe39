// From the ring to libfabric: takes commands in order, one at a time, and posts them.
#pragma once

#include "../protocol/command.h"
#include "delay.h"
#include "state.h"

namespace efaprof::dispatch {

class Issuer {
public:
    explicit Issuer(Engine &engine);
    ~Issuer();
    Issuer(const Issuer &) = delete;
    Issuer &operator=(const Issuer &) = delete;

    // Goes as far as it can without waiting; returns how many commands were posted.
    uint32_t turn();
    uint64_t posted() const { return posted_total_; }
    uint32_t backlog() const { return 1u << protocol::waiting_log2(ring_) >> 1; }

private:
    // What the command at the head waits for. It keeps later ones behind it.
    enum class Step : uint8_t { Ring, Fence, Slot, Proxy, Call, Library, Post };

    bool advance();
    bool see();
    void translate(uint64_t now);
    bool pass_fence();
    bool post();
    bool has_more() const;
    void record(uint64_t t_returned) const;

    Engine &engine_;
    protocol::Consumer ring_;
    uint64_t *posted_; // [peer]
    uint64_t posted_total_ = 0;
    uint32_t left_ = 0; // commands that this turn may still post

    Step step_ = Step::Ring;
    protocol::Command command_ = {};
    uint64_t seq_ = 0;
    uint64_t t_enter_ = 0; // of a kernel's command; 0: its lane records that itself
    uint64_t t_seen_ = 0, t_passed_ = 0, t_call_ = 0;
    uint32_t eagain_ = 0;
    uint8_t depth_ = 0;
    bool is_fenced_ = false; // the fence had something to wait for
};

} // namespace efaprof::dispatch
