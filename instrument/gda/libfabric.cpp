// Queues of a libfabric endpoint, by fi_open_ops(domain, "efa gda ops"): since libfabric 2.3, efa-direct only, and only
// where it was built against an rdma-core that can be asked for queues (59 or later). Declared here from what the
// interface is: installed headers are mostly older than the libfabric that runs.
#include "queue_pair.h"

#include <rdma/fi_errno.h>

#include <stdio.h>
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

void check(int result, const char *call) {
    if (result != 0) fail(Cause::Failed, "%s of libfabric's efa gda ops: %s", call, fi_strerror(-result));
}

} // namespace

struct GdaQueuePair::GdaOps {
    int (*query_addr)(fid_ep *endpoint, fi_addr_t address, uint16_t *handle, uint16_t *queue_pair, uint32_t *qkey);
    int (*query_qp_wqs)(fid_ep *endpoint, WqAttr *send, WqAttr *receive);
    int (*query_cq)(fid_cq *cq, CqAttr *attr);
    int (*cq_open_ext)(fid_domain *domain, fi_cq_attr *attr, void *memory, fid_cq **cq, void *context);
    uint64_t (*get_mr_lkey)(fid_mr *mr);
};

bool GdaQueuePair::open_libfabric(Fabric &fabric, const char *&why_not) {
    FabricParts parts = fabric.parts();
    void *ops = nullptr;
    int result = fi_open_ops(&parts.domain->fid, "efa gda ops", 0, &ops, nullptr);
    if (result != 0 || ops == nullptr) {
        why_not =
            "this libfabric has no \"efa gda ops\" (they came with 2.3, for builds against rdma-core 59 or later)";
        return false;
    }
    if (options_.counts) {
        why_not = "its counters are bound before an endpoint is enabled: not done here";
        return false;
    }
    ops_ = static_cast<const GdaOps *>(ops);
    WqAttr send = {}, receive = {};
    CqAttr cq = {};
    result = ops_->query_qp_wqs(parts.endpoint, &send, &receive);
    if (result == -FI_ENOSYS) {
        why_not = "this libfabric was built against an rdma-core older than 59, and can hand out none";
        return false;
    }
    check(result, "query_qp_wqs");
    check(ops_->query_cq(parts.cq, &cq), "query_cq");
    queues_.send = {reinterpret_cast<uint64_t *>(send.buffer), send.doorbell, send.num_entries, send.max_batch, 0, 0};
    queues_.completions = {cq.buffer, nullptr, cq.num_entries, cq.entry_size, 0, 0};
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
