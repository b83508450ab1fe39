// The rest of libibverbs' exports: programs (librdmacm, UCX) link to them, nothing here can serve them. The
// prototypes are not those of the header on purpose: only the name matters, all say that the call does not exist.
#include <errno.h>
#include <stddef.h>

#define EXPORT __attribute__((visibility("default")))

#define NO_INT(name)                                                                                                   \
    EXPORT int name(void);                                                                                             \
    int name(void) {                                                                                                   \
        errno = ENOSYS;                                                                                                \
        return ENOSYS;                                                                                                 \
    }
#define NO_POINTER(name)                                                                                               \
    EXPORT void *name(void);                                                                                           \
    void *name(void) {                                                                                                 \
        errno = ENOSYS;                                                                                                \
        return NULL;                                                                                                   \
    }
#define NO_FAIL(name) /* says failure as -1 */                                                                         \
    EXPORT int name(void);                                                                                             \
    int name(void) {                                                                                                   \
        errno = ENOSYS;                                                                                                \
        return -1;                                                                                                     \
    }
#define NO_VOID(name)                                                                                                  \
    EXPORT void name(void);                                                                                            \
    void name(void) {}

NO_FAIL(_ibv_query_gid_table)
NO_INT(_ibv_query_gid_ex)
NO_VOID(ibv_ack_async_event)
NO_INT(ibv_attach_mcast)
NO_INT(ibv_detach_mcast)
NO_VOID(ibv_copy_ah_attr_from_kern)
NO_VOID(ibv_copy_path_rec_from_kern)
NO_VOID(ibv_copy_path_rec_to_kern)
NO_VOID(ibv_copy_qp_attr_from_kern)
NO_POINTER(ibv_create_ah_from_wc)
NO_INT(ibv_init_ah_from_wc)
NO_POINTER(ibv_create_srq)
NO_INT(ibv_destroy_srq)
NO_INT(ibv_modify_srq)
NO_INT(ibv_query_srq)
NO_INT(ibv_dofork_range)
NO_INT(ibv_dontfork_range)
NO_FAIL(ibv_get_async_event)
NO_POINTER(ibv_import_device)
NO_POINTER(ibv_import_dm)
NO_POINTER(ibv_import_mr)
NO_POINTER(ibv_import_pd)
NO_VOID(ibv_unimport_dm)
NO_VOID(ibv_unimport_mr)
NO_VOID(ibv_unimport_pd)
NO_INT(ibv_query_ece)
NO_INT(ibv_set_ece)
NO_INT(ibv_rate_to_mbps)
NO_INT(ibv_rate_to_mult)
NO_INT(mbps_to_ibv_rate)
NO_INT(mult_to_ibv_rate)
NO_VOID(ibv_register_driver)
NO_INT(ibv_rereg_mr)
NO_INT(ibv_resize_cq)
NO_INT(ibv_resolve_eth_l2_from_gid)
