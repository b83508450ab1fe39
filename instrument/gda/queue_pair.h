// A queue pair whose rings the caller drives itself. Two sources: libfabric's direct access for GPUs (fi_open_ops,
// "efa gda ops"; efa-direct only), or EFA's own verbs (efadv_query_qp_wqs), which the emulated device has as well.
#pragma once

#include "../proxy/fabric.h"
#include "queues.h"
#include "source.h"

namespace efaprof::dispatch {

struct GdaOptions {
    QueueSource source;
    bool counts; // completions by the device's counter instead of a completion queue
    uint32_t send_entries, completion_entries;
};

class GdaQueuePair {
public:
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
    // The device that it is a queue pair of.
    const char *device_name() const { return device_; }
    const char *source_name() const { return is_libfabric_ ? "libfabric (efa gda ops)" : "efa verbs"; }

private:
    struct Verbs;  // verbs.cpp
    struct GdaOps; // libfabric.cpp

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
    Verbs *verbs_ = nullptr;
};

} // namespace efaprof::dispatch
