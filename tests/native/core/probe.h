// Records that can be checked afterwards: every word of a record follows from (tag, sequence). tests/native/rings.py
// computes the same.
#pragma once

#include <core/writer.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

namespace probe {

inline uint64_t mix(uint64_t x) { // splitmix64
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

struct Shape {
    uint16_t kind, x;
    uint32_t slots;
};

inline uint64_t word_of(uint32_t tag, uint64_t sequence, uint32_t word) { // from word 3 on; word 2 is the sequence
    return mix(mix(static_cast<uint64_t>(tag) << 40 ^ sequence) + word);
}

inline Shape shape_of(uint32_t tag, uint64_t sequence) {
    const uint64_t h = mix(static_cast<uint64_t>(tag) << 40 ^ sequence);
    Shape shape{};
    switch (h % 5) {
    case 0: shape.kind = EFAPROF_KIND(EFAPROF_SHAPE_SPAN, 1); break;
    case 1: shape.kind = EFAPROF_KIND(EFAPROF_SHAPE_OP, 3); break;
    case 2: shape.kind = EFAPROF_KIND(EFAPROF_SHAPE_OBJECT, EFAPROF_OBJ_MR); break;
    case 3: shape.kind = EFAPROF_KIND(EFAPROF_SHAPE_STAGE, 1); break;
    default:
        shape.kind = EFAPROF_KIND(EFAPROF_SHAPE_CQ, EFAPROF_CQ_READ);
        shape.x = static_cast<uint16_t>((h >> 32) % (EFAPROF_CQ_MAX + 1));
    }
    shape.slots = efaprof_slots(shape.kind, shape.x);
    return shape;
}

// What a thread did, kept outside the ring: the test compares.
struct Account {
    uint64_t published;
    uint64_t refused;
    uint64_t unused[6];
};

inline void fail(const char *what) {
    fprintf(stderr, "FAILED: %s\n", what);
    exit(1);
}

// One record of this tag. The account says so only after it was published.
inline bool write_record(uint32_t tag, Account &account) {
    const uint64_t sequence = account.published;
    const Shape shape = shape_of(tag, sequence);
    errno = 12345;
    auto *record = static_cast<unsigned char *>(efaprof::reserve(shape.slots));
    if (errno != 12345) fail("errno was changed");
    if (record == nullptr) {
        __atomic_store_n(&account.refused, account.refused + 1, __ATOMIC_RELAXED);
        return false;
    }
    const efaprof_head head{efaprof::now(), tag, shape.kind, shape.x};
    memcpy(record, &head, sizeof head);
    memcpy(record + 16, &sequence, sizeof sequence);
    for (uint32_t word = 3; word < shape.slots * 4; ++word) {
        const uint64_t value = word_of(tag, sequence, word);
        memcpy(record + word * 8, &value, sizeof value);
    }
    efaprof::publish(record, shape.slots);
    __atomic_store_n(&account.published, sequence + 1, __ATOMIC_RELEASE);
    return true;
}

inline Account *map_accounts(const char *path) {
    const int fd = open(path, O_RDWR | O_CLOEXEC);
    void *map = fd < 0 ? MAP_FAILED : mmap(nullptr, 65536, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (map == MAP_FAILED) {
        perror(path);
        exit(2);
    }
    close(fd);
    return static_cast<Account *>(map);
}

} // namespace probe
