#include "posts.h"

#include "../proxy/make.h"
#include "../proxy/receive.h"
#include "../proxy/record.h"

namespace efaprof::dispatch {

gpu::Posting posting_for(const GdaQueues &queues, const Options &options, uint64_t commands) {
    gpu::Posting posting = {};
    posting.is_on = true;
    posting.window = options.window;
    posting.batch = options.posting.batch;
    constexpr uint32_t LANES = 32;
    const uint32_t LIMITS[] = {queues.send.max_batch, queues.send.count, options.window, LANES};
    for (uint32_t most : LIMITS) {
        if (posting.batch > most) posting.batch = most;
    }
    posting.stamp_capacity = protocol::power_of_two(commands);
    posting.send = queues.send;
    posting.completions = queues.completions;
    posting.counter = queues.counter;
    posting.targets = queues.targets;
    posting.base = queues.base;
    posting.lkey = queues.lkey;
    posting.qpn = queues.qpn;
    posting.fuzz = options.posting.fuzz;
    return posting;
}

void fail_posting(const gpu::Fault &fault) {
    unsigned step = fault.step, layer = fault.layer;
    switch (fault.code) {
    case gpu::FaultCode::Status:
        fail(Cause::Failed, "step %u layer %u: %s ended with status %u (%s), request %u", step, layer,
             fault.b == SOFTEFA_RQ ? "an arrival" : "a write", fault.a, status_name(static_cast<uint8_t>(fault.a)),
             fault.element);
    case gpu::FaultCode::Completion: {
        constexpr const char *WHY[] = {"another queue pair", "no queue, or an arrival without an immediate",
                                       "a rank or channel that does not exist", "a request that is not in flight"};
        fail(Cause::Failed, "step %u layer %u: a completion of request %u names %s (%u)", step, layer, fault.element,
             WHY[fault.a % 4], fault.b);
    }
    case gpu::FaultCode::Sequence:
        fail(Cause::Failed,
             "step %u layer %u: rank %u channel %u: sequence %u arrived twice, or beyond the window of %u", step, layer,
             fault.a, fault.b, fault.element, protocol::WINDOW);
    case gpu::FaultCode::Counter:
        fail(Cause::Failed, "step %u layer %u: the device's counter of errors went up by %u, with %u writes in flight",
             step, layer, fault.a, fault.b);
    default: return;
    }
}

GpuPosts::GpuPosts(const Engine &engine, const gpu::PostStamp *posts, const gpu::ArrivalStamp *arrivals,
                   uint64_t capacity)
    : engine_(engine), posts_(posts), arrivals_(arrivals), mask_(capacity - 1),
      next_(make<uint64_t>(engine.word_index(engine.ranks, 0))),
      count_(make<uint64_t>(engine.word_index(engine.ranks, 0))) {}

GpuPosts::~GpuPosts() {
    free(next_);
    free(count_);
}

void GpuPosts::write(uint64_t head, uint64_t arrivals) {
    for (; posted_ != head; posted_++)
        write_post(posted_);
    while (ended_ != posted_ && write_end(ended_))
        ended_++;
    for (; arrived_ != arrivals; arrived_++)
        write_arrival(arrivals_[arrived_ & mask_]);
}

namespace {

OpWords words_at(uint64_t op, const gpu::PostStamp &stamp) {
    protocol::Command command = {};
    command.bytes = stamp.bytes;
    command.peer = stamp.peer;
    command.kind = stamp.kind;
    command.channel = stamp.channel;
    command.flags = stamp.flags;
    return words_of(op, command);
}

} // namespace

void GpuPosts::write_post(uint64_t number) {
    const gpu::PostStamp &stamp = post(number);
    auto at = [&](uint32_t after) { return ticks(stamp.enter + after); };
    record_post({words_at(engine_.op_of(number), stamp), log2_depth(stamp.in_flight), at(0), at(stamp.ordered),
                 at(stamp.slot), at(stamp.space), at(stamp.built), at(stamp.turn), at(stamp.fenced), at(stamp.rung),
                 stamp.batch});
}

// False: it has not ended, or nobody has seen it.
bool GpuPosts::write_end(uint64_t number) {
    const gpu::PostStamp &stamp = post(number);
    uint64_t done = protocol::load_relaxed(&stamp.done);
    if (done == 0) return false;
    uint64_t t_done = ticks(done);
    OpWords words = words_at(engine_.op_of(number), stamp);
    record_stage(EFAPROF_STAGE_NIC, ticks(stamp.enter + stamp.rung), t_done, words, 0, log2_depth(stamp.in_flight));
    if (t_done >= t_last_) {
        t_last_ = t_done;
        last_seq_ = number;
        last_channel_ = stamp.channel;
    }
    engine_.journal->note_move({number + 1, t_last_, last_seq_, last_channel_});
    return true;
}

void GpuPosts::write_arrival(const gpu::ArrivalStamp &stamp) {
    uint32_t src = protocol::imm_src(stamp.imm), channel = protocol::imm_channel(stamp.imm);
    size_t word = engine_.word_index(src, channel);
    uint64_t seq = next_[word]++, end = ticks(stamp.seen + (stamp.rest & gpu::ARRIVAL_NS));
    bool is_signal = (stamp.rest & gpu::ARRIVAL_SIGNAL) != 0, is_held = (stamp.rest & gpu::ARRIVAL_HELD) != 0;
    if (static_cast<uint16_t>(seq) != protocol::imm_seq(stamp.imm))
        fail(Cause::Failed, "rank %u channel %u: the kernel handed over sequence %u, not %llu", src, channel,
             protocol::imm_seq(stamp.imm), static_cast<unsigned long long>(seq));
    if (is_signal) engine_.journal->handover(word, ++count_[word]) = {seq, end};
    auto x = static_cast<uint16_t>((is_held ? RX_HELD : 0) | (is_signal ? RX_SIGNAL : 0));
    record_rx(ticks(stamp.seen), end, x, static_cast<uint16_t>(src), static_cast<uint16_t>(channel), seq,
              engine_.has_imm ? stamp.imm : 0);
}

} // namespace efaprof::dispatch
