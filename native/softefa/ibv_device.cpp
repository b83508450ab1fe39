// libibverbs: devices, contexts, what can be asked of them.
#include "ibv_client.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#undef ibv_get_device_list
#undef ibv_query_port

namespace softefa {
namespace {

// The line rate as a verbs speed and width: the nearest that does not promise more.
void set_speed(ibv_port_attr &attr, uint64_t bits_s) {
    struct Speed {
        uint8_t code;
        uint32_t gbit_lane;
    };
    constexpr Speed kLanes[] = {{128, 100}, {64, 50}, {32, 25}, {4, 10}, {1, 2}};
    for (const Speed &speed : kLanes) {
        attr.active_speed = speed.code;
        attr.active_width = 2; // four lanes
        if (speed.gbit_lane * 4000000000ull <= bits_s) return;
    }
    attr.active_width = 1;
}

int query_port(ibv_context *, uint8_t port, ibv_port_attr *attr, size_t length) {
    if (port != 1) return EINVAL;
    const Connection *c = connection();
    if (c == nullptr) return EIO;
    ibv_port_attr full = {};
    full.state = IBV_PORT_ACTIVE;
    full.max_mtu = full.active_mtu = IBV_MTU_4096;
    full.gid_tbl_len = 1;
    full.max_msg_sz = c->mtu;
    full.pkey_tbl_len = 1;
    full.max_vl_num = 1;
    full.phys_state = 5; // link up
    full.link_layer = IBV_LINK_LAYER_UNSPECIFIED;
    set_speed(full, c->line_bits_s);
    memcpy(attr, &full, length < sizeof full ? length : sizeof full);
    return 0;
}

void fill_device(ibv_device_attr &attr) {
    attr = {};
    snprintf(attr.fw_ver, sizeof attr.fw_ver, "softefa");
    attr.max_mr_size = 1ull << 46;
    attr.page_size_cap = ~0xfffull;
    attr.vendor_id = 0x1d0f;
    attr.vendor_part_id = 0xefa2; // of a device with one completion queue layout and RDMA write
    attr.hw_ver = 1;
    attr.max_qp = SOFTEFA_MAX_QP;
    attr.max_qp_wr = SOFTEFA_MAX_SQ;
    attr.max_sge = SOFTEFA_SEND_SGES;
    attr.max_sge_rd = 1;
    attr.max_cq = SOFTEFA_MAX_CQ;
    attr.max_cqe = SOFTEFA_MAX_CQE;
    attr.max_mr = SOFTEFA_MAX_MR;
    attr.max_pd = 256;
    attr.max_ah = 4096;
    attr.max_pkeys = 1;
    attr.phys_port_cnt = 1;
}

int query_device_ex(ibv_context *, const ibv_query_device_ex_input *, ibv_device_attr_ex *attr, size_t length) {
    ibv_device_attr_ex full = {};
    fill_device(full.orig_attr);
    memcpy(attr, &full, length < sizeof full ? length : sizeof full);
    return 0;
}

ibv_cq_ex *create_cq_ex(ibv_context *context, ibv_cq_init_attr_ex *attr) {
    return softefa_create_cq(context, attr->cqe, attr->cq_context, attr->channel, {nullptr, 0, 0, -1});
}

ibv_qp *create_qp_ex(ibv_context *context, ibv_qp_init_attr_ex *attr) {
    if (attr->qp_type == IBV_QPT_UD) return softefa_create_qp(context, attr, SOFTEFA_QP_UD, 0);
    errno = EOPNOTSUPP; // SRD queue pairs are made through efadv
    return nullptr;
}

} // namespace

Context *context_of(ibv_context *context) {
    return reinterpret_cast<Context *>(verbs_get_ctx(context));
}

} // namespace softefa

using namespace softefa;

SOFTEFA_EXPORT ibv_device **ibv_get_device_list(int *count) {
    ibv_device **list = static_cast<ibv_device **>(calloc(2, sizeof *list));
    if (list == nullptr) return nullptr;
    if (Connection *c = connection()) list[0] = &c->public_device;
    if (count != nullptr) *count = list[0] != nullptr;
    return list;
}

SOFTEFA_EXPORT void ibv_free_device_list(ibv_device **list) {
    free(list);
}
SOFTEFA_EXPORT const char *ibv_get_device_name(ibv_device *device) {
    return device->name;
}
SOFTEFA_EXPORT int ibv_get_device_index(ibv_device *) {
    const Connection *c = connection();
    return c != nullptr ? static_cast<int>(c->device) : -1;
}

