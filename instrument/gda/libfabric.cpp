// Queues of a libfabric endpoint, by fi_open_ops(domain, "efa gda ops"): since libfabric 2.3, efa-direct only, and only
// where it was built against an rdma-core that can be asked for queues (59 or later). Declared here from what the
// interface is: installed headers are mostly older than the libfabric that runs.
#include "queue_pair.h"

#include <rdma/fi_errno.h>

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../proxy/stop.h"

namespace efaprof::dispatch {

namespace {

struct WqAttr {
    uint8_t *buffer;
    uint32_t entry_size, num_entries;
    uint32_t *doorbell;
    uint32_t max_batch;
    uint8_t later[60]; // newer libfabrics write more
};

struct CqAttr {
    uint8_t *buffer;
    uint32_t entry_size, num_entries;
    uint8_t later[64];
};

struct CqMemory {
    uint64_t flags; // IS_EXTERNAL
    uint8_t *buffer;
    uint64_t length, offset;
    uint32_t fd; // of a dma-buf
    uint8_t later[64];
};
constexpr uint64_t IS_EXTERNAL = 1;

struct CounterPlace {
    uint8_t *address;
    uint64_t dmabuf_offset;
    int32_t dmabuf_fd;
    uint32_t reserved;
    uint8_t type; // 0: by address, 1: by dma-buf
    uint8_t reserved_too[7];
};
struct CounterMemory {
    uint64_t comp_mask;
    uint32_t flags; // HAS_DONE, HAS_FAILED
    uint32_t reserved;
    CounterPlace done, failed;
    uint8_t later[64];
};
static_assert(offsetof(CounterMemory, later) == 80, "as the interface has it");
constexpr uint32_t HAS_DONE = 1, HAS_FAILED = 2;
constexpr size_t FAILED_AT = 64; // bytes behind the count
constexpr size_t MOST_ENTRY_BYTES = 64;

// The table has no size: its last entry came with 2.6, whatever a manual says.
bool has_counters() {
    return FI_VERSION_GE(fi_version(), FI_VERSION(2, 6));
}

void check(int result, const char *call) {
    if (result != 0) fail(Cause::Failed, "%s of libfabric's efa gda ops: %s", call, fi_strerror(-result));
}

} // namespace

struct GdaQueuePair::GdaOps {
    int (*query_addr)(fid_ep *endpoint, fi_addr_t address, uint16_t *handle, uint16_t *queue_pair, uint32_t *qkey);
    int (*query_qp_wqs)(fid_ep *endpoint, WqAttr *send, WqAttr *receive);
    int (*query_cq)(fid_cq *cq, CqAttr *attr);
    int (*cq_open_ext)(fid_domain *domain, fi_cq_attr *attr, CqMemory *memory, fid_cq **cq, void *context);
    uint64_t (*get_mr_lkey)(fid_mr *mr);
    int (*cntr_open_ext)(fid_domain *domain, fi_cntr_attr *attr, fid_cntr **counter, void *context,
                         CounterMemory *memory); // has_counters
};

void GdaQueuePair::prepare(const GdaOptions &options, FabricOptions &fabric) {
    options_ = options;
    if (options.source == QueueSource::Verbs) return;
    fabric.hooks = this;
    if (!options.counts) return;
    setenv("FI_EFA_USE_HW_CNTR", "1", 0); // 2.6 asks for it, later ones do so by themselves
    fabric.most_counted = protocol::COUNTER_MASK;
}

bool GdaQueuePair::find_ops(fid_domain *domain) {
    void *ops = nullptr;
    if (fi_open_ops(&domain->fid, "efa gda ops", 0, &ops, nullptr) != 0) ops = nullptr;
    ops_ = static_cast<const GdaOps *>(ops);
    return ops_ != nullptr;
}

// In memory that a GPU maps as any other. A device takes it as a dma-buf; the emulated one as any file that cannot
// shrink. What refuses it has a queue of its own.
fid_cq *GdaQueuePair::open_cq(fid_domain *domain, const fi_cq_attr &attr) {
    if (!find_ops(domain) || ops_->cq_open_ext == nullptr) return nullptr;
    queue_memory_ = map_pages(protocol::power_of_two(attr.size) * MOST_ENTRY_BYTES, "efaprof-completions");
    fid_cq *cq = nullptr;
    const int files[] = {queue_memory_.dmabuf, queue_memory_.file};
    for (int file : files) {
        fi_cq_attr wanted = attr;
        CqMemory memory = {IS_EXTERNAL, queue_memory_.at, queue_memory_.bytes, 0, static_cast<uint32_t>(file), {}};
        if (file >= 0 && ops_->cq_open_ext(domain, &wanted, &memory, &cq, nullptr) == 0) break;
        cq = nullptr;
    }
    close_files(queue_memory_);
    if (cq == nullptr) unmap_pages(queue_memory_);
    return cq;
}

fid_cntr *GdaQueuePair::open_counter(fid_domain *domain) {
    if (!options_.counts || ops_ == nullptr) return nullptr;
    no_counter_ = "its libfabric is older than 2.6, with which counters came (cntr_open_ext)";
    if (!has_counters() || ops_->cntr_open_ext == nullptr) return nullptr;
    counter_memory_ = map_pages(2 * FAILED_AT, "efaprof-counts");
    CounterMemory memory = {};
    memory.flags = HAS_DONE | HAS_FAILED;
    memory.done.address = counter_memory_.at;
    memory.failed.address = counter_memory_.at + FAILED_AT;
    fi_cntr_attr attr = {};
    attr.events = FI_CNTR_EVENTS_COMP;
    attr.wait_obj = FI_WAIT_NONE;
    fid_cntr *counter = nullptr;
    int result = ops_->cntr_open_ext(domain, &attr, &counter, nullptr, &memory);
    close_files(counter_memory_); // by them the emulated device has found the page
    if (result == 0) return counter;
    no_counter_ = result == -FI_ENOSYS ? "this libfabric was built against an rdma-core older than 65, with which "
                                         "completion counters came (cntr_open_ext)"
                  : result == -FI_EOPNOTSUPP
                      ? "this device has no completion counters, or FI_EFA_USE_HW_CNTR=0 (cntr_open_ext); the emulated "
                        "one has with counters=on"
                      : fi_strerror(-result);
    unmap_pages(counter_memory_);
    return nullptr;
}

bool GdaQueuePair::open_libfabric(Fabric &fabric, const char *&why_not) {
    FabricParts parts = fabric.parts();
    if (ops_ == nullptr && !find_ops(parts.domain)) {
        why_not =
            "this libfabric has no \"efa gda ops\" (they came with 2.3, for builds against rdma-core 59 or later)";
        return false;
    }
    WqAttr send = {}, receive = {};
    CqAttr cq = {};
    int result = ops_->query_qp_wqs(parts.endpoint, &send, &receive);
    if (result == -FI_ENOSYS) {
        why_not = "this libfabric was built against an rdma-core older than 59, and can hand out none";
        return false;
    }
    if (options_.counts && counter_memory_.at == nullptr) {
        why_not = no_counter_;
        return false;
    }
    check(result, "query_qp_wqs");
    check(ops_->query_cq(parts.cq, &cq), "query_cq");
    queues_.send = {reinterpret_cast<uint64_t *>(send.buffer), send.doorbell, send.num_entries, send.max_batch, 0, 0};
    queues_.completions = {cq.buffer, nullptr, cq.num_entries, cq.entry_size, 0, 0};
    if (options_.counts)
        queues_.counter = {reinterpret_cast<uint64_t *>(counter_memory_.at),
                           reinterpret_cast<uint64_t *>(counter_memory_.at + FAILED_AT), 0, 0, 0};
    queues_.lkey = static_cast<uint32_t>(ops_->get_mr_lkey(parts.memory));
    queues_.base = reinterpret_cast<uint64_t>(parts.memory_start);
    // A domain is named for its device and its kind of endpoint: rdmap0s6-rdm.
    const char *end = strrchr(parts.domain_name, '-');
    int length =
        static_cast<int>(end == nullptr ? strlen(parts.domain_name) : static_cast<size_t>(end - parts.domain_name));
    snprintf(device_, sizeof device_, "%.*s", length, parts.domain_name);
    queues_.is_unsolicited = (parts.mode & FI_RX_CQ_DATA) == 0;
    if (send.entry_size != sizeof(softefa_wqe))
        fail(Cause::Refused, "the device's send queue has entries of %u bytes, this poster writes %zu", send.entry_size,
             sizeof(softefa_wqe));
    return true;
}

void GdaQueuePair::connect_libfabric(const Contact *contacts, uint32_t ranks, uint32_t own) {
    fabric_->connect(contacts, ranks);
    FabricParts parts = fabric_->parts();
    for (uint32_t rank = 0; rank < ranks; rank++) {
        protocol::Target &target = targets_[rank];
        check(ops_->query_addr(parts.endpoint, parts.addresses[rank], &target.ah, &target.qpn, &target.qkey),
              "query_addr");
    }
    queues_.qpn = targets_[own].qpn;
}

} // namespace efaprof::dispatch
