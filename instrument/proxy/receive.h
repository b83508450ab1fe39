// From an arrival to its consumer: order per (source, channel), then the signal.
#pragma once

#include "../protocol/sequence.h"
#include "delay.h"
#include "state.h"

namespace efaprof::dispatch {

class Receiver {
public:
    explicit Receiver(Engine &engine);
    ~Receiver();
    Receiver(const Receiver &) = delete;
    Receiver &operator=(const Receiver &) = delete;

    // An arrival was seen. Only while room() > 0.
    void accept(uint32_t imm, uint64_t t_seen);
    uint64_t room() const { return queue_.room(); }
    // Hands over what its delay held back; returns how many.
    uint32_t turn();
    // Without immediates: looks for signal bodies that were written; calls `found(imm)` for each new one.
    template <typename Found> void scan(Found found);

private:
    struct Seen {
        uint32_t imm;
        uint64_t t_seen;
    };
    void deliver(uint32_t imm, uint64_t t_seen);
    void tell(uint32_t src, uint32_t channel, uint64_t seq, bool is_held);
    const protocol::Signal &body(size_t word) const {
        return reinterpret_cast<const protocol::Signal *>(engine_.at(engine_.heap.flags))[word];
    }

    Engine &engine_;
    DueQueue<Seen> queue_;  // due: when each was seen
    uint64_t last_end_ = 0; // when the delay's server had dealt with the arrival before
    size_t words_;          // (source, channel) pairs
    protocol::Window *windows_;
    uint64_t *seen_;    // [source][channel][sequence mod WINDOW]
    uint64_t *scanned_; // [source][channel]: signals found by scan()
};

template <typename Found> void Receiver::scan(Found found) {
    for (uint32_t src = 0; src < engine_.ranks; src++) {
        if (src == engine_.rank) continue;
        for (uint32_t channel = engine_.proxy; channel <= engine_.channels; channel += engine_.proxies) {
            size_t word = engine_.word_index(src, channel);
            if (protocol::read_signal(body(word)) != scanned_[word] + 1) continue;
            found(protocol::pack_imm(src, channel, scanned_[word]));
            scanned_[word]++;
        }
    }
}

} // namespace efaprof::dispatch
