#include "ring.h"

#include <cerrno>
#include <csignal>
#include <cstring>
#include <fcntl.h>
#include <initializer_list>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "clock.h"
#include "sysfile.h"

namespace efaprof {

static Ring *g_rings; // all rings ever made, newest first; grows only
static uint32_t g_ring_count;
static char g_producer[16];

void ring_set_producer(const char *producer) {
    for (size_t i = 0; i < sizeof g_producer - 1 && *producer != 0; ++i)
        g_producer[i] = *producer++;
}

// ---- room ---------------------------------------------------------------------------------------

struct DirectoryEntry { // what getdents64 writes
    uint64_t inode;
    int64_t offset;
    uint16_t length;
    uint8_t type;
    char name[1];
};

// Bytes of all rings in a directory. Reads it without opendir, whose malloc is not for signal handlers.
static uint64_t bytes_of_rings(const char *directory) {
    const int fd = open(directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) return 0;
    uint64_t sum = 0;
    alignas(8) char block[2048];
    for (long got; (got = syscall(SYS_getdents64, fd, block, sizeof block)) > 0;) {
        for (long at = 0; at < got;) {
            const char *entry = block + at;
            const char *name = entry + offsetof(DirectoryEntry, name);
            uint16_t length;
            memcpy(&length, entry + offsetof(DirectoryEntry, length), sizeof length);
            at += length;
            struct stat st;
            if (name[0] != '.' && fstatat(fd, name, &st, AT_SYMLINK_NOFOLLOW) == 0 && S_ISREG(st.st_mode))
                sum += static_cast<uint64_t>(st.st_size);
        }
    }
    close(fd);
    return sum;
}

struct Room {
    uint64_t free;  // of the file system
    uint64_t used;  // by all rings of the run that count here
    uint64_t limit; // of used
};

static Room room_in(const Settings &settings, const char *directory) {
    struct statfs fs;
    if (statfs(directory, &fs) != 0) return Room{0, 0, 0};
    Room room{};
    room.free = static_cast<uint64_t>(fs.f_bavail) * static_cast<uint64_t>(fs.f_frsize);
    if (settings.total != 0) {
        room.used = bytes_of_rings(settings.ring_dir);
        if (settings.spill_dir[0] != 0) room.used += bytes_of_rings(settings.spill_dir);
        room.limit = settings.total;
    } else {
        room.used = bytes_of_rings(directory);
        room.limit = (room.free + room.used) / 4;
    }
    return room;
}

// Bytes that a new ring in this directory may take.
static uint64_t bytes_for_ring(const Settings &settings, const char *directory) {
    const Room room = room_in(settings, directory);
    const uint64_t left = room.used < room.limit ? room.limit - room.used : 0;
    return left < room.free ? left : room.free;
}

static bool is_over_total(const Settings &settings, const char *directory) {
    const Room room = room_in(settings, directory);
    return room.used > room.limit;
}

// Beyond RLIMIT_FSIZE the kernel would send SIGXFSZ, which ends the program.
static bool is_over_file_limit(uint64_t bytes) {
    struct rlimit limit;
    return getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY && bytes > limit.rlim_cur;
}

// ---- making -------------------------------------------------------------------------------------

// While a ring is made signals wait, else those of a fast timer would end fallocate with EINTR again and again.
class SignalsBlocked {
public:
    SignalsBlocked() {
        sigset_t all;
        sigfillset(&all);
        for (const int fault : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGSYS})
            sigdelset(&all, fault); // blocked, they would end the program without asking its handlers
        is_blocked_ = pthread_sigmask(SIG_SETMASK, &all, &before_) == 0;
    }
    ~SignalsBlocked() {
        const int saved = errno;
        if (is_blocked_) pthread_sigmask(SIG_SETMASK, &before_, nullptr);
        errno = saved;
    }
    SignalsBlocked(const SignalsBlocked &) = delete;
    SignalsBlocked &operator=(const SignalsBlocked &) = delete;

private:
    sigset_t before_;
    bool is_blocked_;
};

static uint64_t random_number() {
    uint64_t value;
    if (getrandom(&value, sizeof value, GRND_NONBLOCK) != sizeof value)
        value = now() * 0x9e3779b97f4a7c15u ^ reinterpret_cast<uintptr_t>(&value);
    return value;
}

static bool ring_path(char *path, size_t size, const Process &process, const char *directory, uint32_t tid) {
    Text text(path, size);
    text.add(directory).add("/").add(process.host).add(".").add_number(process.pid_ns).add(".");
    text.add_number(process.pid).add(".").add_number(tid).add(".").add_number(random_number(), 16).add(".ring");
    return text.ok();
}

