// Queues by EFA's own verbs, found at run time: efaprof-dispatch links to neither libibverbs nor libefa, and what it
// asks of libefa is newer than most headers that are installed.
#include "queue_pair.h"

#include "../proxy/make.h"

#if __has_include(<infiniband/verbs.h>)

#include <infiniband/verbs.h>
#include <softefa/efadv_abi.h>

#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

#undef ibv_get_device_list
#undef ibv_reg_mr

namespace efaprof::dispatch {

namespace {

constexpr uint32_t QKEY = 0x65666170;
constexpr uint16_t UNSOLICITED = 1;

// A contact's address.
struct VerbsAddress {
    ibv_gid gid;
    uint32_t qpn;
    uint32_t qkey;
};
static_assert(sizeof(VerbsAddress) <= MAX_ADDRESS, "fits a contact");

struct Library {
    ibv_device **(*get_device_list)(int *count);
    void (*free_device_list)(ibv_device **list);
    const char *(*get_device_name)(ibv_device *device);
    ibv_context *(*open_device)(ibv_device *device);
    int (*close_device)(ibv_context *context);
    ibv_pd *(*alloc_pd)(ibv_context *context);
    int (*dealloc_pd)(ibv_pd *pd);
    ibv_mr *(*reg_mr)(ibv_pd *pd, void *memory, size_t bytes, int access);
    int (*dereg_mr)(ibv_mr *mr);
    int (*query_gid)(ibv_context *context, uint8_t port, int index, ibv_gid *gid);
    ibv_ah *(*create_ah)(ibv_pd *pd, ibv_ah_attr *attr);
    int (*destroy_ah)(ibv_ah *ah);
    int (*modify_qp)(ibv_qp *qp, ibv_qp_attr *attr, int mask);
    int (*destroy_qp)(ibv_qp *qp);
    int (*destroy_cq)(ibv_cq *cq);
    int (*query_device)(ibv_context *context, softefa_efadv_device_attr *attr, uint32_t length);
    int (*query_ah)(ibv_ah *ah, softefa_efadv_ah_attr *attr, uint32_t length);
    ibv_cq_ex *(*create_cq)(ibv_context *, ibv_cq_init_attr_ex *, softefa_efadv_cq_init_attr *, uint32_t length);
    ibv_qp *(*create_qp)(ibv_context *, ibv_qp_init_attr_ex *, softefa_efadv_qp_init_attr *, uint32_t length);
    int (*query_qp_wqs)(ibv_qp *, softefa_efadv_wq_attr *send, softefa_efadv_wq_attr *receive, uint32_t length);
    int (*query_cq)(ibv_cq *, softefa_efadv_cq_attr *, uint32_t length);
    // Since rdma-core 65; null before.
    softefa_comp_cntr *(*create_counter)(ibv_context *, softefa_comp_cntr_init_attr *,
                                         softefa_efadv_comp_cntr_init_attr *, uint32_t length);
    int (*attach_counter)(ibv_qp *, softefa_comp_cntr *, softefa_comp_cntr_attach_attr *);
    int (*destroy_counter)(softefa_comp_cntr *);
};

template <typename Function> void find(void *library, const char *name, Function *&function, bool is_needed = true) {
    *reinterpret_cast<void **>(&function) = dlsym(library, name);
    if (function == nullptr && is_needed)
        fail(Cause::Refused,
             "the installed rdma-core hands out no queues: it lacks %s (of version 59); run on an emulated device with "
             "--emulate",
             name);
}

void load(Library &found) {
    void *verbs = dlopen("libibverbs.so.1", RTLD_NOW | RTLD_GLOBAL), *efa = dlopen("libefa.so.1", RTLD_NOW);
    if (verbs == nullptr || efa == nullptr)
        fail(Cause::Refused, "no EFA device here: %s; run on an emulated one with --emulate", dlerror());
    find(verbs, "ibv_get_device_list", found.get_device_list);
    find(verbs, "ibv_free_device_list", found.free_device_list);
    find(verbs, "ibv_get_device_name", found.get_device_name);
    find(verbs, "ibv_open_device", found.open_device);
    find(verbs, "ibv_close_device", found.close_device);
    find(verbs, "ibv_alloc_pd", found.alloc_pd);
    find(verbs, "ibv_dealloc_pd", found.dealloc_pd);
    find(verbs, "ibv_reg_mr", found.reg_mr);
    find(verbs, "ibv_dereg_mr", found.dereg_mr);
    find(verbs, "ibv_query_gid", found.query_gid);
    find(verbs, "ibv_create_ah", found.create_ah);
    find(verbs, "ibv_destroy_ah", found.destroy_ah);
    find(verbs, "ibv_modify_qp", found.modify_qp);
    find(verbs, "ibv_destroy_qp", found.destroy_qp);
    find(verbs, "ibv_destroy_cq", found.destroy_cq);
    find(efa, "efadv_query_device", found.query_device);
    find(efa, "efadv_query_ah", found.query_ah);
    find(efa, "efadv_create_cq", found.create_cq);
    find(efa, "efadv_create_qp_ex", found.create_qp);
    find(efa, "efadv_query_qp_wqs", found.query_qp_wqs);
    find(efa, "efadv_query_cq", found.query_cq);
    find(efa, "efadv_create_comp_cntr", found.create_counter, false);
    find(verbs, "ibv_qp_attach_comp_cntr", found.attach_counter, false);
    find(verbs, "ibv_destroy_comp_cntr", found.destroy_counter, false);
}

[[noreturn]] void refused(const char *call, int error) {
    fail(Cause::Failed, "%s: %s", call, strerror(error));
}

} // namespace

struct GdaQueuePair::Verbs {
    Library library;
    ibv_context *context;
    ibv_pd *pd;
    ibv_cq_ex *cq;
    ibv_qp *qp;
    ibv_mr *mr;
    softefa_comp_cntr *counter;
    SharedPages count_memory; // where the counter's two words lie
    ibv_gid gid;
    ibv_ah **handles; // [rank]
    uint32_t ranks;
    softefa_efadv_device_attr device;

