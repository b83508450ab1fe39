// Reads libfabric's completion queue for whoever waits.
#pragma once

#include "endings.h"

namespace efaprof::dispatch {

class Completer {
public:
    explicit Completer(Engine &engine);

    // Reads the queue once and deals with what may be seen; returns how many completions and arrivals that was.
    uint32_t turn();
    // Reads of the queue since the last call.
    uint32_t take_tests();

private:
    void read();
    [[noreturn]] void fail_entry();

    Engine &engine_;
    Endings endings_;
    uint32_t tests_ = 0;
};

} // namespace efaprof::dispatch
