// A GPU kernel that posts real 64-byte work queue entries to the emulated EFA device and sees the completions itself:
// no host code between the kernel and the NIC. One process, its own target. Prints the round trip of one entry
// (entry, fence, doorbell, NIC process, copy, completion seen) and the rate of a window of them; checks every byte.
//
//   nvcc -O2 -Inative/softefa -o softefa_gpu bench/softefa_gpu.cu -libverbs -lefa -ldl
//   efaprof softefa -- ./softefa_gpu
//
// The rings are host memory that the kernel maps (cudaHostRegister); on a real device the send queue and the doorbell
// are its own memory. Payload must lie in host memory too: the NIC process reaches nothing on the GPU.
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cuda_runtime.h>

#include <infiniband/efadv.h>
#include <infiniband/verbs.h>

#include "efadv_abi.h"
#include "wire.h"

#define CUDA(call)                                                                                                     \
    do {                                                                                                               \
        cudaError_t e_ = (call);                                                                                       \
        if (e_ != cudaSuccess) {                                                                                       \
            fprintf(stderr, "%s: %s\n", #call, cudaGetErrorString(e_));                                                \
            exit(1);                                                                                                   \
        }                                                                                                              \
    } while (0)
#define NEED(x, what)                                                                                                  \
    do {                                                                                                               \
        if (!(x)) {                                                                                                    \
            perror(what);                                                                                              \
            exit(1);                                                                                                   \
        }                                                                                                              \
    } while (0)

constexpr uint32_t kDepth = 1024, kSlots = 1024, kBytes = 64;

struct Rings {
    uint64_t *sq;
    volatile uint32_t *sq_doorbell;
    const uint8_t *cq;
    uint32_t sq_entries, cq_entries;
    softefa_wqe entry; // what does not change from one to the next
};

__device__ uint64_t now_ns() {
    uint64_t t;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t));
    return t;
}

__device__ bool seen(const Rings &r, uint32_t consumed) {
    const volatile uint8_t *e = r.cq + (consumed % r.cq_entries) * sizeof(softefa_cqe);
    const uint64_t head = *reinterpret_cast<const volatile uint64_t *>(e);
    return ((head >> 24) & SOFTEFA_CQE_PHASE) == (((consumed / r.cq_entries) & 1) ^ 1);
}

// Posts `count` writes of slot i % kSlots, at most `window` in flight, one doorbell each; times in ns to stamps.
__global__ void post(Rings r, uint64_t from, uint64_t to, uint32_t count, uint32_t window, uint32_t *bad,
                     uint64_t *took) {
    uint32_t posted = 0, consumed = 0;
    const uint64_t began = now_ns();
    while (consumed < count) {
        if (posted < count && posted - consumed < window) {
            softefa_wqe w = r.entry;
            const uint64_t offset = (posted % kSlots) * (uint64_t)kBytes;
            w.meta.req_id = (uint16_t)(posted % r.sq_entries);
            w.meta.ctrl2 = (uint8_t)(w.meta.ctrl2 | ((posted / r.sq_entries) & 1));
            w.u.rdma.local.addr_lo = (uint32_t)(from + offset);
            w.u.rdma.local.addr_hi = (uint32_t)((from + offset) >> 32);
            w.u.rdma.remote.addr_lo = (uint32_t)(to + offset);
            w.u.rdma.remote.addr_hi = (uint32_t)((to + offset) >> 32);
            const uint64_t *words = reinterpret_cast<const uint64_t *>(&w);
            volatile uint64_t *slot = r.sq + (posted % r.sq_entries) * 8;
            for (int i = 0; i < 8; ++i)
                slot[i] = words[i];
            __threadfence_system();
            *r.sq_doorbell = ++posted & 0xffff;
            continue;
        }
        if (!seen(r, consumed)) continue;
        const volatile uint8_t *e = r.cq + (consumed % r.cq_entries) * sizeof(softefa_cqe);
        if (e[2] != SOFTEFA_OK) ++*bad;
        ++consumed;
    }
    *took = now_ns() - began;
}

static void *symbol(const char *name) {
    void *found = dlsym(RTLD_DEFAULT, name);
    NEED(found, name);
    return found;
}