    void open_device();
    void open_cq(uint32_t entries);
    void open_qp(uint32_t entries);
    void start_qp();
};

void GdaQueuePair::Verbs::open_device() {
    int count = 0;
    ibv_device **list = library.get_device_list(&count);
    if (list == nullptr || count == 0)
        fail(Cause::Refused, "no EFA device here; run on an emulated one with --emulate");
    context = library.open_device(list[0]);
    library.free_device_list(list);
    if (context == nullptr) refused("ibv_open_device", errno);
    int error = library.query_device(context, &device, sizeof device);
    if (error != 0) fail(Cause::Refused, "the first RDMA device here is no EFA device (%s)", strerror(error));
    if ((device.device_caps & SOFTEFA_CAP_RDMA_WRITE) == 0) fail(Cause::Refused, "this EFA device has no RDMA write");
    pd = library.alloc_pd(context);
    if (pd == nullptr) refused("ibv_alloc_pd", errno);
    if (library.query_gid(context, 1, 0, &gid) != 0) refused("ibv_query_gid", errno);
}

void GdaQueuePair::Verbs::open_cq(uint32_t entries) {
    ibv_cq_init_attr_ex attr = {};
    attr.cqe = entries;
    attr.wc_flags = IBV_WC_STANDARD_FLAGS;
    softefa_efadv_cq_init_attr efa = {};
    cq = library.create_cq(context, &attr, &efa, sizeof efa);
    if (cq == nullptr) refused("efadv_create_cq", errno);
}

void GdaQueuePair::Verbs::open_qp(uint32_t entries) {
    ibv_qp_init_attr_ex attr = {};
    attr.send_cq = attr.recv_cq = ibv_cq_ex_to_cq(cq);
    attr.cap = {entries, 1, 1, 1, 0};
    attr.qp_type = IBV_QPT_DRIVER;
    attr.comp_mask = IBV_QP_INIT_ATTR_PD;
    attr.pd = pd;
    softefa_efadv_qp_init_attr efa = {};
    efa.flags = (device.device_caps & SOFTEFA_CAP_UNSOLICITED_WRITE_RECV) != 0 ? UNSOLICITED : 0;
    qp = library.create_qp(context, &attr, &efa, sizeof efa);
    if (qp == nullptr) refused("efadv_create_qp_ex", errno);
    ibv_qp_attr to = {};
    to.qp_state = IBV_QPS_INIT;
    to.qkey = QKEY;
    to.port_num = 1;
    int error = library.modify_qp(qp, &to, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY);
    if (error != 0) refused("ibv_modify_qp to INIT", error);
}

void GdaQueuePair::Verbs::start_qp() {
    ibv_qp_attr to = {};
    to.qp_state = IBV_QPS_RTR;
    int error = library.modify_qp(qp, &to, IBV_QP_STATE);
    if (error != 0) refused("ibv_modify_qp to RTR", error);
    to.qp_state = IBV_QPS_RTS;
    to.rnr_retry = 7; // for ever
    error = library.modify_qp(qp, &to, IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_RNR_RETRY);
    if (error != 0) refused("ibv_modify_qp to RTS", error);
}

void GdaQueuePair::open_verbs(void *memory, size_t bytes) {
    verbs_ = make<Verbs>(1);
    load(verbs_->library);
    verbs_->open_device();
    verbs_->open_cq(options_.completion_entries);
    verbs_->open_qp(options_.send_entries);
    if (options_.counts) open_counter();
    verbs_->start_qp();
    verbs_->mr = verbs_->library.reg_mr(verbs_->pd, memory, bytes, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
    if (verbs_->mr == nullptr) refused("ibv_reg_mr", errno);
    softefa_efadv_wq_attr send = {}, receive = {};
    softefa_efadv_cq_attr cq = {};
    int error = verbs_->library.query_qp_wqs(verbs_->qp, &send, &receive, sizeof send);
    if (error != 0) refused("efadv_query_qp_wqs", error);
    error = verbs_->library.query_cq(ibv_cq_ex_to_cq(verbs_->cq), &cq, sizeof cq);
    if (error != 0) refused("efadv_query_cq", error);
    queues_.send = {reinterpret_cast<uint64_t *>(send.buffer), send.doorbell, send.num_entries, send.max_batch, 0, 0};
    queues_.completions = {cq.buffer, cq.doorbell, cq.num_entries, cq.entry_size, 0, 0};
    queues_.base = reinterpret_cast<uint64_t>(memory);
    snprintf(device_, sizeof device_, "%s", verbs_->library.get_device_name(verbs_->context->device));
    queues_.lkey = verbs_->mr->lkey;
    queues_.qpn = static_cast<uint16_t>(verbs_->qp->qp_num);
    queues_.is_unsolicited = (verbs_->device.device_caps & SOFTEFA_CAP_UNSOLICITED_WRITE_RECV) != 0;
    if (send.entry_size != sizeof(softefa_wqe))
        fail(Cause::Refused, "the device's send queue has entries of %u bytes, this poster writes %zu", send.entry_size,
             sizeof(softefa_wqe));
}

// Its words lie in memory of ours that others can map: a kernel on a GPU reads them there.
void GdaQueuePair::open_counter() {
    const Library &library = verbs_->library;
    if (library.create_counter == nullptr || library.attach_counter == nullptr || library.destroy_counter == nullptr)
        fail(Cause::Refused, "the installed rdma-core has no completion counters (they came with 65)");
    verbs_->count_memory = map_pages(16 * sizeof(uint64_t), "efaprof-counts");
    auto *counts = reinterpret_cast<uint64_t *>(verbs_->count_memory.at);
    softefa_comp_cntr_init_attr attr = {};
    softefa_efadv_comp_cntr_init_attr efa = {};
    efa.flags = 3; // the count and the errors
    efa.done.ptr = verbs_->count_memory.at;
    efa.failed.ptr = reinterpret_cast<uint8_t *>(counts + 8);
    verbs_->counter = library.create_counter(verbs_->context, &attr, &efa, sizeof efa);
    int error = errno;
    close_files(verbs_->count_memory); // by them the emulated device found the page
    if (verbs_->counter == nullptr)
        fail(Cause::Refused, "this device has no completion counters (%s); the emulated one has with counters=on",
             strerror(error));
    softefa_comp_cntr_attach_attr what = {0, 1u << 4}; // own RDMA writes
    error = library.attach_counter(verbs_->qp, verbs_->counter, &what);
    if (error != 0) refused("ibv_qp_attach_comp_cntr", error);
    queues_.counter = {counts, counts + 8, 0, 0, 0};
}

Contact GdaQueuePair::contact_verbs() const {
    Contact contact = {};
    VerbsAddress address = {verbs_->gid, verbs_->qp->qp_num, QKEY};
    memcpy(contact.address, &address, sizeof address);
    contact.address_bytes = sizeof address;
    contact.key = verbs_->mr->rkey;
    contact.base = queues_.base;
    return contact;
}

void GdaQueuePair::connect_verbs(const Contact *contacts, uint32_t ranks) {
    verbs_->ranks = ranks;
    verbs_->handles = make<ibv_ah *>(ranks);
    for (uint32_t rank = 0; rank < ranks; rank++) {
        VerbsAddress address;
        memcpy(&address, contacts[rank].address, sizeof address);
        ibv_ah_attr to = {};
        to.port_num = 1;
        to.is_global = 1;
        to.grh.dgid = address.gid;
        ibv_ah *handle = verbs_->library.create_ah(verbs_->pd, &to);
        softefa_efadv_ah_attr attr = {};
        if (handle == nullptr) refused("ibv_create_ah", errno);
        int error = verbs_->library.query_ah(handle, &attr, sizeof attr);
        if (error != 0) refused("efadv_query_ah", error);
        verbs_->handles[rank] = handle;
        targets_[rank].ah = attr.ahn;
        targets_[rank].qpn = static_cast<uint16_t>(address.qpn);
        targets_[rank].qkey = address.qkey;
    }
}

// What cannot be given back has no bearing on a run that is over.
void GdaQueuePair::close_verbs() {
    const Library &library = verbs_->library;
    if (verbs_->qp != nullptr) library.destroy_qp(verbs_->qp);
    if (verbs_->counter != nullptr) library.destroy_counter(verbs_->counter);
    if (verbs_->cq != nullptr) library.destroy_cq(ibv_cq_ex_to_cq(verbs_->cq));
    for (uint32_t rank = 0; verbs_->handles != nullptr && rank < verbs_->ranks; rank++)
        if (verbs_->handles[rank] != nullptr) library.destroy_ah(verbs_->handles[rank]);
    if (verbs_->mr != nullptr) library.dereg_mr(verbs_->mr);
    if (verbs_->pd != nullptr) library.dealloc_pd(verbs_->pd);
    if (verbs_->context != nullptr) library.close_device(verbs_->context);
    unmap_pages(verbs_->count_memory);
    free(verbs_->handles);
    free(verbs_);
    verbs_ = nullptr;
}

} // namespace efaprof::dispatch

#else

namespace efaprof::dispatch {

void GdaQueuePair::open_verbs(void *, size_t) {
    fail(Cause::Refused, "efaprof-dispatch was built without infiniband/verbs.h: install libibverbs-dev, build again");
}
Contact GdaQueuePair::contact_verbs() const {
    return {};
}
void GdaQueuePair::connect_verbs(const Contact *, uint32_t) {}
void GdaQueuePair::close_verbs() {}

} // namespace efaprof::dispatch

#endif
