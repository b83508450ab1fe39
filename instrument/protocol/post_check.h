// Several posters to one queue pair that is its own peer: what an entry carries follows from its place, so that
// whoever reads it can tell whether it came whole, once and in order.
#pragma once

#include "routing.h"
#include "wqe.h"

namespace efaprof::protocol {

//   word of place 0 … entries−1 │ where each is written to
struct PostPlan {
    uint64_t entries, seed;
    uint64_t base; // address of the memory, as the device knows it
    uint32_t lkey;
    uint32_t batch;    // entries that one doorbell announces, at most
    uint64_t delay_ns; // longest pause of a poster between two of its stages; 0: none
    Target target;
};

// What a poster does between two entries, each before the next.
enum class PostStage : uint32_t { Reserved, Written, Fenced };
constexpr uint32_t POST_STAGES = 3;

// What the posters and who reads the completions have to say afterwards.
struct PostsSeen {
    uint64_t arrivals, ends; // completions read
    uint64_t doorbells;
    uint64_t turns_missed; // looks of posters whose turn had not come
    uint64_t ns;
    uint32_t status; // of the first error completion
    bool has_given_up;
};

EFAPROF_HD uint64_t post_bytes(const PostPlan &plan) {
    return plan.entries * 2 * sizeof(uint64_t);
}
EFAPROF_HD uint64_t post_word(const PostPlan &plan, uint64_t place) {
    return mix(plan.seed ^ mix(place));
}
EFAPROF_HD softefa_wqe post_entry(const PostPlan &plan, uint64_t place) {
    return build_write({plan.base + place * sizeof(uint64_t), (plan.entries + place) * sizeof(uint64_t),
                        sizeof(uint64_t), plan.lkey, static_cast<uint32_t>(place), static_cast<uint16_t>(place), true},
                       plan.target);
}

// Entries that a poster reserves at once, 1 … batch, and how long it then pauses.
EFAPROF_HD uint32_t post_count(const PostPlan &plan, uint32_t poster, uint64_t turn) {
    return 1 + static_cast<uint32_t>(mix(plan.seed + poster + turn * 257) % plan.batch);
}
EFAPROF_HD uint64_t post_pause(const PostPlan &plan, uint32_t poster, uint64_t turn, PostStage after) {
    if (plan.delay_ns == 0) return 0;
    uint64_t random = mix(mix(plan.seed + poster) + turn * POST_STAGES + static_cast<uint32_t>(after));
    return (random & 1) != 0 ? 0 : (random >> 1) % plan.delay_ns; // every other one goes on at once
}

} // namespace efaprof::protocol
