#include "receive.h"

#include "record.h"
#include "stop.h"

namespace efaprof::dispatch {

namespace {

constexpr uint64_t QUEUE = 8192;

void *zeroed(size_t count, size_t bytes) {
    void *memory = calloc(count, bytes);
    if (memory == nullptr) fail(Cause::Failed, "out of memory");
    return memory;
}

} // namespace

Receiver::Receiver(Engine &engine)
    : engine_(engine), queue_(QUEUE), words_(size_t{engine.ranks} * (engine.channels + 1u)),
      windows_(static_cast<protocol::Window *>(zeroed(words_, sizeof(protocol::Window)))),
      seen_(static_cast<uint64_t *>(zeroed(words_ * protocol::WINDOW, sizeof(uint64_t)))),
      scanned_(static_cast<uint64_t *>(zeroed(words_, sizeof(uint64_t)))) {}

Receiver::~Receiver() {
    free(windows_);
    free(seen_);
    free(scanned_);
}

void Receiver::accept(uint32_t imm, uint64_t t_seen) {
    if (engine_.delays.rx != 0)
        queue_.push(t_seen, {imm, t_seen});
    else
        deliver(imm, t_seen);
}

// The delay's server: one arrival after the other, each for the same time.
uint32_t Receiver::turn() {
    uint32_t handed = 0;
    while (!queue_.is_empty()) {
        Seen seen = queue_.front();
        uint64_t begin = seen.t_seen > last_end_ ? seen.t_seen : last_end_;
        if (efaprof_now() < begin + engine_.delays.rx) break;
        queue_.pop();
        deliver(seen.imm, seen.t_seen);
        last_end_ = efaprof_now();
        handed++;
    }
    return handed;
}

void Receiver::deliver(uint32_t imm, uint64_t t_seen) {
    uint32_t src = protocol::imm_src(imm), channel = protocol::imm_channel(imm);
    if (src >= engine_.ranks || channel > engine_.channels || &engine_.of(channel) != &engine_)
        fail(Cause::Failed, "an immediate names rank %u channel %u, which do not exist here", src, channel);
    size_t word = engine_.word_index(src, channel);
    protocol::Window &window = windows_[word];
    int64_t whole = 0;
    protocol::Arrival arrival = protocol::arrive(window, protocol::imm_seq(imm), whole);
    if (arrival == protocol::Arrival::Repeated || arrival == protocol::Arrival::Beyond)
        fail(Cause::Failed, "rank %u channel %u: sequence %lld arrived %s, the oldest missing one is %llu", src,
             channel, static_cast<long long>(whole),
             arrival == protocol::Arrival::Repeated ? "twice" : "further ahead than the window of 512",
             static_cast<unsigned long long>(window.next));
    uint64_t *seen = &seen_[word * protocol::WINDOW];
    seen[static_cast<uint64_t>(whole) % protocol::WINDOW] = t_seen;
    uint64_t seq = 0;
    for (bool is_held = false; protocol::hand_over(window, seq); is_held = true)
        tell(src, channel, seq, is_held);
}

// The turn of `seq` has come. A signal's body says how many operations it stands behind, itself included: the
// body with this very count belongs to this arrival, since its consumer has not yet let a later one be sent.
void Receiver::tell(uint32_t src, uint32_t channel, uint64_t seq, bool is_held) {
    size_t word = engine_.word_index(src, channel);
    bool is_signal = protocol::read_signal(body(word)) == seq + 1;
    uint64_t now = efaprof_now();
    if (is_signal) {
        Told &told = engine_.told[word];
        told.wire_seq = seq;
        told.t_sig = now;
        if (engine_.journal != nullptr) engine_.journal->handover(word, told.count + 1) = {seq, now};
        protocol::store_release(&told.count, told.count + 1);
    }
    auto x = static_cast<uint16_t>((is_held ? RX_HELD : 0) | (is_signal ? RX_SIGNAL : 0));
    record_rx(seen_[word * protocol::WINDOW + seq % protocol::WINDOW], now, x, static_cast<uint16_t>(src),
              static_cast<uint16_t>(channel), seq, engine_.has_imm ? protocol::pack_imm(src, channel, seq) : 0);
}

} // namespace efaprof::dispatch
