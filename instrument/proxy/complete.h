// From the completion queue to whoever waits: completions to the lane and the issuer, arrivals to the receiver.
#pragma once

#include "delay.h"
#include "receive.h"
#include "state.h"

namespace efaprof::dispatch {

class Completer {
public:
    explicit Completer(Engine &engine);

    // Reads the queue once and deals with what may be seen; returns how many completions and arrivals that was.
    uint32_t turn();
    // Reads of the queue since the last call.
    uint32_t take_tests();

private:
    struct Event {
        Slot *slot; // null: an arrival
        uint32_t imm;
        uint64_t t_read;
    };
    void read();
    void note(const Event &event);
    bool handle(const Event &event, uint64_t t_seen);
    void tell();
    [[noreturn]] void fail_entry();

    Engine &engine_;
    Receiver receiver_;
    uint64_t most_found_; // events of one look
    DueQueue<Event> events_;
    uint64_t last_seq_ = 0, last_channel_ = 0; // of the command that completed last
    uint32_t done_ = 0;
    uint32_t tests_ = 0;
};

} // namespace efaprof::dispatch
