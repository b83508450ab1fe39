// A rank has one ring of commands or several, each with a proxy of its own. All commands of a channel go through one
// of them: a (peer, channel) keeps its order, and what its fence waits for was pushed into the same ring. The channel
// of barriers is one more channel. Proxy i of a rank talks to proxy i of the others.
#pragma once

#include "hd.h"

namespace efaprof::protocol {

constexpr uint32_t MAX_PROXIES = 8; // of a rank

EFAPROF_HD uint32_t proxy_of(uint32_t channel, uint32_t proxies) {
    return channel % proxies;
}
// Of its channels, the ring's first one to be closed: a fence there stands before all its tails.
EFAPROF_HD bool is_first_of_ring(uint32_t channel, uint32_t proxies) {
    return channel < proxies;
}
// As records name a ring (EFAPROF_RINGS_APART): the rank itself where ranks have one each. Ranks have 8 bits.
EFAPROF_HD uint16_t ring_number(uint32_t rank, uint32_t proxy) {
    return static_cast<uint16_t>(proxy << 8 | rank);
}

} // namespace efaprof::protocol
