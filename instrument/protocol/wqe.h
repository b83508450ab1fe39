// Posting to an EFA device without a library: work queue entries, doorbells, completions, for whoever computes: a
// kernel's thread, or a CPU's that stands for one. The layouts are those of softefa/wire.h.
//
// A poster does, in this order (what takes time has a stamp in the records):
//
//   reserve ── has_space ── build, write_entry ── fence_system ── is_turn ── ring_doorbell
//   slot        SQ space      entry built           fenced         turn        doorbell
//
// The device takes entries in order and ends them in any. Several threads may post to one queue: each reserves
// places, writes them, and rings when all before have been announced, so a doorbell never runs over an unwritten
// entry. `entries` and `doorbell` may be the device's own memory; the other words are the poster's.
#pragma once

#include <softefa/wire.h>
#include <string.h>

#include "hd.h"

namespace efaprof::protocol {

constexpr uint32_t WQE_WORDS = sizeof(softefa_wqe) / sizeof(uint64_t);

// Where a peer's memory lies, and what names it to the device.
struct Target {
    uint64_t base; // remote address of offset 0
    uint32_t rkey;
    uint32_t qkey;
    uint16_t qpn;
    uint16_t ah;
};

struct SendQueue {
    uint64_t *entries;
    uint32_t *doorbell;
    uint32_t count;     // entries, a power of two
    uint32_t max_batch; // that one doorbell may announce
    uint64_t reserved;  // places given out
    uint64_t announced; // places that doorbells have told of: the turn
};

// The next `places` of the queue; at most min(max_batch, count), or has_space would wait for ever.
EFAPROF_HD uint64_t reserve(SendQueue &queue, uint32_t places) {
    return fetch_add(&queue.reserved, places);
}

// An entry may be written again once the device has read it. It reads in order: when `completed` operations have
// ended, whichever they are, at least so many entries have been read.
EFAPROF_HD bool has_space(const SendQueue &queue, uint64_t place, uint64_t completed) {
    return place - completed < queue.count;
}

// One RDMA write; an operation has one local piece.
struct WriteWork {
    uint64_t source; // local address
    uint64_t offset; // in the peer's memory
    uint32_t bytes;
    uint32_t lkey;
    uint32_t imm;
    uint16_t req_id;
    bool has_imm;
};

EFAPROF_HD softefa_wqe build_write(const WriteWork &work, const Target &target) {
    softefa_wqe wqe = {};
    uint64_t there = target.base + work.offset;
    wqe.meta.req_id = work.req_id;
    wqe.meta.ctrl1 = static_cast<uint8_t>(SOFTEFA_CTRL1_META | SOFTEFA_WRITE | (work.has_imm ? SOFTEFA_CTRL1_IMM : 0u));
    wqe.meta.ctrl2 = SOFTEFA_CTRL2_FIRST | SOFTEFA_CTRL2_LAST | SOFTEFA_CTRL2_COMPLETE;
    wqe.meta.dest_qpn = target.qpn;
    wqe.meta.length = 1; // local pieces
    wqe.meta.imm = work.imm;
    wqe.meta.ah = target.ah;
    wqe.meta.qkey = target.qkey;
    wqe.u.rdma.remote = {work.bytes, target.rkey, static_cast<uint32_t>(there), static_cast<uint32_t>(there >> 32)};
    wqe.u.rdma.local = {work.bytes, work.lkey, static_cast<uint32_t>(work.source),
                        static_cast<uint32_t>(work.source >> 32)};
    return wqe;
}

// The phase bit is 0 in the first lap of a send queue, and flips with each.
EFAPROF_HD void write_entry(SendQueue &queue, uint64_t place, softefa_wqe wqe) {
    wqe.meta.ctrl2 = static_cast<uint8_t>((wqe.meta.ctrl2 & ~SOFTEFA_CTRL2_PHASE) | (place / queue.count & 1));
    uint64_t words[WQE_WORDS];
    memcpy(words, &wqe, sizeof wqe);
    uint64_t *slot = queue.entries + (place & (queue.count - 1)) * WQE_WORDS;
    for (uint32_t i = 0; i < WQE_WORDS; i++)
        store_relaxed(slot + i, words[i]);
}

// Everything before `place` has been announced: who wrote there may ring.
EFAPROF_HD bool is_turn(const SendQueue &queue, uint64_t place) {
    return load_acquire(&queue.announced) == place;
}

// Announces the entries up to `end`. After is_turn of the first and a fence_system behind the last of them.
EFAPROF_HD void ring_doorbell(SendQueue &queue, uint64_t end) {
    store_relaxed(queue.doorbell, static_cast<uint32_t>(end) & 0xffffu);
    store_release(&queue.announced, end);
}

// ---- how a poster learns what ended: two ways behind one interface ------------------------------------
//
//   uint64_t ended(const Watch &)          operations that have ended, so far as was looked
//   uint32_t look(Watch &, found, failed)  looks once; found(Completion) for each entry, failed(count, status) for
//                                          errors; returns how many operations ended
//
// CqWatch says which operation ended, and brings arrivals with their immediates. CounterWatch reads a word that the
// device counts up: no entry per operation, so only "all of them" can be told, and no arrival.

struct Completion {
    uint64_t number; // of the entry, in its queue
    uint32_t imm;
    uint16_t req_id;
    uint16_t qpn;
    uint8_t status;
    uint8_t queue; // SOFTEFA_SQ or SOFTEFA_RQ
    bool has_imm;
    bool is_unsolicited; // took no receive
};

struct CqWatch {
    const uint8_t *entries;
    uint32_t *doorbell; // told how far we have read; null where the device does not want to know
    uint32_t count;     // entries, a power of two
    uint32_t entry_bytes;
    uint64_t read;      // entries
    uint64_t completed; // of them, ends of own operations
};

// The phase bit is 1 in the first lap of a completion queue. The device stores the first word last and at once.
EFAPROF_HD bool read_completion(CqWatch &cq, Completion &found) {
    const uint8_t *entry = cq.entries + (cq.read & (cq.count - 1)) * cq.entry_bytes;
    auto *words = reinterpret_cast<const uint64_t *>(entry);
    uint64_t head = load_acquire(words);
    auto flags = static_cast<uint8_t>(head >> 24);
    if ((flags & SOFTEFA_CQE_PHASE) != ((cq.read / cq.count & 1) ^ 1)) return false;
    uint64_t second = load_relaxed(words + 1);
    found.number = cq.read++;
    found.imm = static_cast<uint32_t>(second >> 32);
    found.req_id = static_cast<uint16_t>(head);
    found.qpn = static_cast<uint16_t>(head >> 32);
    found.status = static_cast<uint8_t>(head >> 16);
    found.queue = static_cast<uint8_t>((flags & SOFTEFA_CQE_QUEUE) >> SOFTEFA_CQE_QUEUE_SHIFT);
    found.has_imm = (flags & SOFTEFA_CQE_IMM) != 0;
    found.is_unsolicited = (flags & SOFTEFA_CQE_UNSOLICITED) != 0;
    return true;
}

EFAPROF_HD void tell_read(CqWatch &cq) {
    if (cq.doorbell != nullptr) store_relaxed(cq.doorbell, static_cast<uint32_t>(cq.read) & SOFTEFA_CQ_DB_COUNT);
}

EFAPROF_HD uint64_t ended(const CqWatch &cq) {
    return cq.completed;
}

template <typename Found, typename Failed> EFAPROF_HD uint32_t look(CqWatch &cq, Found found, Failed failed) {
    constexpr uint32_t MOST = 32; // then others get their turn
    uint32_t own = 0, entries = 0;
    Completion one;
    while (entries < MOST && read_completion(cq, one)) {
        entries++;
        if (one.status != SOFTEFA_OK) failed(1u, one);
        if (one.queue == SOFTEFA_SQ) {
            own++;
            cq.completed++;
        }
        found(one);
    }
    if (entries != 0) tell_read(cq);
    return own;
}

// A device's counter has 31 bits.
constexpr uint64_t COUNTER_MASK = 0x7fffffffu;

struct CounterWatch {
    const uint64_t *done;
    const uint64_t *errors;
    uint64_t last, last_errors; // as read
    uint64_t completed;         // whole, errors not among them
};

EFAPROF_HD uint64_t ended(const CounterWatch &counter) {
    return counter.completed;
}

template <typename Found, typename Failed> EFAPROF_HD uint32_t look(CounterWatch &counter, Found, Failed failed) {
    uint64_t done = load_acquire(counter.done), errors = load_acquire(counter.errors);
    auto more = static_cast<uint32_t>((done - counter.last) & COUNTER_MASK);
    auto wrong = static_cast<uint32_t>((errors - counter.last_errors) & COUNTER_MASK);
    counter.last = done;
    counter.last_errors = errors;
    counter.completed += more;
    if (wrong != 0) failed(wrong, Completion{});
    return more;
}

} // namespace efaprof::protocol
