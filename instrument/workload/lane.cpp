#include "lane.h"

#include <stdlib.h>

#include "../proxy/wait.h"

namespace efaprof::dispatch {

namespace {

// Now; never before what let the gate go (a processor may read its clock ahead of the load that saw it).
uint64_t end_after(const Release &release) {
    uint64_t now = efaprof_now();
    return now > release.t_sig ? now : release.t_sig;
}

} // namespace

Lane::Lane(Engine &engine, Carrier &carrier, const LaneOptions &options)
    : engine_(engine), carrier_(carrier), options_(options),
      wire_(static_cast<uint64_t *>(calloc(size_t{engine.ranks} * (engine.channels + 1u), sizeof(uint64_t)))) {
    if (wire_ == nullptr) fail(Cause::Failed, "out of memory");
    set_timeout(options.timeout_s);
}

Lane::~Lane() {
    free(wire_);
}

void Lane::set_timeout(uint32_t timeout_s) {
    options_.timeout_s = timeout_s;
    patience_ = static_cast<uint64_t>(timeout_s * 1e9 * options_.ticks_per_ns);
}

void Lane::mark(const Place &place, StepKind kind) {
    place_ = place;
    uint64_t now = efaprof_now();
    for (const Engine &one : engine_.all())
        record_mark(now, place, static_cast<uint16_t>(kind), one.ring, carrier_.head(one.proxy));
}

void Lane::record_compute(efaprof_compute what, uint64_t begin, uint64_t end, uint64_t bytes) const {
    record_stage(EFAPROF_STAGE_COMPUTE, begin, end,
                 {engine_.op_of(carrier_.head(0)), clip32(bytes), engine_.rank, static_cast<uint16_t>(what)});
}

void Lane::put(const Transfer &transfer) {
    uint64_t t_enter = efaprof_now();
    uint32_t flags = options_.signal == SignalMode::Imm ? protocol::FLAG_IMM : 0u;
    (transfer.kind == EFAPROF_CMD_PUT ? counts_.puts : counts_.notifies)++;
    push({static_cast<uint32_t>(transfer.source), static_cast<uint32_t>(transfer.target), transfer.bytes,
          static_cast<uint16_t>(transfer.peer), transfer.kind, static_cast<uint8_t>(transfer.channel), 0, 0, flags},
         t_enter);
}

// A signal's source must stay as it is until the operation has completed. Each phase has bodies of its own, and
// combine flushes in between: no body is written again before that.
void Lane::signal(uint8_t kind, uint32_t peer, uint32_t channel, bool is_fenced) {
    uint64_t t_enter = efaprof_now();
    size_t words = engine_.channels + 1u, word = engine_.word_index(peer, channel);
    uint64_t phase = place_.phase == EFAPROF_PHASE_COMBINE ? 1 : 0;
    uint64_t source = engine_.heap.signals + phase * engine_.ranks * words + word;
    uint64_t target = engine_.heap.flags + engine_.word_index(engine_.rank, channel);
    auto *body = reinterpret_cast<protocol::Signal *>(engine_.at(source));
    *body = {wire_[word] + 1, ~(wire_[word] + 1)};
    uint32_t flags =
        protocol::FLAG_SIGNAL | (engine_.has_imm ? protocol::FLAG_IMM : 0u) | (is_fenced ? protocol::FLAG_FENCE : 0u);
    (kind == EFAPROF_CMD_SIGNAL ? counts_.signals : counts_.barriers)++;
    push({static_cast<uint32_t>(source), static_cast<uint32_t>(target), sizeof(protocol::Signal),
          static_cast<uint16_t>(peer), kind, static_cast<uint8_t>(channel), 0, 0, flags},
         t_enter);
}

void Lane::push(const protocol::Command &asked, uint64_t t_enter) {
    protocol::Command command = asked;
    if (engine_.delays.kernel != 0) wait_until(t_enter + engine_.delays.kernel, options_.ticks_per_ns);
    if ((command.flags & (protocol::FLAG_IMM | protocol::FLAG_SIGNAL)) != 0) {
        uint64_t wire_seq = wire_[engine_.word_index(command.peer, command.channel)]++;
        command.flags |= static_cast<uint32_t>(wire_seq & 0xFFFF) << protocol::WIRE_SHIFT;
    }
    Idle idle;
    while (const char *what = carrier_.take(command, t_enter))
        look(idle, t_enter, what, command.peer, command.channel);
}

void Lane::barrier() {
    phases_++;
    for (uint32_t i = 0; i + 1 < engine_.ranks; i++)
        signal(EFAPROF_CMD_BARRIER, peer_after(i), engine_.channels, false);
    carrier_.announce();
    wait_signals(WAIT_BARRIER, engine_.channels, engine_.channels);
}

void Lane::send_tails() {
    for (uint32_t i = 0; i + 1 < engine_.ranks; i++) {
        for (uint32_t channel = 0; channel < engine_.channels; channel++) {
            bool is_fenced =
                options_.signal == SignalMode::Fence ||
                (options_.signal == SignalMode::FenceBatch && protocol::is_first_of_ring(channel, engine_.proxies));
            signal(EFAPROF_CMD_SIGNAL, peer_after(i), channel, is_fenced);
        }
    }
    carrier_.announce();
}

void Lane::wait_tails() {
    wait_signals(WAIT_POLL, 0, engine_.channels - 1u);
}

// A look for something that is not there yet. Waiting too long ends the rank, saying for whom.
void Lane::look(Idle &idle, uint64_t begin, const char *what, uint32_t peer, uint32_t channel) {
    if (carrier_.progress())
        idle.found();
    else
        idle.nothing();
    constexpr uint32_t CLOCK_LOOKS = 4096;
    if (++looks_ % CLOCK_LOOKS != 0 || efaprof_now() - begin < patience_) return;
    char oldest[160] = "";
    carrier_.describe_oldest(oldest, sizeof oldest);
    uint64_t completed = 0, pushed = 0;
    for (const Engine &one : engine_.all()) {
        completed += one.completions.total;
        pushed += carrier_.head(one.proxy);
    }
    fail(Cause::Failed, "step %u layer %u: waited %u s for %s (rank %u channel %u); %llu of %llu commands completed%s",
         place_.step, place_.layer, options_.timeout_s, what, peer, channel, static_cast<unsigned long long>(completed),
         static_cast<unsigned long long>(pushed), oldest);
}

void Lane::wait_signals(WaitKind kind, uint32_t first, uint32_t last) {
    uint64_t begin = efaprof_now();
    Release release = {};
    Idle idle;
    for (uint32_t i = 0; i + 1 < engine_.ranks; i++) {
        uint32_t src = peer_after(i);
        for (uint32_t channel = first; channel <= last; channel++) {
            const Told &told = engine_.of(channel).told[engine_.word_index(src, channel)];
            while (protocol::load_acquire(&told.count) < phases_)
                look(idle, begin, kind == WAIT_BARRIER ? "a barrier" : "a channel's tail", src, channel);
            if (told.t_sig >= release.t_sig)
                release = {static_cast<uint16_t>(src), static_cast<uint16_t>(channel), told.wire_seq, told.t_sig};
        }
    }
    record_wait(kind, begin, end_after(release), place_, engine_.ring, release, idle.polls());
}

bool Lane::has_completed() const {
    for (const Engine &one : engine_.all()) {
        if (protocol::load_acquire(&one.completions.prefix) != carrier_.head(one.proxy)) return false;
    }
    return true;
}

uint32_t Lane::wait_completions() {
    uint64_t begin = efaprof_now();
    Idle idle;
    carrier_.announce();
    while (!has_completed())
        look(idle, begin, "its own writes", engine_.rank, 0);
    return idle.polls();
}

void Lane::flush() {
    carrier_.announce();
    uint64_t begin = efaprof_now();
    uint32_t polls = wait_completions();
    const Engine *last = &engine_; // whose ring let it go
    for (const Engine &one : engine_.all()) {
        if (one.completions.t_told > last->completions.t_told) last = &one;
    }
    const Completions &completions = last->completions;
    Release release = {engine_.rank, static_cast<uint16_t>(completions.last_channel), completions.last_seq,
                       completions.t_told};
    record_wait(WAIT_FLUSH, begin, end_after(release), place_, last->ring, release, polls);
}

void Lane::drain() {
    wait_completions();
}

} // namespace efaprof::dispatch
