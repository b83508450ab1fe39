#include <efaprof/drain.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "drainring.h"
#include "process.h"
#include "sysfile.h"

using namespace efaprof;

namespace {

constexpr uint64_t kLifeIntervalNs = 250u * 1000 * 1000;
constexpr uint64_t kOtherNamespaceIntervalNs = 2000u * 1000 * 1000; // reads all of /proc
constexpr uint64_t kUnreadyNs = 1000u * 1000 * 1000;                // longer than making a ring takes

uint64_t monotonic_ns() {
    timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    return static_cast<uint64_t>(at.tv_sec) * 1000000000u + static_cast<uint64_t>(at.tv_nsec);
}

uint64_t hash_of(int directory, const char *name) {
    uint64_t hash = 0xcbf29ce484222325u + static_cast<uint64_t>(directory);
    for (; *name != 0; ++name)
        hash = (hash ^ static_cast<unsigned char>(*name)) * 0x100000001b3u;
    return hash;
}

bool is_ring_name(const char *name) {
    const size_t length = strlen(name);
    return length > 5 && length < sizeof(DrainRing::name) && strcmp(name + length - 5, ".ring") == 0;
}

} // namespace

struct efaprof_drain {
    char paths[2][kPathMax]; // ring_dir, spill_dir; empty = none
    int directories[2];      // -1 = not there (yet)
    uint32_t *control;
    RawStore store;
    Viewpoint here;
    DrainRing **rings;
    uint64_t count, room;
    DrainRing **table; // by hash, open addressing; size a power of two
    uint64_t table_size;
    uint64_t seen;
    uint64_t lost_before; // by rings that are gone
    uint64_t slots;
    uint64_t write_errors;
    uint64_t fullest;
    int last_errno;

    bool grow();
    void insert(DrainRing *ring);
    void rebuild_table();
    bool is_known(uint64_t hash, int directory, const char *name) const;
    void add(int directory, const char *name);
    void scan(int which);
    void open_directory(int which);
    void drop_second_if_same();
    void look_at_life(DrainRing &ring, bool now);
    bool visit(DrainRing &ring, bool all);
    void forget_gone();
    bool poll(bool all);
    void remove_ended();
    void remove_directories();
    void fill(efaprof_drain_stats &stats) const;
};

// ---- finding rings ------------------------------------------------------------------------------

void efaprof_drain::insert(DrainRing *ring) {
    uint64_t at = ring->hash & (table_size - 1);
    while (table[at] != nullptr)
        at = (at + 1) & (table_size - 1);
    table[at] = ring;
}

void efaprof_drain::rebuild_table() {
    memset(table, 0, table_size * sizeof *table);
    for (uint64_t i = 0; i < count; ++i)
        insert(rings[i]);
}

bool efaprof_drain::grow() {
    const uint64_t new_room = room == 0 ? 64 : room * 2;
    auto **new_rings = static_cast<DrainRing **>(realloc(rings, new_room * sizeof *rings));
    if (new_rings != nullptr) rings = new_rings;
    auto **new_table = static_cast<DrainRing **>(malloc(new_room * 2 * sizeof *table));
    if (new_rings == nullptr || new_table == nullptr) {
        free(new_table);
        return false;
    }
    free(table);
    table = new_table;
    table_size = new_room * 2;
    room = new_room;
    rebuild_table();
    return true;
}

bool efaprof_drain::is_known(uint64_t hash, int directory, const char *name) const {
    if (table_size == 0) return false;
    for (uint64_t at = hash & (table_size - 1); table[at] != nullptr; at = (at + 1) & (table_size - 1))
        if (table[at]->hash == hash && table[at]->directory == directory && strcmp(table[at]->name, name) == 0)
            return true;
    return false;
}

void efaprof_drain::add(int directory, const char *name) {
    const uint64_t hash = hash_of(directory, name);
    if (is_known(hash, directory, name) || (count == room && !grow())) return;
    auto *ring = static_cast<DrainRing *>(calloc(1, sizeof(DrainRing)));
    if (ring == nullptr) return; // the next scan tries again
    strcpy(ring->name, name);    // fits: is_ring_name
    ring->directory = directory;
    ring->hash = hash;
    ring->seen_ns = monotonic_ns();
    rings[count++] = ring;
    insert(ring);
    ++seen;
}

void efaprof_drain::open_directory(int which) {
    if (directories[which] < 0 && paths[which][0] != 0)
        directories[which] = open(paths[which], O_RDONLY | O_DIRECTORY | O_CLOEXEC);
}

// Both may be given as the run directory's where there is no /dev/shm.
void efaprof_drain::drop_second_if_same() {
    struct stat a, b;
    if (directories[0] < 0 || directories[1] < 0) return;
    if (fstat(directories[0], &a) != 0 || fstat(directories[1], &b) != 0) return;
    if (a.st_dev != b.st_dev || a.st_ino != b.st_ino) return;
    close(directories[1]);
    directories[1] = -1;
    paths[1][0] = 0;
}