SOFTEFA_EXPORT __be64 ibv_get_device_guid(ibv_device *) {
    uint64_t guid = 0;
    if (const Connection *c = connection()) memcpy(&guid, c->gid + 8, sizeof guid);
    return guid;
}

SOFTEFA_EXPORT ibv_context *ibv_open_device(ibv_device *device) {
    if (connection() == nullptr) {
        errno = ENODEV;
        return nullptr;
    }
    Context *context = static_cast<Context *>(calloc(1, sizeof *context));
    if (context == nullptr) return nullptr;
    verbs_context &v = context->verbs;
    v.sz = sizeof v;
    v.query_port = query_port;
    v.query_device_ex = query_device_ex;
    v.create_cq_ex = create_cq_ex;
    v.create_qp_ex = create_qp_ex;
    ibv_context &public_context = v.context;
    public_context.device = device;
    public_context.abi_compat = __VERBS_ABI_IS_EXTENDED;
    public_context.cmd_fd = -1;
    public_context.async_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK); // never fires: no asynchronous events here
    public_context.num_comp_vectors = 2;
    public_context.ops.poll_cq = cq_poll;
    public_context.ops.req_notify_cq = cq_arm;
    public_context.ops.post_send = qp_post_send;
    public_context.ops.post_recv = qp_post_recv;
    pthread_mutex_init(&public_context.mutex, nullptr);
    return &public_context;
}

SOFTEFA_EXPORT int ibv_close_device(ibv_context *context) {
    if (context->async_fd >= 0) close(context->async_fd);
    pthread_mutex_destroy(&context->mutex);
    free(context_of(context));
    return 0;
}

SOFTEFA_EXPORT int ibv_query_device(ibv_context *, ibv_device_attr *attr) {
    fill_device(*attr);
    return 0;
}

// The old form: callers that know only it pass the shorter struct, which ends before port_cap_flags2.
SOFTEFA_EXPORT int ibv_query_port(ibv_context *context, uint8_t port, _compat_ibv_port_attr *attr) {
    return query_port(context, port, reinterpret_cast<ibv_port_attr *>(attr), offsetof(ibv_port_attr, port_cap_flags2));
}

SOFTEFA_EXPORT int ibv_query_gid(ibv_context *, uint8_t port, int index, ibv_gid *gid) {
    const Connection *c = connection();
    if (c == nullptr || port != 1 || index != 0) {
        errno = EINVAL;
        return -1;
    }
    memcpy(gid->raw, c->gid, sizeof gid->raw);
    return 0;
}

SOFTEFA_EXPORT int ibv_query_pkey(ibv_context *, uint8_t, int index, __be16 *pkey) {
    if (index != 0) {
        errno = EINVAL;
        return -1;
    }
    *pkey = 0xffff;
    return 0;
}

SOFTEFA_EXPORT int ibv_get_pkey_index(ibv_context *, uint8_t, __be16 pkey) {
    return pkey == 0xffff ? 0 : -1;
}

SOFTEFA_EXPORT const char *ibv_get_sysfs_path(void) {
    const char *path = getenv("SYSFS_PATH");
    return path != nullptr ? path : "/sys";
}

SOFTEFA_EXPORT int ibv_read_sysfs_file(const char *dir, const char *file, char *text, size_t size) {
    char path[4096];
    if (snprintf(path, sizeof path, "%s/%s", dir, file) >= static_cast<int>(sizeof path)) return -1;
    FILE *f = fopen(path, "re");
    if (f == nullptr) return -1;
    size_t n = fread(text, 1, size, f);
    fclose(f);
    if (n > 0 && n < size && text[n - 1] == '\n') --n;
    if (n < size) text[n] = '\0';
    return static_cast<int>(n);
}

SOFTEFA_EXPORT const char *ibv_node_type_str(ibv_node_type) {
    return "emulated EFA";
}
SOFTEFA_EXPORT const char *ibv_port_state_str(ibv_port_state state) {
    return state == IBV_PORT_ACTIVE ? "active" : "not active";
}
SOFTEFA_EXPORT const char *ibv_event_type_str(ibv_event_type) {
    return "event";
}

SOFTEFA_EXPORT int ibv_fork_init(void) {
    return 0;
} // rings are not inherited, payload is read in place
SOFTEFA_EXPORT ibv_fork_status ibv_is_fork_initialized(void) {
    return IBV_FORK_UNNEEDED;
}
