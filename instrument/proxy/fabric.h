// One libfabric endpoint of one rank: reliable datagrams, remote writes, one completion queue.
#pragma once

#include <rdma/fabric.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_rma.h>

#include <stddef.h>
#include <stdint.h>
#include <string.h>

namespace efaprof::dispatch {

constexpr size_t MAX_ADDRESS = 128;

// Opens what whoever drives the queues beside libfabric needs otherwise, before the endpoint is enabled. Null: as
// usual. What comes back is the endpoint's.
class FabricHooks {
public:
    virtual fid_cq *open_cq(fid_domain *domain, const fi_cq_attr &attr) = 0;
    virtual fid_cntr *open_counter(fid_domain *domain) = 0; // of its writes

protected:
    ~FabricHooks() = default;
};

struct FabricOptions {
    const char *provider;   // as the user says it; "efa-direct" is a fabric of provider "efa"
    bool needs_delivery;    // a completion must mean that the data lies at the peer (or writes must be ordered)
    bool is_shared;         // several threads use the endpoint at once
    uint64_t message_bytes; // largest write that will be asked for
    size_t queue_entries;   // completions and arrivals that can be outstanding
    FabricHooks *hooks;     // or null
    uint64_t most_counted;  // largest value of a counter; 0: as it is
};

// What another rank needs to write here.
struct Contact {
    uint32_t address_bytes;
    uint8_t address[MAX_ADDRESS];
    uint64_t key;
    uint64_t base; // remote address of offset 0
};

// Provider shm names its shared memory after the address, and only an endpoint that is closed removes it: this does so
// for one whose process was killed.
void remove_region(Contact contact);

struct Write {
    const void *source;
    uint32_t bytes;
    uint32_t peer;
    uint64_t offset; // bytes from the start of the peer's memory
    bool has_imm;
    uint32_t imm;
    void *context; // of type fi_context2, stays valid until its completion
    bool has_more; // another follows at once: the doorbell may wait for it
};

// For whoever drives the endpoint's queues beside libfabric.
struct FabricParts {
    fid_domain *domain;
    fid_ep *endpoint;
    fid_cq *cq;
    fid_mr *memory;
    void *memory_start;
    const fi_addr_t *addresses; // [rank], after connect
    const char *domain_name;
    uint64_t mode; // of the endpoint's fi_info
};

struct EntryError {
    void *context;
    int error; // positive errno
    char text[160];
};

class Fabric {
public:
    // The provider is there with what dispatch needs.
    static bool is_offered(const FabricOptions &options);
    // Fails the rank with one line when the provider is absent or lacks something.
    void open(const FabricOptions &options);
    void register_memory(void *memory, size_t bytes);
    Contact contact() const;
    void connect(const Contact *contacts, uint32_t ranks);
    // 0, or -FI_EAGAIN: call again after progress. Any other error fails the rank.
    int post(const Write &write);
    // Number of entries, 0 when there is none. An error entry ends with PollError.
    size_t poll(fi_cq_data_entry *entries, size_t count);
    static constexpr size_t PollError = SIZE_MAX;
    // After PollError: what failed and why.
    EntryError entry_error();
    // Of whatever was opened.
    void close();

    bool has_imm() const { return info_->domain_attr->cq_data_size >= sizeof(uint32_t); }
    FabricParts parts() const {
        return {domain_, endpoint_, cq_, memory_, memory_start_, addresses_, info_->domain_attr->name, info_->mode};
    }
    // EFA's provider has two fabrics, of which one posts to the device itself.
    const char *provider_name() const {
        const char *fabric = info_->fabric_attr->name;
        return fabric != nullptr && strcmp(fabric, "efa-direct") == 0 ? fabric : info_->fabric_attr->prov_name;
    }

private:
    void choose(const FabricOptions &options);
    fid_mr *reg(void *memory, size_t bytes, uint64_t access, uint64_t key);
    ssize_t post_deferred(const Write &write);
    void post_receive(void *context);
    void post_receives();

    fi_info *info_ = nullptr;
    fid_fabric *fabric_ = nullptr;
    fid_domain *domain_ = nullptr;
    fid_av *av_ = nullptr;
    fid_cq *cq_ = nullptr;
    fid_cntr *counter_ = nullptr;
    fid_ep *endpoint_ = nullptr;
    fid_mr *memory_ = nullptr;
    void *memory_start_ = nullptr;
    void *descriptor_ = nullptr;
    fi_addr_t *addresses_ = nullptr;
    uint64_t *keys_ = nullptr;
    uint64_t *bases_ = nullptr;
    fi_context2 *receives_ = nullptr; // where arrivals consume a posted receive
    size_t receive_count_ = 0;
    static constexpr size_t LANDING_BYTES = 64;
    alignas(64) uint8_t landing_[LANDING_BYTES] = {};
    fid_mr *landing_memory_ = nullptr;
};

} // namespace efaprof::dispatch
