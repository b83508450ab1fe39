// What a command of a ring benchmark carries follows from its number, so that whoever takes it can tell.
#pragma once

#include "command.h"
#include "routing.h"

namespace efaprof::protocol {

EFAPROF_HD Command command_of(uint64_t seq) {
    auto word = static_cast<uint32_t>(mix(seq));
    return {word, ~word, word ^ 0x5A5A5A5Au, static_cast<uint16_t>(word), static_cast<uint8_t>(seq & 15), 0, seq, 0, 0};
}

EFAPROF_HD bool is_command_of(const Command &got, uint64_t seq) {
    Command expected = command_of(seq);
    return got.src_off == expected.src_off && got.dst_off == expected.dst_off && got.bytes == expected.bytes &&
           got.peer == expected.peer && got.kind == expected.kind && got.t_push == seq &&
           got.seq == static_cast<uint32_t>(seq);
}

} // namespace efaprof::protocol
