/* Expert dispatch and combine over libfabric, instrumented: the C interface of libefaprof-moe.so.
 *
 * One handle is one rank of a job of `ranks` ranks; it may live in any process. The caller carries the contacts from
 * every rank to every rank. All ranks make the same calls in the same order:
 *
 *   open → contact ⇄ connect → { begin_step → { dispatch → (experts) → combine } per layer → end_step } … → close
 *
 * What happens inside is what efaprof-dispatch does: commands go through a ring to a proxy thread, which writes to the
 * peers by libfabric (path gdaki: the calling thread posts them itself); notices and channel tails say what came. Under
 * `efaprof record` every operation is recorded in every layer; the work of the calling thread between these calls of a
 * step is recorded as its computing.
 *
 * A handle is used by one thread at a time. No call ends the process. Calls return 0 or an enum efaprof_moe_result and
 * leave a line of text in efaprof_moe_error(). Every wait ends: by progress, after timeout_s with the rank and channel
 * named, when the provider reports a failed operation, or soon after a peer's process on this host has ended. After
 * EFAPROF_MOE_FAILED the handle can only be closed. */
#ifndef EFAPROF_MOE_H
#define EFAPROF_MOE_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define EFAPROF_MOE_VERSION 1u
#define EFAPROF_MOE_CONTACT_BYTES 256u

enum efaprof_moe_result {
    EFAPROF_MOE_OK = 0,
    EFAPROF_MOE_REFUSED = 1, /* the arguments do not fit, nothing was done; the handle can be used */
    EFAPROF_MOE_FAILED = 2,  /* the handle is of no more use */
};

/* FP8, on a GPU only: the caller's tensors are bfloat16, and tokens travel as e4m3 with a scale for each 128. */
enum efaprof_moe_dtype { EFAPROF_MOE_F32 = 0, EFAPROF_MOE_BF16 = 1, EFAPROF_MOE_FP8 = 2 };

/* How operations reach the NIC: through a ring and a proxy thread, or posted to an EFA device's own queues by the
 * calling thread (provider efa-direct, EFA's verbs where libfabric hands no queues out). */
enum efaprof_moe_path { EFAPROF_MOE_PROXY = 0, EFAPROF_MOE_GDAKI = 1 };

/* What orders a channel's tail behind its data. */
enum efaprof_moe_signal { EFAPROF_MOE_IMM = 0, EFAPROF_MOE_FENCE = 1, EFAPROF_MOE_FENCE_BATCH = 2 };

/* As in MARK records. PAUSE: no step, but a stretch in which there is nothing to do; it is not counted, and the proxy
 * looks only now and then. It ends with the next step. */
enum efaprof_moe_step { EFAPROF_MOE_DECODE = 0, EFAPROF_MOE_PREFILL = 1, EFAPROF_MOE_MIXED = 2, EFAPROF_MOE_PAUSE = 3 };

/* Nanoseconds added to every operation in one layer (see proxy/delay.h). */
struct efaprof_moe_inject {
    uint64_t kernel_ns, ring_ns, proxy_ns, libfabric_ns, nic_ns, rx_ns;
};

struct efaprof_moe_options {
    uint32_t struct_bytes; /* sizeof this struct */
    uint32_t rank, ranks;  /* at least 2 ranks, at most 255 */
    uint32_t tokens;       /* most tokens of a rank in one dispatch */
    uint32_t hidden, topk;
    uint32_t experts;      /* in all; rank r has those from r·experts/ranks on */
    uint32_t channels;     /* of a pair of ranks, at most 254 */
    uint32_t dtype;        /* enum efaprof_moe_dtype */
    uint32_t signal;       /* enum efaprof_moe_signal */
    uint32_t path;         /* enum efaprof_moe_path */
    uint32_t ring, window; /* commands in the ring, operations in flight: powers of two; 0: 1024 and 256 */
    uint32_t threads;      /* of a rank, the caller's included: 2 or 3; 0: by the number of cores; path gdaki has 1 */
    uint32_t timeout_s;    /* longest wait for a peer; 0: 60 */
    const char *provider;  /* of libfabric: tcp, shm, efa, efa-direct, … */
    struct efaprof_moe_inject inject;
};

struct efaprof_moe;

#define EFAPROF_MOE_API __attribute__((visibility("default")))

EFAPROF_MOE_API uint32_t efaprof_moe_version(void);

/* NULL when it cannot be had; then `error` says why, and `result` whether options or provider were refused. */
EFAPROF_MOE_API struct efaprof_moe *efaprof_moe_open(const struct efaprof_moe_options *options, int *result,
                                                     char *error, size_t error_bytes);

/* What the other ranks need of this one: EFAPROF_MOE_CONTACT_BYTES bytes without pointers. */
EFAPROF_MOE_API int efaprof_moe_contact(struct efaprof_moe *moe, void *contact);

/* Contacts of all ranks, in their order, its own among them. */
EFAPROF_MOE_API int efaprof_moe_connect(struct efaprof_moe *moe, const void *contacts);

EFAPROF_MOE_API int efaprof_moe_begin_step(struct efaprof_moe *moe, uint32_t step, int kind);
EFAPROF_MOE_API int efaprof_moe_end_step(struct efaprof_moe *moe);

/* Sends each of this rank's tokens to the ranks of its experts and takes in what they send here.
 *   in   x        [tokens][hidden] of the dtype
 *        experts  [tokens][topk], those of one token all different
 *        weights  [tokens][topk]
 *   out  rows: token i of source rank r stands in row r·(options.tokens) + i, for i < received[r]
 *        received     [ranks]
 *        recv_x       [rows][hidden] of the dtype
 *        recv_experts [rows][topk]: number of the expert among this rank's own, −1 where the choice is not of this rank
 *                     or the row is empty
 *        recv_weights [rows][topk], 0 where recv_experts is −1
 * Rows that are not received keep their recv_x. */
EFAPROF_MOE_API int efaprof_moe_dispatch(struct efaprof_moe *moe, uint32_t layer, uint32_t tokens, const void *x,
                                         const int64_t *experts, const float *weights, void *recv_x,
                                         int32_t *recv_experts, float *recv_weights, int32_t *received);

/* The experts' answers back to where the tokens came from, weighted and added up.
 *   in   y    [rows][topk][hidden] of the dtype: what expert recv_experts[row][k] made of recv_x[row]; others are not
 *             read
 *   out  out  [tokens][hidden] of the dtype, for the tokens of the last dispatch
 * A rank adds its experts' answers up in order of k, the source the ranks' in order of ranks, both in float32: the sum
 * does not depend on what came first. */
EFAPROF_MOE_API int efaprof_moe_combine(struct efaprof_moe *moe, const void *y, void *out);

/* Commands that this rank has issued so far: puts, notices, signals, barriers. */
EFAPROF_MOE_API void efaprof_moe_counts(const struct efaprof_moe *moe, uint64_t counts[4]);

/* The last error; "" when there was none. Valid until the next call. */
EFAPROF_MOE_API const char *efaprof_moe_error(const struct efaprof_moe *moe);

/* Waits a few seconds for the other ranks to close too, for as long as they may need this one's progress; a handle
 * that failed or was never connected is closed at once. */
EFAPROF_MOE_API void efaprof_moe_close(struct efaprof_moe *moe);

#ifdef __cplusplus
}
#endif

#endif
