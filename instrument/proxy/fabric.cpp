#include "fabric.h"

#include <rdma/fi_cm.h>
#include <rdma/fi_errno.h>

#include <dlfcn.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "stop.h"

namespace efaprof::dispatch {

namespace {

constexpr const char *EFA_DIRECT = "efa-direct";
constexpr size_t MAX_RECEIVES = 2048;
constexpr int MR_MODES = FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY | FI_MR_ENDPOINT;

// The newest API whose semantics this file was written for, or the library's own when that is older.
uint32_t api_version() {
    uint32_t newest = FI_VERSION(1, 18), library = fi_version();
    return FI_VERSION_LT(library, newest) ? library : newest;
}

void check(int result, const char *call) {
    if (result != 0) fail(Cause::Failed, "%s: %s", call, fi_strerror(-result));
}

fi_info *hints_for(const FabricOptions &options, uint64_t extra_mode, uint64_t op_flags) {
    fi_info *hints = fi_allocinfo();
    if (hints == nullptr) fail(Cause::Failed, "fi_allocinfo: out of memory");
    hints->caps = FI_MSG | FI_RMA;
    hints->mode = FI_CONTEXT | FI_CONTEXT2 | extra_mode;
    hints->ep_attr->type = FI_EP_RDM;
    hints->tx_attr->op_flags = op_flags;
    hints->domain_attr->mr_mode = MR_MODES;
    hints->domain_attr->threading = options.is_shared ? FI_THREAD_SAFE : FI_THREAD_DOMAIN;
    bool is_direct = strcmp(options.provider, EFA_DIRECT) == 0;
    hints->fabric_attr->prov_name = strdup(is_direct ? "efa" : options.provider);
    return hints;
}

bool is_direct_fabric(const fi_info *info) {
    return info->fabric_attr->name != nullptr && strcmp(info->fabric_attr->name, EFA_DIRECT) == 0;
}

// A copy of all of it: the function that a program was linked to with older headers leaves out what they do not have.
fi_info *duplicate(const fi_info *info) {
    fi_info *(*newest)(const fi_info *) = nullptr;
    *reinterpret_cast<void **>(&newest) = dlsym(RTLD_DEFAULT, "fi_dupinfo");
    return newest != nullptr ? newest(info) : fi_dupinfo(info);
}

// The largest value of a counter that will do, and of its errors. Of a libfabric of 2.6 or later alone.
void set_most_counted(fi_info &info, uint64_t value) {
    constexpr size_t COUNTED_AT = 208; // in fi_domain_attr, then of errors; older headers end before
    static_assert(offsetof(fi_domain_attr, tclass) == COUNTED_AT - 24, "as it has grown since");
    if (FI_VERSION_LT(fi_version(), FI_VERSION(2, 6))) return;
    const uint64_t values[] = {value, value};
    memcpy(reinterpret_cast<uint8_t *>(info.domain_attr) + COUNTED_AT, values, sizeof values);
}

// Of what fi_getinfo offers, a copy of the entry that the user means; null when there is none.
fi_info *pick(const fi_info *list, const char *provider) {
    bool wants_direct = strcmp(provider, EFA_DIRECT) == 0;
    const char *name = wants_direct ? "efa" : provider;
    const fi_info *best = nullptr;
    for (const fi_info *info = list; info != nullptr; info = info->next) {
        if (is_direct_fabric(info) != wants_direct) continue;
        bool is_exact = strcmp(info->fabric_attr->prov_name, name) == 0;
        if (is_exact || best == nullptr) best = info;
        if (is_exact) break;
    }
    return best == nullptr ? nullptr : duplicate(best);
}

fi_info *query(const FabricOptions &options, uint64_t extra_mode, uint64_t op_flags, const char *node) {
    fi_info *hints = hints_for(options, extra_mode, op_flags), *list = nullptr;
    int result = fi_getinfo(api_version(), node, nullptr, node == nullptr ? 0 : FI_SOURCE, hints, &list);
    fi_info *found = result == 0 ? pick(list, options.provider) : nullptr;
    fi_freeinfo(list);
    fi_freeinfo(hints);
    return found;
}

// Names of the providers in `list`, each once.
void join_names(const fi_info *list, char *text, size_t bytes) {
    size_t used = 0;
    text[0] = 0;
    for (const fi_info *info = list; info != nullptr; info = info->next) {
        const char *name = info->fabric_attr->prov_name;
        bool is_seen = false;
        for (const fi_info *other = list; other != info; other = other->next)
            is_seen = is_seen || strcmp(other->fabric_attr->prov_name, name) == 0;
        if (is_seen) continue;
        int length = snprintf(text + used, bytes - used, "%s%s", used == 0 ? "" : ", ", name);
        if (length < 0 || static_cast<size_t>(length) >= bytes - used) return;
        used += static_cast<size_t>(length);
    }
}

// Says why the provider cannot be used: absent, or lacking what dispatch needs.
[[noreturn]] void refuse(const FabricOptions &options) {
    uint32_t version = fi_version();
    fi_info *hints = fi_allocinfo(), *list = nullptr;
    bool is_direct = strcmp(options.provider, EFA_DIRECT) == 0;
    hints->fabric_attr->prov_name = strdup(is_direct ? "efa" : options.provider);
    hints->mode = ~0ull;
    hints->domain_attr->mr_mode = MR_MODES;
    if (fi_getinfo(api_version(), nullptr, nullptr, 0, hints, &list) == 0 && (!is_direct || pick(list, EFA_DIRECT)))
        fail(Cause::Refused, "provider %s cannot do remote writes (FI_RMA) on reliable datagram endpoints here",
             options.provider);
    char names[240];
    fi_freeinfo(list);
    list = nullptr;
    if (fi_getinfo(api_version(), nullptr, nullptr, 0, nullptr, &list) != 0) list = nullptr;
    join_names(list, names, sizeof names);
    fail(Cause::Refused, "libfabric %u.%u offers no provider %s here; it has: %s", FI_MAJOR(version), FI_MINOR(version),
         options.provider, names[0] == 0 ? "none" : names);
}

} // namespace

bool Fabric::is_offered(const FabricOptions &options) {
    fi_info *info = query(options, 0, 0, nullptr);
    if (info == nullptr) return false;
    fi_freeinfo(info);
    return true;
}

void remove_region(Contact contact) {
    constexpr char PREFIX[] = "fi_shm://";
    auto *address = reinterpret_cast<char *>(contact.address);
    address[sizeof contact.address - 1] = 0;
    if (strncmp(address, PREFIX, sizeof PREFIX - 1) == 0) shm_unlink(address + sizeof PREFIX - 1);
}

void Fabric::choose(const FabricOptions &options) {
    // Not asked for at first: with it, EFA would make every arrival consume a posted receive.
    const uint64_t modes[] = {0, FI_RX_CQ_DATA};
    uint64_t op_flags = options.needs_delivery ? FI_DELIVERY_COMPLETE : 0, mode = 0;
    for (uint64_t try_mode : modes) {
        if (info_ == nullptr) info_ = query(options, mode = try_mode, op_flags, nullptr);
    }
    for (uint64_t try_mode : modes) {
        if (info_ == nullptr && op_flags != 0) info_ = query(options, mode = try_mode, 0, nullptr);
    }
    if (info_ == nullptr) refuse(options);
    bool is_socket = info_->addr_format == FI_SOCKADDR || info_->addr_format == FI_SOCKADDR_IN;
    if (is_socket) { // all ranks are on this host: do not depend on how its network is set up
        fi_info *loopback = query(options, mode, info_->tx_attr->op_flags & FI_DELIVERY_COMPLETE, "127.0.0.1");
        if (loopback != nullptr) {
            fi_freeinfo(info_);
            info_ = loopback;
        }
    }
    bool is_ordered = (info_->tx_attr->msg_order & (FI_ORDER_WAW | FI_ORDER_RMA_WAW)) != 0;
    if (options.needs_delivery && (info_->tx_attr->op_flags & FI_DELIVERY_COMPLETE) == 0 && !is_ordered)
        fail(Cause::Refused, "provider %s neither orders writes nor completes them on delivery: no fence holds",
             provider_name());
    if (options.message_bytes > info_->ep_attr->max_msg_size)
        fail(Cause::Refused, "a token of %llu bytes is over the limit of provider %s, %zu bytes: lower --hidden",
             static_cast<unsigned long long>(options.message_bytes), provider_name(), info_->ep_attr->max_msg_size);
}

void Fabric::open(const FabricOptions &options) {
    // All ranks are on this host, where the provider would take shared memory instead of the device.
    if (strncmp(options.provider, "efa", 3) == 0) setenv("FI_EFA_ENABLE_SHM_TRANSFER", "0", 0);
    choose(options);
    // A device's counter has fewer bits than one that libfabric keeps itself.
    if (options.most_counted != 0) set_most_counted(*info_, options.most_counted);
    check(fi_fabric(info_->fabric_attr, &fabric_, nullptr), "fi_fabric");
    check(fi_domain(fabric_, info_, &domain_, nullptr), "fi_domain");
    fi_av_attr av_attr = {};
    av_attr.type = info_->domain_attr->av_type == FI_AV_UNSPEC ? FI_AV_TABLE : info_->domain_attr->av_type;
    check(fi_av_open(domain_, &av_attr, &av_, nullptr), "fi_av_open");
    fi_cq_attr cq_attr = {};
    cq_attr.format = FI_CQ_FORMAT_DATA;
    cq_attr.size = options.queue_entries;
    if (options.hooks != nullptr) cq_ = options.hooks->open_cq(domain_, cq_attr);
    if (cq_ == nullptr) check(fi_cq_open(domain_, &cq_attr, &cq_, nullptr), "fi_cq_open");
    if (options.hooks != nullptr) counter_ = options.hooks->open_counter(domain_);
    check(fi_endpoint(domain_, info_, &endpoint_, nullptr), "fi_endpoint");
    check(fi_ep_bind(endpoint_, &av_->fid, 0), "fi_ep_bind(av)");
    check(fi_ep_bind(endpoint_, &cq_->fid, FI_TRANSMIT | FI_RECV), "fi_ep_bind(cq)");
    if (counter_ != nullptr) check(fi_ep_bind(endpoint_, &counter_->fid, FI_WRITE), "fi_ep_bind(counter)");
    check(fi_enable(endpoint_), "fi_enable");
    post_receives();
}

fid_mr *Fabric::reg(void *memory, size_t bytes, uint64_t access, uint64_t key) {
    fid_mr *registered = nullptr;
    check(fi_mr_reg(domain_, memory, bytes, access, 0, key, 0, &registered, nullptr), "fi_mr_reg");
    if ((info_->domain_attr->mr_mode & FI_MR_ENDPOINT) != 0) {
        check(fi_mr_bind(registered, &endpoint_->fid, 0), "fi_mr_bind");
        check(fi_mr_enable(registered), "fi_mr_enable");
    }
    return registered;
}

void Fabric::register_memory(void *memory, size_t bytes) {
    memory_ = reg(memory, bytes, FI_WRITE | FI_REMOTE_WRITE, 1);
    memory_start_ = memory;
    descriptor_ = fi_mr_desc(memory_);
}

void Fabric::post_receive(void *context) {
    ssize_t result = fi_recv(endpoint_, landing_, LANDING_BYTES, fi_mr_desc(landing_memory_), FI_ADDR_UNSPEC, context);
    if (result != 0) fail(Cause::Failed, "fi_recv: %s", fi_strerror(static_cast<int>(-result)));
}

// Where an arrival consumes a receive, some must lie ready. Nothing is ever written to their buffer.
void Fabric::post_receives() {
    if ((info_->mode & FI_RX_CQ_DATA) == 0) return;
    receive_count_ = info_->rx_attr->size < MAX_RECEIVES ? info_->rx_attr->size : MAX_RECEIVES;
    receives_ = static_cast<fi_context2 *>(calloc(receive_count_, sizeof *receives_));
    if (receives_ == nullptr) fail(Cause::Failed, "out of memory");
    landing_memory_ = reg(landing_, LANDING_BYTES, FI_RECV, 2);
    for (size_t i = 0; i < receive_count_; i++)
        post_receive(&receives_[i]);
}

Contact Fabric::contact() const {
    Contact contact = {};
    size_t bytes = sizeof contact.address;
    int result = fi_getname(&endpoint_->fid, contact.address, &bytes);
    if (result != 0) fail(Cause::Failed, "fi_getname: %s", fi_strerror(-result));
    contact.address_bytes = static_cast<uint32_t>(bytes);
    contact.key = fi_mr_key(memory_);
    bool is_virtual = (info_->domain_attr->mr_mode & FI_MR_VIRT_ADDR) != 0;
    contact.base = is_virtual ? reinterpret_cast<uint64_t>(memory_start_) : 0;
    return contact;
}

void Fabric::connect(const Contact *contacts, uint32_t ranks) {
    addresses_ = static_cast<fi_addr_t *>(calloc(ranks, sizeof *addresses_));
    keys_ = static_cast<uint64_t *>(calloc(ranks, sizeof *keys_));
    bases_ = static_cast<uint64_t *>(calloc(ranks, sizeof *bases_));
    if (addresses_ == nullptr || keys_ == nullptr || bases_ == nullptr) fail(Cause::Failed, "out of memory");
    for (uint32_t rank = 0; rank < ranks; rank++) {
        if (fi_av_insert(av_, contacts[rank].address, 1, &addresses_[rank], 0, nullptr) != 1)
            fail(Cause::Failed, "fi_av_insert: the address of rank %u was refused", rank);
        keys_[rank] = contacts[rank].key;
        bases_[rank] = contacts[rank].base;
    }
}

// One write whose doorbell may wait for the next one's.
ssize_t Fabric::post_deferred(const Write &write) {
    iovec local = {const_cast<void *>(write.source), write.bytes};
    fi_rma_iov remote = {bases_[write.peer] + write.offset, write.bytes, keys_[write.peer]};
    fi_msg_rma message = {&local, &descriptor_, 1, addresses_[write.peer], &remote, 1, write.context, write.imm};
    uint64_t flags = info_->tx_attr->op_flags & FI_DELIVERY_COMPLETE;
    return fi_writemsg(endpoint_, &message, flags | FI_MORE | (write.has_imm ? FI_REMOTE_CQ_DATA : 0));
}

int Fabric::post(const Write &write) {
    fi_addr_t address = addresses_[write.peer];
    uint64_t remote = bases_[write.peer] + write.offset, key = keys_[write.peer];
    ssize_t result = write.has_more  ? post_deferred(write)
                     : write.has_imm ? fi_writedata(endpoint_, write.source, write.bytes, descriptor_, write.imm,
                                                    address, remote, key, write.context)
                                     : fi_write(endpoint_, write.source, write.bytes, descriptor_, address, remote, key,
                                                write.context);
    if (result == 0 || result == -FI_EAGAIN) return static_cast<int>(result);
    fail(Cause::Failed, "a write of %u bytes to rank %u was refused: %s", write.bytes, write.peer,
         fi_strerror(static_cast<int>(-result)));
}

size_t Fabric::poll(fi_cq_data_entry *entries, size_t count) {
    ssize_t found = fi_cq_read(cq_, entries, count);
    if (found == -FI_EAGAIN) return 0;
    if (found == -FI_EAVAIL) return PollError;
    if (found < 0) fail(Cause::Failed, "fi_cq_read: %s", fi_strerror(static_cast<int>(-found)));
    for (ssize_t i = 0; receives_ != nullptr && i < found; i++) {
        if ((entries[i].flags & FI_REMOTE_CQ_DATA) != 0 && entries[i].op_context != nullptr)
            post_receive(entries[i].op_context);
    }
    return static_cast<size_t>(found);
}

EntryError Fabric::entry_error() {
    EntryError error = {};
    fi_cq_err_entry entry = {};
    if (fi_cq_readerr(cq_, &entry, 0) < 0) {
        snprintf(error.text, sizeof error.text, "the queue's error entry could not be read");
        return error;
    }
    const char *detail = fi_cq_strerror(cq_, entry.prov_errno, entry.err_data, nullptr, 0);
    error.context = entry.op_context;
    error.error = entry.err;
    snprintf(error.text, sizeof error.text, "%s (%s)", fi_strerror(entry.err), detail == nullptr ? "" : detail);
    return error;
}

void Fabric::close() {
    // A provider that cannot close something in order has no bearing on a run that is over.
    if (endpoint_ != nullptr) fi_close(&endpoint_->fid);
    if (memory_ != nullptr) fi_close(&memory_->fid);
    if (landing_memory_ != nullptr) fi_close(&landing_memory_->fid);
    if (cq_ != nullptr) fi_close(&cq_->fid);
    if (counter_ != nullptr) fi_close(&counter_->fid);
    if (av_ != nullptr) fi_close(&av_->fid);
    if (domain_ != nullptr) fi_close(&domain_->fid);
    if (fabric_ != nullptr) fi_close(&fabric_->fid);
    if (info_ != nullptr) fi_freeinfo(info_);
    free(receives_);
    free(addresses_);
    free(keys_);
    free(bases_);
    *this = Fabric();
}

} // namespace efaprof::dispatch
