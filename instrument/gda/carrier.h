// The kernel-posted path's carrier: the lane writes work queue entries itself, rings the doorbell, and reads the
// completion queue (or the device's counter). No ring, no proxy, no library call.
#pragma once

#include "../proxy/endings.h"
#include "../proxy/record.h"
#include "../workload/carrier.h"
#include "queues.h"

namespace efaprof::dispatch {

struct GdaCarrierOptions {
    uint32_t batch; // entries that one doorbell announces, at most
    uint32_t fuzz;  // tests only: of each thousand entries, so many are written with a random bit flipped
    uint64_t seed;  // of that
};

// `Watch`: protocol::CqWatch or protocol::CounterWatch. With the latter nobody sees which operation ended: all that
// are in flight count as ended once the counter has come as far as was posted.
template <typename Watch> class GdaCarrier final : public Carrier {
public:
    GdaCarrier(Engine &engine, GdaQueues &queues, const GdaCarrierOptions &options);
    ~GdaCarrier();
    GdaCarrier(const GdaCarrier &) = delete;
    GdaCarrier &operator=(const GdaCarrier &) = delete;

    const char *take(protocol::Command &command, uint64_t t_enter) override;
    void announce() override;
    bool progress() override;
    void describe_oldest(char *text, size_t bytes) const override;

private:
    static constexpr uint32_t MOST_BATCH = 64;

    bool is_ordered(uint16_t peer) const;
    void write(const protocol::Command &command);
    void spoil(softefa_wqe &wqe);
    void take_in(const protocol::Completion &found, uint64_t now);
    void take_in_all(uint64_t now);
    [[noreturn]] void fail_entry(uint32_t count, const protocol::Completion &found) const;

    Engine &engine_;
    GdaQueues &queues_;
    Watch &watch_;
    GdaCarrierOptions options_;
    Endings endings_;
    uint64_t *posted_;   // [peer]
    uint8_t *is_flying_; // [slot] announced or written, and not seen to have ended
    uint64_t noted_ = 0; // CounterWatch: operations before it were seen to have ended
    uint64_t random_;

    bool is_begun_ = false, was_ordered_late_ = false, has_place_ = false; // of the command being taken
    uint64_t place_ = 0;
    Post now_ = {};
    Post written_[MOST_BATCH]; // entries that no doorbell has announced yet
    uint32_t held_ = 0;        // of them
    uint64_t first_ = 0;       // place of the first of them
};

} // namespace efaprof::dispatch
