#include "queue_pair.h"

#include "../proxy/make.h"

namespace efaprof::dispatch {

void GdaQueuePair::open(const GdaOptions &options, Fabric *fabric, void *memory, size_t bytes) {
    options_ = options;
    fabric_ = fabric;
    const char *why_not = "no libfabric endpoint of efa-direct is open";
    if (options.source != QueueSource::Verbs && fabric != nullptr) is_libfabric_ = open_libfabric(*fabric, why_not);
    if (!is_libfabric_ && options.source == QueueSource::Libfabric)
        fail(Cause::Refused, "libfabric's queues cannot be had: %s; use --queues verbs", why_not);
    if (!is_libfabric_) open_verbs(memory, bytes);
    if (!queues_.is_unsolicited && !options.counts)
        fail(Cause::Refused,
             "the device takes a receive for every arrival with an immediate: a lane that posts by itself needs "
             "unsolicited write receives");
}

Contact GdaQueuePair::contact() const {
    return is_libfabric_ ? fabric_->contact() : contact_verbs();
}

void GdaQueuePair::connect(const Contact *contacts, uint32_t ranks, uint32_t own) {
    targets_ = make<protocol::Target>(ranks);
    for (uint32_t rank = 0; rank < ranks; rank++) {
        targets_[rank].base = contacts[rank].base;
        targets_[rank].rkey = static_cast<uint32_t>(contacts[rank].key);
    }
    queues_.targets = targets_;
    if (is_libfabric_)
        connect_libfabric(contacts, ranks, own);
    else
        connect_verbs(contacts, ranks);
}

void GdaQueuePair::close() {
    if (verbs_ != nullptr) close_verbs();
    if (is_libfabric_) fabric_->close(); // it may look at its queue a last time
    unmap_pages(queue_memory_);
    unmap_pages(counter_memory_);
    free(targets_);
    targets_ = nullptr;
}

} // namespace efaprof::dispatch
