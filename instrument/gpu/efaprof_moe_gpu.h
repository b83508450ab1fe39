/* Expert dispatch and combine by kernels on a GPU, for a model of somebody else's: the C interface of
 * libefaprof-moe-gpu.so. Options, contacts, results and the order of calls are those of engine/efaprof_moe.h; tokens,
 * routes and answers lie in the GPU's memory, dtype is EFAPROF_MOE_BF16, `hidden` a multiple of 8.
 *
 * dispatch and combine put kernels into a stream and come back: they can be captured into a CUDA graph. A graph that is
 * replayed moves each step's tokens anew. begin_step and end_step stand around a step's calls or replay, not in a
 * capture. What goes wrong in a kernel stops the kernels after it, and the next call that is not in a capture says so.
 *
 * Ranks of several processes that share a GPU need MPS around them; ranks of one process need a stream each, and all of
 * them must have been launched before the host waits for one. */
#ifndef EFAPROF_MOE_GPU_H
#define EFAPROF_MOE_GPU_H

#include "../engine/efaprof_moe.h"

#ifdef __cplusplus
extern "C" {
#endif

struct efaprof_moe_gpu;

EFAPROF_MOE_API struct efaprof_moe_gpu *efaprof_moe_gpu_open(const struct efaprof_moe_options *options, uint32_t device,
                                                             int *result, char *error, size_t error_bytes);
EFAPROF_MOE_API int efaprof_moe_gpu_contact(struct efaprof_moe_gpu *moe, void *contact);
EFAPROF_MOE_API int efaprof_moe_gpu_connect(struct efaprof_moe_gpu *moe, const void *contacts);
/* `stream` is a cudaStream_t of the device. */
EFAPROF_MOE_API int efaprof_moe_gpu_begin_step(struct efaprof_moe_gpu *moe, uint32_t step, int kind, void *stream);
EFAPROF_MOE_API int efaprof_moe_gpu_end_step(struct efaprof_moe_gpu *moe, void *stream);
EFAPROF_MOE_API int efaprof_moe_gpu_dispatch(struct efaprof_moe_gpu *moe, uint32_t layer, uint32_t tokens,
                                             const void *x, const int64_t *experts, const float *weights, void *recv_x,
                                             int32_t *recv_experts, float *recv_weights, int32_t *received,
                                             void *stream);
EFAPROF_MOE_API int efaprof_moe_gpu_combine(struct efaprof_moe_gpu *moe, uint32_t layer, uint32_t tokens, const void *y,
                                            void *out, void *stream);
EFAPROF_MOE_API void efaprof_moe_gpu_counts(const struct efaprof_moe_gpu *moe, uint64_t counts[4]);
EFAPROF_MOE_API const char *efaprof_moe_gpu_error(const struct efaprof_moe_gpu *moe);
/* Waits for everything that was launched, then as efaprof_moe_close. */
EFAPROF_MOE_API void efaprof_moe_gpu_close(struct efaprof_moe_gpu *moe);

#ifdef __cplusplus
}
#endif

#endif