void efaprof_drain::scan(int which) {
    open_directory(which);
    if (directories[which] < 0) return;
    const int fd = openat(directories[which], ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *listing = fd < 0 ? nullptr : fdopendir(fd);
    if (listing == nullptr) {
        if (fd >= 0) close(fd);
        return;
    }
    while (const dirent *entry = readdir(listing))
        if (is_ring_name(entry->d_name)) add(directories[which], entry->d_name);
    closedir(listing);
}

// ---- copying ------------------------------------------------------------------------------------

void efaprof_drain::look_at_life(DrainRing &ring, bool at_once) {
    const uint64_t interval = ring.header->pid_ns == here.pid_ns ? kLifeIntervalNs : kOtherNamespaceIntervalNs;
    const uint64_t time = monotonic_ns();
    if (ring.life == Life::dead || (!at_once && time - ring.life_ns < interval)) return;
    ring.life_ns = time;
    ring.life = life_of(here, *ring.header);
}

// false: something could not be written.
bool efaprof_drain::visit(DrainRing &ring, bool all) {
    if (ring.status == RingStatus::unready) ring.open();
    if (ring.status != RingStatus::ready) return true;
    look_at_life(ring, all); // before the head is read: what a dead process published is then all there is
    const bool is_last = ring.life == Life::dead || ring.is_closed();
    if (!ring.look()) return true;
    const uint64_t waiting = ring.head - ring.tail;
    const uint64_t fill = ring.capacity == 0 ? 0 : waiting * 1000 / ring.capacity;
    if (fill > fullest) fullest = fill;
    if (!all && !is_last && fill <= 250) return true;
    store.forget_errno();
    const bool ok = ring.copy(store, &slots);
    if (!ok) {
        ++write_errors;
        last_errno = store.write_errno();
    } else if (is_last && ring.is_copied()) {
        lost_before += ring.lost;
        ring.remove();
    }
    return ok;
}

void efaprof_drain::forget_gone() {
    uint64_t kept = 0;
    for (uint64_t i = 0; i < count; ++i) {
        if (rings[i]->status == RingStatus::gone)
            free(rings[i]);
        else
            rings[kept++] = rings[i];
    }
    const bool changed = kept != count;
    count = kept;
    if (changed) rebuild_table();
}

bool efaprof_drain::poll(bool all) {
    scan(0);
    scan(1);
    fullest = 0;
    bool ok = true;
    for (uint64_t i = 0; i < count; ++i)
        ok = visit(*rings[i], all) && ok;
    forget_gone();
    return ok;
}

void efaprof_drain::fill(efaprof_drain_stats &stats) const {
    stats = {};
    stats.rings = seen;
    stats.slots = slots;
    stats.dropped = lost_before;
    stats.discarded = store.discarded();
    stats.write_errors = write_errors;
    stats.fullest = fullest;
    stats.last_errno = last_errno;
    const uint64_t time = monotonic_ns();
    for (uint64_t i = 0; i < count; ++i) {
        const DrainRing &ring = *rings[i];
        const bool is_stuck = ring.status == RingStatus::unready && time - ring.seen_ns > kUnreadyNs;
        if (ring.status == RingStatus::bad || is_stuck) stats.bad_rings += 1;
        stats.dropped += ring.lost;
        if (ring.status == RingStatus::ready && ring.life != Life::dead) stats.live_rings += 1;
    }
}

// ---- the end ------------------------------------------------------------------------------------

// Rings that their process never finished making hold nothing.
void efaprof_drain::remove_ended() {
    for (uint64_t i = 0; i < count; ++i) {
        DrainRing &ring = *rings[i];
        if (ring.status != RingStatus::unready) continue;
        if (life_by_name(here, ring.name) == Life::dead)
            ring.remove();
        else
            ring.status = RingStatus::bad; // counted, and left alone
    }
    forget_gone();
}

void efaprof_drain::remove_directories() {
    if (count != 0) return;
    for (int which = 0; which < 2; ++which) {
        if (directories[which] < 0) continue;
        unlinkat(directories[which], kControlName, 0);
        rmdir(paths[which]); // stays when it is not empty
    }
}

static void release(efaprof_drain *drain) {
    for (uint64_t i = 0; i < drain->count; ++i) {
        drain->rings[i]->unmap();
        free(drain->rings[i]);
    }
    for (int fd : drain->directories)
        if (fd >= 0) close(fd);
    if (drain->control != nullptr) munmap(drain->control, 4096);
    drain->store.close();
    free(drain->rings);
    free(drain->table);
    free(drain);
}

// ---- C ABI --------------------------------------------------------------------------------------

extern "C" {

efaprof_drain *efaprof_drain_open(const char *ring_dir, const char *spill_dir, const char *raw_dir,
                                  uint64_t max_bytes) {
    auto *drain = static_cast<efaprof_drain *>(calloc(1, sizeof(efaprof_drain)));
    if (drain == nullptr) return nullptr;
    drain->store = RawStore();
    drain->directories[0] = drain->directories[1] = -1;
    const bool fits = Text(drain->paths[0], kPathMax).add(ring_dir).ok() &&
                      Text(drain->paths[1], kPathMax).add(spill_dir != nullptr ? spill_dir : "").ok();
    errno = ENAMETOOLONG;
    if (fits) {
        drain->open_directory(1);
        drain->open_directory(0);
        drain->drop_second_if_same();
    }
    bool ok = fits && (drain->directories[0] >= 0 || drain->directories[1] >= 0);
    for (int fd : drain->directories) // one drain at a time; the kernel unlocks when we die
        ok = ok && (fd < 0 || flock(fd, LOCK_EX | LOCK_NB) == 0);
    ok = ok && drain->store.open(raw_dir, max_bytes);
    if (!ok) {
        const int saved = errno;
        release(drain);
        errno = saved;
        return nullptr;
    }
    drain->here = viewpoint_here();
    drain->control = control_map(ring_dir, spill_dir, true);
    return drain;
}

int efaprof_drain_poll(efaprof_drain *drain, int all, efaprof_drain_stats *stats) {
    const bool ok = drain->poll(all != 0);
    drain->fill(*stats);
    return ok ? 0 : -1;
}

int efaprof_drain_close(efaprof_drain *drain, efaprof_drain_stats *stats) {
    const bool ok = drain->poll(true);
    drain->remove_ended();
    drain->fill(*stats);
    drain->remove_directories();
    release(drain);
    return ok ? 0 : -1;
}

} // extern "C"
