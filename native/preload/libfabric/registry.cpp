#include "registry.h"

#include <efaprof/format.h>

#include <pthread.h>
#include <sys/mman.h>

namespace efaprof::ofi {

uint32_t registry_generation = 1;
uint32_t endpoints_closed = 0;

namespace {

constexpr unsigned kBuckets = 4096;
constexpr unsigned kChunk = 512; // objects made at a time

pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
Object *buckets[kBuckets];
Object *spare;
Object *cqs;
uint64_t next_id = 1;

Object **bucket_of(uint64_t fid) {
    return &buckets[(fid * 0x9E3779B97F4A7C15u) >> 52];
}

Object *take_spare() {
    if (!spare) {
        void *memory =
            mmap(nullptr, kChunk * sizeof(Object), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (memory == MAP_FAILED) return nullptr;
        auto *chunk = static_cast<Object *>(memory);
        for (unsigned i = 0; i < kChunk; ++i) {
            chunk[i].next = spare;
            spare = &chunk[i];
        }
    }
    Object *object = spare;
    spare = object->next;
    return object;
}

void unlink_cq(Object *object) {
    if (object->next_cq) object->next_cq->prev_cq = object->prev_cq;
    (object->prev_cq ? object->prev_cq->next_cq : cqs) = object->next_cq;
}

// The lock is never held across a call into a provider, so a fork by another thread only has to wait for it.
void before_fork() {
    pthread_mutex_lock(&lock);
}
void after_fork() {
    pthread_mutex_unlock(&lock);
}

__attribute__((constructor)) void keep_lock_sane_over_fork() {
    pthread_atfork(before_fork, after_fork, after_fork);
}

} // namespace

RegistryLock::RegistryLock() {
    pthread_mutex_lock(&lock);
}
RegistryLock::~RegistryLock() {
    pthread_mutex_unlock(&lock);
}

void registry_changed() {
    __atomic_add_fetch(&registry_generation, 1, __ATOMIC_RELEASE);
}

Object *registry_find(uint64_t fid) {
    for (Object *object = *bucket_of(fid); object; object = object->next)
        if (object->fid == fid) return object;
    return nullptr;
}

Object *registry_cqs() {
    return cqs;
}

Object *registry_add(const Object &object) {
    registry_remove(object.fid, nullptr);
    Object *added = take_spare();
    if (!added) return nullptr;
    *added = object;
    added->id = next_id++;
    Object **bucket = bucket_of(object.fid);
    added->next = *bucket;
    *bucket = added;
    if (object.kind == EFAPROF_OBJ_CQ) {
        added->prev_cq = nullptr;
        added->next_cq = cqs;
        if (cqs) cqs->prev_cq = added;
        cqs = added;
    }
    return added;
}

bool registry_remove(uint64_t fid, Object *removed) {
    for (Object **at = bucket_of(fid); *at; at = &(*at)->next) {
        Object *object = *at;
        if (object->fid != fid) continue;
        *at = object->next;
        if (object->kind == EFAPROF_OBJ_CQ) unlink_cq(object);
        if (removed) *removed = *object;
        object->next = spare;
        spare = object;
        registry_changed();
        if (object->kind == EFAPROF_OBJ_EP) __atomic_add_fetch(&endpoints_closed, 1, __ATOMIC_RELAXED);
        return true;
    }
    return false;
}

} // namespace efaprof::ofi
