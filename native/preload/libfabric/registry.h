// Live libfabric objects whose properties the probes need: endpoints (default operation flags), completion queues
// (format of their entries), address vectors and domains (format of addresses).
#pragma once

#include <stdint.h>

struct fid;
struct fid_cq;

namespace efaprof::ofi {

// Anything that makes a thread's remembered facts about a pointer doubtful moves one of these on.
extern uint32_t registry_generation; // an endpoint, CQ or counter was closed or changed its properties
extern uint32_t endpoints_closed;

struct Object {
    uint64_t fid;
    uint64_t id;       // tells two objects at one address apart; never 0
    uint64_t parent;   // fid
    uint64_t caps;     // domain: of its info; endpoint: of its info
    uint64_t tx_flags; // endpoint: default op_flags
    uint64_t rx_flags; // endpoint: default op_flags
    uint64_t name;     // NAME ids that objects opened from this one inherit
    uint64_t detail;
    uint32_t kind;        // enum efaprof_object_what
    uint32_t format;      // CQ: enum fi_cq_format; domain, AV: address format
    uint32_t addr_bytes;  // domain, AV: bytes of one address, 0 not known
    uint32_t has_source;  // domain: some endpoint asked for FI_SOURCE
    uint64_t inserted;    // AV: addresses so far, when it is a table
    const void *seen_ops; // CQ: the table that it had when last looked at; null: not to be looked at
    Object *next;         // in its bucket
    Object *next_cq, *prev_cq;
};

class RegistryLock {
public:
    RegistryLock();
    ~RegistryLock();
    RegistryLock(const RegistryLock &) = delete;
    RegistryLock &operator=(const RegistryLock &) = delete;
};

// With the lock held. A pointer stays valid until the lock is given up; null = not known (or no memory).
Object *registry_find(uint64_t fid);
Object *registry_add(const Object &object); // copies; replaces what is known about the same fid; gives it an id
bool registry_remove(uint64_t fid, Object *removed);
Object *registry_cqs(); // first of the list through next_cq

inline uint32_t current_generation() {
    return __atomic_load_n(&registry_generation, __ATOMIC_ACQUIRE);
}
inline uint32_t current_endpoints_closed() {
    return __atomic_load_n(&endpoints_closed, __ATOMIC_RELAXED);
}
void registry_changed();

} // namespace efaprof::ofi