static void write_header(efaprof_header &h, const Process &process, uint64_t capacity, uint32_t tid) {
    h.version = EFAPROF_FORMAT_VERSION;
    h.slot_bytes = EFAPROF_SLOT_BYTES;
    h.clock = clock_find();
    h.capacity = capacity;
    memcpy(h.boot_id, process.boot_id, sizeof h.boot_id);
    h.pid_ns = process.pid_ns;
    h.pid = process.pid;
    h.tid = tid;
    h.start_ticks = now();
    h.process_start = process.start;
    memcpy(h.host, process.host, sizeof h.host);
    prctl(PR_GET_NAME, h.comm);
    memcpy(h.producer, g_producer, sizeof h.producer);
    h.state = EFAPROF_RING_OPEN;
    __atomic_store_n(&h.magic, EFAPROF_MAGIC, __ATOMIC_RELEASE); // last: before it, the file is not a ring yet
}

// A ring of `capacity` slots in `directory`, or NULL with errno. posix_fallocate comes before mmap: a file
// that is only long (ftruncate) would end the program by SIGBUS where the file system is full.
static Ring *make_ring(const Process &process, const char *directory, uint64_t capacity, uint32_t tid) {
    char path[kPathMax + 160];
    const uint64_t bytes = EFAPROF_HEADER_BYTES + capacity * EFAPROF_SLOT_BYTES;
    if (is_over_file_limit(bytes) || !ring_path(path, sizeof path, process, directory, tid)) {
        errno = is_over_file_limit(bytes) ? EFBIG : ENAMETOOLONG;
        return nullptr;
    }
    void *own = mmap(nullptr, sizeof(Ring), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (own == MAP_FAILED) return nullptr;
    void *map = MAP_FAILED;
    const int fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (fd >= 0) {
        fchmod(fd, 0600); // whatever the umask
        int error = posix_fallocate(fd, 0, static_cast<off_t>(bytes));
        // Asked again, now that the file counts: other threads may have been told of the same room.
        if (error == 0 && capacity != 0 && is_over_total(process.settings, directory)) error = EBUSY;
        if (error == 0)
            map = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd, 0);
        else
            errno = error;
        const int saved = errno;
        if (map == MAP_FAILED) unlink(path);
        close(fd);
        errno = saved;
    }
    if (map == MAP_FAILED) {
        const int saved = errno;
        munmap(own, sizeof(Ring));
        errno = saved;
        return nullptr;
    }
    auto *ring = static_cast<Ring *>(own);
    ring->header = static_cast<efaprof_header *>(map);
    ring->slots = static_cast<unsigned char *>(map) + EFAPROF_HEADER_BYTES;
    ring->capacity = capacity;
    ring->bytes = bytes;
    ring->generation = process.generation;
    ring->owner = tid;
    write_header(*ring->header, process, capacity, tid);
    return ring;
}

static void publish_ring(Ring *ring) {
    ring->next = __atomic_load_n(&g_rings, __ATOMIC_RELAXED);
    while (!__atomic_compare_exchange_n(&g_rings, &ring->next, ring, true, __ATOMIC_RELEASE, __ATOMIC_RELAXED)) {
    }
    __atomic_fetch_add(&g_ring_count, 1, __ATOMIC_RELAXED);
}

static bool is_for_want_of_space(int error) { // EAGAIN: of memory that mlockall would lock
    return error == ENOSPC || error == EDQUOT || error == ENOMEM || error == EFBIG || error == EAGAIN || error == EBUSY;
}

static Ring *make_ring_of(const Process &process, const char *directory, uint64_t bytes, uint32_t tid) {
    constexpr int tries = 4; // EBUSY: another thread took the room, or gave it back for the same reason
    Ring *ring = nullptr;
    errno = EBUSY;
    for (int i = 0; i < tries && ring == nullptr && errno == EBUSY; ++i) {
        errno = ENOSPC;
        if (bytes + EFAPROF_HEADER_BYTES <= bytes_for_ring(process.settings, directory))
            ring = make_ring(process, directory, bytes / EFAPROF_SLOT_BYTES, tid);
    }
    return ring;
}

static Ring *make_ring_that_fits(const Process &process, const char *directory, uint32_t tid) {
    for (uint64_t bytes = process.settings.buffer;; bytes /= 2) {
        Ring *ring = make_ring_of(process, directory, bytes, tid);
        if (ring != nullptr || !is_for_want_of_space(errno) || bytes / 2 < kSmallestBuffer) return ring;
    }
}

// ---- taking -------------------------------------------------------------------------------------

static bool try_own(Ring &ring, uint32_t expected, uint32_t tid) {
    return __atomic_compare_exchange_n(&ring.owner, &expected, tid, false, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED);
}

