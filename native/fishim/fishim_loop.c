/* A loop of writes at full speed, for calibration: an issuer in Python would be measured instead of the fabric. */
#include "fishim.h"

#include <time.h>

#define BATCH 32
#define ENTRY_BYTES 48 /* of the longest format; entries of shorter ones are packed closer */

static uint64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* Completions read, ≥ 0, or libfabric's error; the context of each goes back to the free ones. */
static ssize_t reap(struct fid_cq *cq, size_t entry_bytes, void **free_contexts, uint32_t *free_count) {
    _Alignas(8) char entries[BATCH * ENTRY_BYTES];
    ssize_t got = fi_cq_read(cq, entries, BATCH);
    if (got == -FI_EAGAIN) return 0;
    for (ssize_t i = 0; i < got; ++i)
        memcpy(&free_contexts[(*free_count)++], entries + (size_t)i * entry_bytes, sizeof(void *));
    return got;
}

/* Writes `bytes` again and again for `duration_ns`, `window` at a time, each with one of `window` contexts of 64 bytes,
 * then waits up to `drain_ns` for what is in flight. Nothing else may be in flight on `cq`. `free_contexts` has room
 * for `window` pointers. Returns 0 or libfabric's error (-FI_ETIMEDOUT: something never completed). */
SHIM_API int efaprof_fi_write_loop(struct fid_ep *ep, struct fid_cq *cq, size_t entry_bytes, const void *from,
                                   size_t bytes, void *desc, uint64_t peer, uint64_t address, uint64_t key,
                                   uint32_t window, char *contexts, void **free_contexts, uint64_t duration_ns,
                                   uint64_t drain_ns, struct efaprof_fi_loop *result) {
    if (ep->rma == NULL) return -FI_ENOSYS;
    uint32_t free_count = 0;
    for (; free_count < window; ++free_count)
        free_contexts[free_count] = contexts + (size_t)free_count * 64;
    memset(result, 0, sizeof *result);
    uint64_t begin = now_ns(), before = begin;
    while (before - begin < duration_ns) {
        uint32_t posted = 0;
        for (; free_count > 0 && posted < BATCH; ++posted) {
            ssize_t rc = fi_write(ep, from, bytes, desc, peer, address, key, free_contexts[free_count - 1]);
            if (rc == -FI_EAGAIN) {
                result->again++;
                break;
            }
            if (rc < 0) return (int)rc;
            --free_count;
        }
        ssize_t got = reap(cq, entry_bytes, free_contexts, &free_count);
        if (got < 0) return (int)got;
        uint64_t now = now_ns();
        if (posted == 0 && got == 0) result->idle_ns += now - before;
        result->completed += (uint64_t)got;
        before = now;
    }
    result->elapsed_ns = before - begin;
    uint64_t last = before;
    while (free_count < window) {
        ssize_t got = reap(cq, entry_bytes, free_contexts, &free_count);
        if (got < 0) return (int)got;
        if (now_ns() - last > drain_ns) return -FI_ETIMEDOUT;
    }
    return 0;
}
