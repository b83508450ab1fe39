// What operations and arrivals become once somebody has read that they are there: completions for the lane and the
// issuer, signals for the lane. Who reads does not matter: a proxy by libfabric, or a lane from its own queue.
#pragma once

#include "delay.h"
#include "receive.h"
#include "state.h"

namespace efaprof::dispatch {

class Endings {
public:
    // `most` events can be noted between two turns. `is_told`: a consumer is told of completions, at a time of its own.
    Endings(Engine &engine, uint64_t most, bool is_told);

    struct Event {
        Slot *slot; // null: an arrival
        uint32_t imm;
        uint64_t t_read;
    };
    // False: the delays hold too much back already; do not read.
    bool has_room() const { return events_.room() >= most_; }
    // Deals with an event at once, or queues it when a delay or an earlier one holds it back.
    void note(const Event &event);
    // Without immediates: signal bodies that were written since the last call, as arrivals.
    void scan(uint64_t now);
    // Deals with what is due; returns how many completions and arrivals were dealt with since the last call.
    uint32_t turn();

private:
    bool handle(const Event &event, uint64_t t_seen);
    void tell();

    Engine &engine_;
    Receiver receiver_;
    uint64_t most_;
    bool is_told_;
    DueQueue<Event> events_;
    uint64_t last_seq_ = 0, last_channel_ = 0; // of the command that completed last
    uint64_t last_seen_ = 0;                   // when that was
    uint32_t done_ = 0;
};

} // namespace efaprof::dispatch