static bool is_of(const Ring &ring, const Process &process) {
    return ring.generation == process.generation && ring.capacity != 0;
}

static bool is_half_empty(const Ring &ring) {
    const uint64_t tail = __atomic_load_n(&ring.header->tail, __ATOMIC_RELAXED);
    return __atomic_load_n(&ring.header->head, __ATOMIC_RELAXED) - tail <= ring.capacity / 2;
}

static Ring *claim_free(const Process &process, uint32_t tid, bool with_room) {
    for (Ring *ring = __atomic_load_n(&g_rings, __ATOMIC_ACQUIRE); ring != nullptr; ring = ring->next) {
        const bool is_free = is_of(*ring, process) && __atomic_load_n(&ring->owner, __ATOMIC_RELAXED) == 0;
        if (is_free && (!with_room || is_half_empty(*ring)) && try_own(*ring, 0, tid)) return ring;
    }
    return nullptr;
}

// Threads can end without running key destructors (raw exit, no key left). A few are asked after each time.
static Ring *claim_from_dead(const Process &process, uint32_t tid) {
    constexpr uint32_t most_asked = 16;
    const uint32_t count = __atomic_load_n(&g_ring_count, __ATOMIC_RELAXED);
    uint32_t skip = count > most_asked ? static_cast<uint32_t>(now() >> 6) % (count - most_asked + 1) : 0;
    uint32_t asked = 0;
    for (Ring *ring = __atomic_load_n(&g_rings, __ATOMIC_ACQUIRE); ring != nullptr && asked < most_asked;
         ring = ring->next) {
        if (skip > 0) {
            --skip;
            continue;
        }
        ++asked;
        const uint32_t owner = __atomic_load_n(&ring->owner, __ATOMIC_RELAXED);
        if (!is_of(*ring, process) || owner == 0) continue;
        const bool dead = owner == tid || (syscall(SYS_tgkill, getpid(), owner, 0) != 0 && errno == ESRCH);
        if (dead && try_own(*ring, owner, tid)) return ring;
    }
    return nullptr;
}

Ring *ring_take(Process &process, uint32_t tid) {
    Ring *ring = claim_free(process, tid, true);
    if (ring == nullptr) ring = claim_free(process, tid, false);
    if (ring == nullptr) ring = claim_from_dead(process, tid);
    if (ring != nullptr) {
        __atomic_store_n(&ring->header->state, static_cast<uint32_t>(EFAPROF_RING_OPEN), __ATOMIC_RELEASE);
        return ring;
    }
    const SignalsBlocked blocked;
    ring = make_ring_that_fits(process, process.settings.ring_dir, tid);
    if (ring == nullptr && process.settings.spill_dir[0] != 0)
        ring = make_ring_that_fits(process, process.settings.spill_dir, tid);
    if (ring != nullptr) publish_ring(ring);
    return ring;
}

void ring_release(Ring &ring) {
    __atomic_store_n(&ring.header->state, static_cast<uint32_t>(EFAPROF_RING_FREE), __ATOMIC_RELEASE);
    __atomic_store_n(&ring.owner, 0u, __ATOMIC_RELEASE);
}

efaprof_header *ring_overflow(Process &process, uint32_t tid) {
    efaprof_header *header = __atomic_load_n(&process.overflow, __ATOMIC_ACQUIRE);
    if (header != nullptr) return header;
    const SignalsBlocked blocked;
    Ring *ring = make_ring(process, process.settings.ring_dir, 0, tid);
    if (ring == nullptr && process.settings.spill_dir[0] != 0)
        ring = make_ring(process, process.settings.spill_dir, 0, tid);
    if (ring != nullptr) {
        publish_ring(ring);
        // Should another thread be first, both files stay: the sum of their counts is right.
        if (__atomic_compare_exchange_n(&process.overflow, &header, ring->header, false, __ATOMIC_ACQ_REL,
                                        __ATOMIC_ACQUIRE))
            header = ring->header;
    }
    return header;
}

void rings_forget(uint32_t kept, uint32_t closed) {
    for (Ring *ring = __atomic_load_n(&g_rings, __ATOMIC_ACQUIRE); ring != nullptr; ring = ring->next) {
        if (ring->generation == kept) continue;
        const uint64_t bytes = __atomic_exchange_n(&ring->bytes, 0u, __ATOMIC_ACQ_REL);
        if (bytes == 0) continue;
        if (ring->generation == closed)
            __atomic_store_n(&ring->header->state, static_cast<uint32_t>(EFAPROF_RING_CLOSED), __ATOMIC_RELEASE);
        mmap(ring->header, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1,
             0);
    }
}

} // namespace efaprof
