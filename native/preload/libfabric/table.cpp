#include "table.h"

#include "record.h"
#include "registry.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <unistd.h>

namespace efaprof::ofi {
namespace {

constexpr unsigned kNone = ~0u;

void **member(const void *table, const Hook &hook) {
    return reinterpret_cast<void **>(static_cast<char *>(const_cast<void *>(table)) + hook.offset);
}

bool is_ours(const TableKind &kind, const Hook &hook, const void *function) {
    for (unsigned slot = 0; slot < kind.slots; ++slot)
        if (hook.by_slot[slot] == function) return true;
    return false;
}

unsigned slot_of(const TableKind &kind, const void *table) {
    for (unsigned slot = 0; slot < kind.slots; ++slot)
        if (kind.tables[slot] == table) return slot;
    return kNone;
}

// A slot whose table is gone (its library was unloaded, its memory holds something else) may serve another table:
// nobody can reach its functions any more. The memory may be unmapped, so the kernel reads it for us.
bool is_abandoned(const TableKind &kind, unsigned slot) {
    for (unsigned i = 0; i < kind.hook_count; ++i) {
        void *now = nullptr;
        const iovec here = {&now, sizeof now}, there = {member(kind.tables[slot], kind.hooks[i]), sizeof now};
        if (process_vm_readv(getpid(), &here, 1, &there, 1, 0) != sizeof now) {
            if (errno == EFAULT) continue;
            return false; // not allowed to look: keep it
        }
        if (now == kind.hooks[i].by_slot[slot]) return false;
    }
    return true;
}

unsigned take_slot(TableKind &kind, const void *table) {
    unsigned slot = slot_of(kind, nullptr);
    for (unsigned other = 0; slot == kNone && other < kind.slots; ++other)
        if (is_abandoned(kind, other)) slot = other;
    if (slot != kNone) {
        memset(static_cast<char *>(kind.originals) + slot * kind.table_bytes, 0, kind.table_bytes);
        kind.tables[slot] = const_cast<void *>(table);
    }
    return slot;
}

// Finds the mapping of `address` in /proc/self/maps; its PROT_ bits, or -1. Reads with a small buffer and keeps what it
// needs of a line while it passes: no allocation here.
int protection_of(uintptr_t address) {
    const int fd = open("/proc/self/maps", O_RDONLY | O_CLOEXEC);
    if (fd < 0) return -1;
    char buffer[4096];
    uintptr_t bounds[2] = {0, 0};
    unsigned field = 0; // 0 start, 1 end, 2..5 permissions, 6 rest of the line
    int prot = 0, found = -1;
    for (ssize_t bytes; found < 0 && (bytes = read(fd, buffer, sizeof buffer)) > 0;) {
        for (ssize_t i = 0; i < bytes && found < 0; ++i) {
            const char c = buffer[i];
            if (c == '\n') {
                bounds[0] = bounds[1] = 0;
                field = 0;
                prot = 0;
            } else if (field < 2) {
                if (c == '-' || c == ' ')
                    ++field;
                else
                    bounds[field] = bounds[field] * 16 + static_cast<uintptr_t>(c <= '9' ? c - '0' : c - 'a' + 10);
            } else if (field < 6) {
                prot |= c == 'r' ? PROT_READ : c == 'w' ? PROT_WRITE : c == 'x' ? PROT_EXEC : 0;
                if (++field == 6 && bounds[0] <= address && address < bounds[1]) found = prot;
            }
        }
    }
    close(fd);
    return found;
}

// Makes a const table writable for as long as it lives. A table is smaller than a page, so two pages hold it.
class Writable {
public:
    Writable(const void *table, size_t bytes) {
        const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
        const auto at = reinterpret_cast<uintptr_t>(table);
        for (uintptr_t start = at & ~(page - 1); start < at + bytes && ok_; start += page) {
            const int protection = protection_of(start);
            if (protection >= 0 && (protection & PROT_WRITE)) continue;
            void *const address = reinterpret_cast<void *>(start);
            ok_ = protection >= 0 && count_ < 2 && mprotect(address, page, protection | PROT_WRITE) == 0;
            if (ok_) changed_[count_++] = {address, page, protection};
        }
    }
    ~Writable() {
        while (count_-- > 0)
            mprotect(changed_[count_].start, changed_[count_].bytes, changed_[count_].protection);
    }
    Writable(const Writable &) = delete;
    Writable &operator=(const Writable &) = delete;
    bool ok() const { return ok_; }

private:
    struct Page {
        void *start;
        size_t bytes;
        int protection;
    };
    Page changed_[2] = {};
    int count_ = 0;
    bool ok_ = true;
};

size_t size_of(const TableKind &kind, const void *table) {
    return kind.known_bytes ? kind.known_bytes : *static_cast<const size_t *>(table);
}

bool has(const TableKind &kind, const void *table, const Hook &hook) {
    return hook.offset + sizeof(void *) <= size_of(kind, table) && *member(table, hook);
}

bool wants(const TableKind &kind, const void *table) {
    for (unsigned i = 0; i < kind.hook_count; ++i)
        if (has(kind, table, kind.hooks[i]) && !is_ours(kind, kind.hooks[i], *member(table, kind.hooks[i])))
            return true;
    return false;
}

// Once a kind: the program opens such objects again and again.
void complain(TableKind &kind, const char *what, uint64_t value) {
    if (!kind.complained) note_degraded(what, kind.name, value);
    kind.complained = true;
}

} // namespace

bool is_patched(const TableKind &kind, const void *table) {
    return table && has(kind, table, kind.hooks[0]) && is_ours(kind, kind.hooks[0], *member(table, kind.hooks[0]));
}

void patch_table(TableKind &kind, const void *table) {
    if (!table || !wants(kind, table)) return;
    unsigned slot = slot_of(kind, table);
    if (slot == kNone) slot = take_slot(kind, table);
    if (slot == kNone) return complain(kind, "no slot left for another ", kind.slots);
    const size_t bytes = size_of(kind, table);
    const Writable writable(table, bytes < kind.table_bytes ? bytes : kind.table_bytes);
    if (!writable.ok()) return complain(kind, "cannot write to ", reinterpret_cast<uintptr_t>(table));
    char *originals = static_cast<char *>(kind.originals) + slot * kind.table_bytes;
    for (unsigned i = 0; i < kind.hook_count; ++i) {
        const Hook &hook = kind.hooks[i];
        if (!has(kind, table, hook)) continue;
        void **here = member(table, hook);
        void *function = __atomic_load_n(here, __ATOMIC_RELAXED);
        if (is_ours(kind, hook, function)) continue; // also in a copy of a patched table: that slot serves it
        __atomic_store_n(reinterpret_cast<void **>(originals + hook.offset), function, __ATOMIC_RELEASE);
        __atomic_store_n(here, hook.by_slot[slot], __ATOMIC_RELEASE);
    }
}

} // namespace efaprof::ofi