int main() {
    int devices = 0;
    ibv_device **list = ibv_get_device_list(&devices);
    NEED(list && devices == 1, "no emulated device: efaprof softefa -- ./softefa_gpu");
    ibv_context *context = ibv_open_device(list[0]);
    ibv_pd *pd = ibv_alloc_pd(context);
    ibv_cq_init_attr_ex cq_attr = {};
    cq_attr.cqe = 4096;
    cq_attr.wc_flags = IBV_WC_STANDARD_FLAGS;
    efadv_cq_init_attr efa_cq = {};
    ibv_cq_ex *cq = efadv_create_cq(context, &cq_attr, &efa_cq, sizeof efa_cq);
    NEED(cq, "efadv_create_cq");
    ibv_qp_init_attr_ex attr = {};
    attr.send_cq = attr.recv_cq = ibv_cq_ex_to_cq(cq);
    attr.cap.max_send_wr = kDepth;
    attr.cap.max_recv_wr = 16;
    attr.cap.max_send_sge = attr.cap.max_recv_sge = 1;
    attr.qp_type = IBV_QPT_DRIVER;
    attr.comp_mask = IBV_QP_INIT_ATTR_PD;
    attr.pd = pd;
    efadv_qp_init_attr efa_qp = {};
    ibv_qp *qp = efadv_create_qp_ex(context, &attr, &efa_qp, sizeof efa_qp);
    NEED(qp, "efadv_create_qp_ex");
    ibv_qp_attr to = {};
    to.qkey = 0x1234;
    for (ibv_qp_state state : {IBV_QPS_INIT, IBV_QPS_RTR, IBV_QPS_RTS}) {
        to.qp_state = state;
        NEED(ibv_modify_qp(qp, &to, state == IBV_QPS_INIT ? IBV_QP_STATE | IBV_QP_QKEY : IBV_QP_STATE) == 0, "state");
    }
    softefa_efadv_wq_attr sq, rq;
    softefa_efadv_cq_attr ring;
    NEED(((int (*)(ibv_qp *, void *, void *, uint32_t))symbol("efadv_query_qp_wqs"))(qp, &sq, &rq, sizeof sq) == 0,
         "wqs");
    NEED(((int (*)(ibv_cq *, void *, uint32_t))symbol("efadv_query_cq"))(ibv_cq_ex_to_cq(cq), &ring, sizeof ring) == 0,
         "cq");

    const size_t half = (size_t)kSlots * kBytes;
    const int fd = memfd_create("payload", MFD_CLOEXEC);
    NEED(fd >= 0 && ftruncate(fd, 2 * half) == 0, "memfd");
    auto *memory = (unsigned char *)mmap(nullptr, 2 * half, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    for (size_t i = 0; i < half; ++i)
        memory[i] = (unsigned char)(i * 31 + (i >> 8));
    ibv_mr *mr = ibv_reg_mr(pd, memory, 2 * half, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
    NEED(mr, "ibv_reg_mr");
    ibv_ah_attr ah_attr = {};
    ah_attr.port_num = 1;
    ah_attr.is_global = 1;
    NEED(ibv_query_gid(context, 1, 0, &ah_attr.grh.dgid) == 0, "gid");
    ibv_ah *ah = ibv_create_ah(pd, &ah_attr);
    efadv_ah_attr handle = {};
    NEED(ah && efadv_query_ah(ah, &handle, sizeof handle) == 0, "ah");

    // Register whole mappings: the doorbells lie a page before the entries.
    const size_t sq_bytes = 4096 + sq.num_entries * sizeof(softefa_wqe),
                 cq_bytes = 4096 + ring.num_entries * sizeof(softefa_cqe);
    void *sq_map = sq.buffer - 4096, *cq_map = ring.buffer - 4096, *sq_gpu, *cq_gpu;
    CUDA(cudaHostRegister(sq_map, sq_bytes, cudaHostRegisterMapped));
    CUDA(cudaHostRegister(cq_map, cq_bytes, cudaHostRegisterMapped));
    CUDA(cudaHostGetDevicePointer(&sq_gpu, sq_map, 0));
    CUDA(cudaHostGetDevicePointer(&cq_gpu, cq_map, 0));
    Rings r = {};
    r.sq = (uint64_t *)((uint8_t *)sq_gpu + 4096);
    r.sq_doorbell = (volatile uint32_t *)((uint8_t *)sq_gpu + ((uint8_t *)sq.doorbell - (uint8_t *)sq_map));
    r.cq = (uint8_t *)cq_gpu + 4096;
    r.sq_entries = sq.num_entries;
    r.cq_entries = ring.num_entries;
    r.entry.meta.ctrl1 = SOFTEFA_CTRL1_META | SOFTEFA_WRITE;
    r.entry.meta.ctrl2 = SOFTEFA_CTRL2_FIRST | SOFTEFA_CTRL2_LAST | SOFTEFA_CTRL2_COMPLETE;
    r.entry.meta.dest_qpn = (uint16_t)qp->qp_num;
    r.entry.meta.length = 1;
    r.entry.meta.ah = handle.ahn;
    r.entry.meta.qkey = 0x1234;
    r.entry.u.rdma.local.length = r.entry.u.rdma.remote.length = kBytes;
    r.entry.u.rdma.local.lkey = mr->lkey;
    r.entry.u.rdma.remote.rkey = mr->rkey;

    uint32_t *bad;
    uint64_t *took;
    CUDA(cudaMallocManaged(&bad, sizeof *bad));
    CUDA(cudaMallocManaged(&took, sizeof *took));
    *bad = 0;
    // One launch a row would start the rings anew: the counters of a kernel start at zero, so each row has its queues.
    const uint32_t count = getenv("COUNT") ? (uint32_t)atoi(getenv("COUNT")) : 100000;
    const uint32_t window = getenv("WINDOW") ? (uint32_t)atoi(getenv("WINDOW")) : 1;
    post<<<1, 1>>>(r, (uint64_t)memory, (uint64_t)(memory + half), count, window, bad, took);
    CUDA(cudaGetLastError());
    CUDA(cudaDeviceSynchronize());
    size_t wrong = 0;
    for (size_t i = 0; i < half; ++i)
        wrong += memory[i] != memory[half + i];
    printf("window %u: %u entries, %.2f us each, %u error completions, %zu wrong bytes\n", window, count,
           (double)*took / 1e3 / count, *bad, wrong);
    return *bad || wrong;
}
