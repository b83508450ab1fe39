// What one thread remembers between calls: how deep it stands in hooked calls, calls that are being retried, and what
// it knows about the endpoints, queues and counters that it uses. Nothing here is shared, so nothing is locked.
#pragma once

#include "registry.h"

#include <core/writer.h>

#include <stddef.h>
#include <stdint.h>

namespace efaprof::ofi {

inline uint64_t address(const volatile void *pointer) {
    return reinterpret_cast<uint64_t>(pointer);
}

// Which of the endpoint's default operation flags a call takes.
enum class Defaults : uint8_t {
    kNone, // the call carries its own flags
    kTransmit,
    kReceive,
    kInject, // transmit flags, but the call never completes
};

// The arguments of a data call that are recorded.
struct Op {
    uint64_t ep, ctx, fi_addr;
    uint64_t raddr; // remote address or tag
    uint64_t len;
    uint64_t data;
    uint64_t flags; // given, or implied by the function
    uint8_t what;   // EFAPROF_OP_WHAT
    Defaults defaults;
};

// A call that returned -FI_EAGAIN and will most likely be tried again.
struct Retry {
    Op op;
    uint64_t t_first, t_last;
    uint32_t attempts;
    uint32_t endpoints_closed; // as it was: an endpoint at the same address later is another one
    uint8_t nest;
};

// What is remembered of an object. Entries stand at or shortly after the place that the pointer's hash gives them.
struct EpSeen {
    uint64_t fid;
    uint32_t generation;
    uint32_t tx_flags, rx_flags;
};

struct CqSeen {
    uint64_t fid;
    uint64_t id; // of the registry; 0 = opened where we could not see it
    uint32_t generation;
    uint32_t empties;
    uint8_t format;
    uint8_t nest; // at which it was polled last
    bool has_source;
};

struct CntrSeen {
    uint64_t fid;
    uint32_t generation;
    bool known[2]; // value, error value
    uint64_t value[2];
};

constexpr unsigned kRetries = 16;
constexpr unsigned kEpsSeen = 256; // powers of two
constexpr unsigned kCqsSeen = 256;
constexpr unsigned kCntrsSeen = 128;

struct Thread {
    Thread *next;    // list of all, never shortened
    uint32_t in_use; // 0: its thread ended, the next one may have it
    // from here on cleared when a thread takes it
    uint32_t fork_generation;
    uint32_t depth;     // hooked calls open on this thread
    uint32_t fabrics;   // fi_fabric calls open: a hook provider called by one of them is not a layer below it
    uint64_t current;   // fid of the innermost one
    uint64_t opened;    // fid that the last open recorded, so that an enclosing open of the same does not
    uint32_t retries;   // entries of `retry` in use
    uint32_t retry_seq; // odd while `retry` changes
    Retry retry[kRetries];
    EpSeen eps[kEpsSeen];
    CqSeen cqs[kCqsSeen];
    CntrSeen cntrs[kCntrsSeen];
};

extern __thread Thread *this_thread __attribute__((tls_model("initial-exec")));
extern uint32_t *fork_word; // zeroed by the kernel in a forked child

Thread *thread_slow(); // makes, claims or resets this thread's; null when there is no memory

inline Thread *thread_now() {
    Thread *thread = this_thread;
    if (__builtin_expect(!thread || thread->fork_generation != *fork_word, 0)) return thread_slow();
    return thread;
}

inline uint8_t nest_of(uint32_t depth) {
    return static_cast<uint8_t>(depth < 255 ? depth : 255);
}

// The stretch of one hooked call. False: not to be recorded, because a function of the same object called this one
// (read implemented by readfrom), or because the thread has no memory for us. A call of another object at depth > 0 is
// a lower layer's. An open is never its parent's own affair: a domain may open objects for itself while it opens ours.
class Call {
public:
    enum class Kind { kOperation, kOpen };

    explicit Call(const void *fid, Kind kind = Kind::kOperation) : thread_(thread_now()) {
        const uint64_t id = address(fid);
        if (__builtin_expect(!thread_, 0)) return;
        depth_ = thread_->depth;
        outer_ = thread_->current;
        if (kind == Kind::kOperation && depth_ != 0 && outer_ == id) {
            thread_ = nullptr;
            return;
        }
        is_own_ = kind == Kind::kOpen && depth_ != 0 && outer_ == id && id != 0;
        thread_->depth = depth_ + 1;
        thread_->current = id;
    }
    // Before anything is recorded, so that what recording itself calls is not nested in it.
    void leave() {
        thread_->depth = depth_;
        thread_->current = outer_;
    }
    explicit operator bool() const { return thread_ != nullptr; }
    Thread &thread() { return *thread_; }
    uint8_t nest() const { return nest_of(depth_ - is_own_); } // calls of other objects open above this one

private:
    Thread *thread_;
    uint32_t depth_ = 0;
    bool is_own_ = false; // the call above is of the same object
    uint64_t outer_ = 0;
};

// Posts that are tried again.
void retry_later(Thread &thread, const Op &op, uint64_t t_first, uint64_t t_last, uint8_t nest);
bool retry_ended(Thread &thread, const Op &op, Retry *ended); // true: *ended is what had been tried before
void flush_retries(Thread &thread, uint64_t ep);              // 0: of all endpoints

// Facts about one fid, looked up in the registry when this thread does not have them or they may be old.
const EpSeen &ep_seen_slow(Thread &thread, uint64_t ep);
CqSeen &cq_seen_slow(Thread &thread, uint64_t cq);
CntrSeen &cntr_seen_slow(Thread &thread, uint64_t cntr);

inline unsigned spread(uint64_t fid, unsigned entries) {
    return static_cast<unsigned>((fid * 0x9E3779B97F4A7C15u) >> 40) & (entries - 1);
}

template <class Seen, unsigned Entries> bool is_known(Seen (&all)[Entries], uint64_t fid, Seen *&at) {
    at = &all[spread(fid, Entries)];
    return __builtin_expect(at->fid == fid && at->generation == current_generation(), 1);
}

inline const EpSeen &ep_seen(Thread &thread, uint64_t ep) {
    EpSeen *at;
    return is_known(thread.eps, ep, at) ? *at : ep_seen_slow(thread, ep);
}
inline CqSeen &cq_seen(Thread &thread, uint64_t cq) {
    CqSeen *at;
    return is_known(thread.cqs, cq, at) ? *at : cq_seen_slow(thread, cq);
}
inline CntrSeen &cntr_seen(Thread &thread, uint64_t cntr) {
    CntrSeen *at;
    return is_known(thread.cntrs, cntr, at) ? *at : cntr_seen_slow(thread, cntr);
}

void flush_idle_everywhere(uint64_t cq); // empty polls not yet reported by any thread, when a queue is closed
void flush_at_exit();                    // everything that any thread still holds back

} // namespace efaprof::ofi
