// What takes a lane's commands away and brings back what became of them: a ring with a proxy behind it, or the lane's
// own queue pair. Either tells through engine.told and engine.completions.
#pragma once

#include "../protocol/command.h"
#include "../proxy/state.h"

namespace efaprof::dispatch {

class Carrier {
public:
    // Null once the command is on its way, with its stages up to there recorded; else what it waits for: look for
    // progress, then ask again with the same command.
    virtual const char *take(protocol::Command &command, uint64_t t_enter) = 0;
    // What was taken and held back (doorbells are rung for several at once) goes out now.
    virtual void announce() {}
    // One look at what came, where no other thread looks; true when something did.
    virtual bool progress() { return false; }
    // Which operation has been in flight longest, to be said where a wait was given up; nothing when nobody knows.
    virtual void describe_oldest(char *text, size_t bytes) const {
        if (bytes != 0) text[0] = 0;
    }

    // Number of the next command; of one of its rings, where it has several.
    virtual uint64_t head(uint32_t /*proxy*/) const { return head_; }

protected:
    Carrier() = default;
    ~Carrier() = default;
    uint64_t head_ = 0;
};

// The proxy path's: whoever empties the rings does the rest.
class RingCarrier final : public Carrier {
public:
    explicit RingCarrier(const Engine &engine);
    const char *take(protocol::Command &command, uint64_t t_enter) override;
    uint64_t head(uint32_t proxy) const override { return rings_[proxy].head; }

private:
    const Engine &engine_;
    protocol::Producer rings_[protocol::MAX_PROXIES];
};

} // namespace efaprof::dispatch
