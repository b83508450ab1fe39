// A queue pair whose rings the caller drives itself. Two sources: libfabric's direct access for GPUs (fi_open_ops,
// "efa gda ops"; efa-direct only), or EFA's own verbs (efadv_query_qp_wqs), which the emulated device has as well.
#pragma once

#include "../proxy/fabric.h"
#include "queues.h"
#include "shared_pages.h"
#include "source.h"

namespace efaprof::dispatch {

struct GdaOptions {
    QueueSource source;
    bool counts; // completions by the device's counter instead of a completion queue
    uint32_t send_entries, completion_entries;
};

class GdaQueuePair final : public FabricHooks {
public:
    // Before the endpoint is opened, with this as its hooks: libfabric opens a completion queue in memory of ours where
    // it can, and the counter, and only so early.
    void prepare(const GdaOptions &options, FabricOptions &fabric);
    // Opens the queue pair and registers the memory. Fails the rank with one line where there is no such device, or it
    // lacks something. `fabric` is the endpoint of provider efa-direct, or null where there is none.
    void open(const GdaOptions &options, Fabric *fabric, void *memory, size_t bytes);
    // What the peers need to write here, and how they are reached.
    Contact contact() const;
    // `own`: this rank.
    void connect(const Contact *contacts, uint32_t ranks, uint32_t own);
    void close();

    GdaQueues &queues() { return queues_; }
    bool is_libfabric() const { return is_libfabric_; }
    // The completion queue lies in memory of ours (cq_open_ext).
    bool has_own_queue() const { return is_libfabric_ && queue_memory_.at != nullptr; }
    // The device that it is a queue pair of.
    const char *device_name() const { return device_; }
    const char *source_name() const { return is_libfabric_ ? "libfabric (efa gda ops)" : "efa verbs"; }

private:
    struct Verbs;  // verbs.cpp
    struct GdaOps; // libfabric.cpp

    fid_cq *open_cq(fid_domain *domain, const fi_cq_attr &attr) override;
    fid_cntr *open_counter(fid_domain *domain) override;
    bool find_ops(fid_domain *domain);
    bool open_libfabric(Fabric &fabric, const char *&why_not);
    void connect_libfabric(const Contact *contacts, uint32_t ranks, uint32_t own);
    void open_verbs(void *memory, size_t bytes);
    void open_counter();
    Contact contact_verbs() const;
    void connect_verbs(const Contact *contacts, uint32_t ranks);
    void close_verbs();

    GdaOptions options_ = {};
    GdaQueues queues_ = {};
    protocol::Target *targets_ = nullptr;
    bool is_libfabric_ = false;
    char device_[64] = {};
    Fabric *fabric_ = nullptr;
    const GdaOps *ops_ = nullptr;
    SharedPages queue_memory_ = {}, counter_memory_ = {}; // of libfabric's
    const char *no_counter_ = nullptr;                    // why there is none
    Verbs *verbs_ = nullptr;
};

} // namespace efaprof::dispatch
