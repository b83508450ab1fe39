#include "drainring.h"

#include <cstring>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "sysfile.h"

namespace efaprof {

constexpr uint64_t kMostSlotsEver = 1ull << 50; // a year of full speed; file offsets stay in range

void DrainRing::turn_bad() {
    unmap();
    status = RingStatus::bad;
}

void DrainRing::unmap() {
    if (header != nullptr) munmap(header, bytes);
    header = nullptr;
    slots = nullptr;
}

bool DrainRing::is_sound(const efaprof_header &h, uint64_t file_bytes) const {
    const bool is_ours = h.magic == EFAPROF_MAGIC && h.version == EFAPROF_FORMAT_VERSION &&
                         h.slot_bytes == EFAPROF_SLOT_BYTES &&
                         (h.clock == EFAPROF_CLOCK_TSC || h.clock == EFAPROF_CLOCK_MONOTONIC);
    const bool is_sized = (h.capacity & (h.capacity - 1)) == 0 && h.capacity <= kMostSlotsEver &&
                          file_bytes == EFAPROF_HEADER_BYTES + h.capacity * EFAPROF_SLOT_BYTES;
    return is_ours && is_sized && h.tail <= h.head && h.head - h.tail <= h.capacity && h.head <= kMostSlotsEver;
}

void DrainRing::open() {
    struct stat st;
    if (fstatat(directory, name, &st, AT_SYMLINK_NOFOLLOW) != 0) return;
    if (!S_ISREG(st.st_mode)) return turn_bad();
    const int fd = openat(directory, name, O_RDWR | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) return turn_bad();
    efaprof_header h;
    const bool is_whole = fstat(fd, &st) == 0 && S_ISREG(st.st_mode) && pread(fd, &h, sizeof h, 0) == sizeof h;
    if (is_whole && h.magic != 0) {
        const auto file_bytes = static_cast<uint64_t>(st.st_size);
        void *map = MAP_FAILED;
        if (is_sound(h, file_bytes)) map = mmap(nullptr, file_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        if (map == MAP_FAILED) {
            turn_bad();
        } else {
            header = static_cast<efaprof_header *>(map);
            slots = static_cast<const unsigned char *>(map) + EFAPROF_HEADER_BYTES;
            bytes = file_bytes;
            capacity = h.capacity;
            tail = head = h.tail;
            status = RingStatus::ready;
        }
    }
    close(fd);
}

bool DrainRing::look() {
    struct stat st; // a file cut short would end us by SIGBUS; one that was unlinked is still mapped whole
    if (fstatat(directory, name, &st, AT_SYMLINK_NOFOLLOW) == 0 && static_cast<uint64_t>(st.st_size) < bytes) {
        turn_bad();
        return false;
    }
    const uint64_t now = __atomic_load_n(&header->head, __ATOMIC_ACQUIRE);
    if (now < head || now - tail > capacity || now > kMostSlotsEver) {
        turn_bad();
        return false;
    }
    head = now;
    lost = __atomic_load_n(&header->dropped, __ATOMIC_RELAXED) + __atomic_load_n(&header->nested, __ATOMIC_RELAXED) +
           __atomic_load_n(&header->failed, __ATOMIC_RELAXED);
    return true;
}

bool DrainRing::copy(RawStore &store, uint64_t *slots_copied) {
    if (raw == nullptr) {
        char raw_name[256];
        const size_t stem = strlen(name) - strlen(".ring");
        memcpy(raw_name, name, stem);
        raw_name[stem] = 0;
        strcat(raw_name, ".efr"); // shorter than what it replaces
        raw = store.begin(raw_name, *header, tail);
        if (raw == nullptr) return false;
    }
    const uint64_t before = raw->end;
    bool ok = true;
    while (ok && raw->end < head) {
        const uint64_t at = raw->end & (capacity - 1);
        uint64_t n = head - raw->end;
        if (n > capacity - at) n = capacity - at;
        if (n > store.piece()) n = store.piece();
        ok = store.append(*raw, slots + at * EFAPROF_SLOT_BYTES, n) == n;
    }
    *slots_copied += raw->end - before;
    // The raw header first, then the ring's tail: when that fails, slots stay in the ring and are copied again.
    const bool is_said = store.write_header(*raw, *header, head);
    if (is_said && raw->end != tail) {
        tail = raw->end;
        __atomic_store_n(&header->tail, tail, __ATOMIC_RELEASE);
    }
    return ok && is_said;
}

bool DrainRing::is_closed() const {
    return __atomic_load_n(&header->state, __ATOMIC_ACQUIRE) == EFAPROF_RING_CLOSED;
}

void DrainRing::remove() {
    unmap();
    unlinkat(directory, name, 0);
    status = RingStatus::gone;
}

} // namespace efaprof
