// What a lane on a GPU needs of its engine's threads to turn the stamps of its kernels into records, once a step is
// over: when its signals were handed over, how its completions moved on, and the line from the GPU's clock to ours.
#pragma once

#include <stdint.h>

namespace efaprof::dispatch {

// Changed by the lane's thread, and only while no command is on its way: the stages of an operation meet on one line.
struct ClockLine {
    uint64_t gpu_ns, ticks; // the same instant
    double ticks_per_ns;

    uint64_t ticks_at(uint64_t ns) const {
        auto apart = static_cast<double>(static_cast<int64_t>(ns - gpu_ns));
        return ticks + static_cast<uint64_t>(static_cast<int64_t>(apart * ticks_per_ns));
    }
};

struct Handover {
    uint64_t wire_seq, t_sig;
};

// Completions.prefix moved to `prefix`.
struct Move {
    uint64_t prefix, t_told, last_seq, last_channel;
};

struct Journal {
    ClockLine clock;
    uint64_t violations; // commands seen before they were pushed, on that line; issuer
    uint64_t depth;      // signals kept of each (source, channel): those of two steps
    Handover *handed;    // [word][signal mod depth], receiver
    uint64_t move_mask;
    uint64_t move_count;
    Move *moves; // [move & move_mask], completer

    // The `count`-th signal of a word, counted from 1.
    Handover &handover(uint64_t word, uint64_t count) const { return handed[word * depth + count % depth]; }
    void note_move(const Move &move) {
        moves[move_count & move_mask] = move;
        __atomic_store_n(&move_count, move_count + 1, __ATOMIC_RELEASE);
    }
};

} // namespace efaprof::dispatch
