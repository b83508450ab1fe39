/* Records of the dense path: expert exchange by bulk collectives, in the words of the dispatch paths. Part of
 * libefaprof-moe.so.
 *
 * The caller runs the collectives with whatever library it likes and says when it enters and leaves each. A collective
 * is recorded as one signal to every peer, without host stages: issued when this rank enters, complete when it leaves.
 * Nothing of what lies in between can be told apart from outside, so it is all nic; the reader finds out which rank
 * came last. What the
 * calling thread does between the collectives of a step is its computing. Nothing is written outside efaprof record. */
#ifndef EFAPROF_BULK_H
#define EFAPROF_BULK_H

#include "efaprof_moe.h"

#ifdef __cplusplus
extern "C" {
#endif

struct efaprof_bulk;

enum efaprof_bulk_phase { EFAPROF_BULK_ALL_GATHER = 1, EFAPROF_BULK_REDUCE_SCATTER = 2 };

/* NULL when there is no memory. `emulated`: what of the fabric is not the real thing, or NULL. `options`: what makes
 * two runs comparable, as "hidden=64 topk=2 …", at most 118 bytes. */
EFAPROF_MOE_API struct efaprof_bulk *efaprof_bulk_open(uint32_t rank, uint32_t ranks, const char *emulated,
                                                       const char *options);
/* `kind`: enum efaprof_moe_step. */
EFAPROF_MOE_API void efaprof_bulk_begin_step(struct efaprof_bulk *bulk, uint32_t step, int kind);
EFAPROF_MOE_API void efaprof_bulk_end_step(struct efaprof_bulk *bulk);
EFAPROF_MOE_API void efaprof_bulk_enter(struct efaprof_bulk *bulk, uint32_t layer, int phase);
/* `bytes`: what this rank has sent to each peer. */
EFAPROF_MOE_API void efaprof_bulk_leave(struct efaprof_bulk *bulk, uint32_t bytes);
/* The caller has compared so many tokens with what they must be, from the start on; all were right. */
EFAPROF_MOE_API void efaprof_bulk_verified(const struct efaprof_bulk *bulk, uint64_t tokens);
/* Ends the last step. */
EFAPROF_MOE_API void efaprof_bulk_close(struct efaprof_bulk *bulk);

#ifdef __cplusplus
}
#endif

#endif
