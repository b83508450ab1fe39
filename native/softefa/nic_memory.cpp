// Moving payload between processes: the ranks' memory is read and written in place, as a NIC's DMA would. Memory that
// a rank maps from a file we map as well, and copying is a memcpy; the rest goes through process_vm_readv/writev, as
// many pieces a call as there are.
#include "nic.h"

#include <errno.h>
#include <setjmp.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>

namespace softefa {
namespace {

constexpr int kIovs = kMoves * kSpans;
alignas(64) uint8_t arena[kMoveBytes];

// A rank may truncate a file that we map: touching it then raises SIGBUS here, which must be its fault, not our end.
sigjmp_buf bus_return;
volatile sig_atomic_t copying;

void on_bus(int number) {
    if (copying) siglongjmp(bus_return, 1);
    signal(number, SIG_DFL);
    raise(number);
}

bool copy_guarded(uint8_t *to, const uint8_t *from, uint64_t bytes) {
    if (sigsetjmp(bus_return, 0) != 0) {
        copying = 0;
        return false;
    }
    copying = 1;
    memcpy(to, from, bytes);
    copying = 0;
    return true;
}

bool all_here(const Span *spans, uint32_t count) {
    for (uint32_t i = 0; i < count; ++i)
        if (spans[i].here == nullptr) return false;
    return true;
}

bool copy_in(Copy &c) { // from mapped memory to the arena
    uint8_t *to = c.staged;
    for (uint32_t i = 0; i < c.sources; ++i) {
        if (!copy_guarded(to, c.source[i].here, c.source[i].length)) return false;
        to += c.source[i].length;
    }
    return true;
}

bool copy_out(Copy &c) {
    const uint8_t *from = c.staged;
    for (uint32_t i = 0; i < c.targets; ++i) {
        if (!copy_guarded(c.target[i].here, from, c.target[i].length)) return false;
        from += c.target[i].length;
    }
    return true;
}

// One call for all of `picked`, which belong to one process; when it did not move everything, one call each.
void call_kernel(Copy *copies[], int count, pid_t pid, bool write) {
    iovec local[kMoves], remote[kIovs];
    int remotes = 0;
    ssize_t total = 0;
    for (int i = 0; i < count; ++i) {
        const Copy &c = *copies[i];
        local[i] = {c.staged, c.bytes};
        total += static_cast<ssize_t>(c.bytes);
        const Span *spans = write ? c.target : c.source;
        for (uint32_t s = 0; s < (write ? c.targets : c.sources); ++s)
            remote[remotes++] = {reinterpret_cast<void *>(spans[s].addr), spans[s].length};
    }
    const auto move = write ? process_vm_writev : process_vm_readv;
    const ssize_t moved =
        move(pid, local, static_cast<unsigned long>(count), remote, static_cast<unsigned long>(remotes), 0);
    if (moved == total) return;
    if (count > 1) {
        for (int i = 0; i < count; ++i)
            call_kernel(copies + i, 1, pid, write);
        return;
    }
    const bool gone = moved < 0 && errno == ESRCH;
    copies[0]->result =
        write ? (gone ? Copied::TargetGone : Copied::TargetFault) : (gone ? Copied::SourceGone : Copied::SourceFault);
}

void by_kernel(Copy copies[], int count, bool write) {
    bool taken[kMoves] = {};
    for (int i = 0; i < count; ++i) {
        Copy &first = copies[i];
        const bool mapped = write ? all_here(first.target, first.targets)
                                  : first.inline_data != nullptr || all_here(first.source, first.sources);
        if (taken[i] || mapped || first.result != Copied::Yes) continue;
        const pid_t pid = write ? first.to : first.from;
        Copy *group[kMoves];
        int grouped = 0;
        for (int j = i; j < count; ++j) {
            Copy &c = copies[j];
            if (taken[j] || c.result != Copied::Yes || (write ? c.to : c.from) != pid) continue;
            if (write ? all_here(c.target, c.targets) : c.inline_data != nullptr || all_here(c.source, c.sources))
                continue;
            taken[j] = true;
            group[grouped++] = &c;
        }
        call_kernel(group, grouped, pid, write);
    }
}

} // namespace

void memory_open() {
    struct sigaction action = {};
    action.sa_handler = on_bus;
    action.sa_flags = SA_NODEFER;
    sigaction(SIGBUS, &action, nullptr);
}

uint32_t span_slice(const Span *spans, uint32_t count, uint64_t skip, uint64_t length, Span out[]) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < count && length > 0; ++i) {
        if (skip >= spans[i].length) {
            skip -= spans[i].length;
            continue;
        }
        const uint64_t here = spans[i].length - skip;
        const uint64_t take = here < length ? here : length;
        out[n++] = {spans[i].addr + skip, take, spans[i].here != nullptr ? spans[i].here + skip : nullptr};
        skip = 0;
        length -= take;
    }
    return n;
}

void memory_move(Copy copies[], int count) {
    uint8_t *at = arena;
    for (int i = 0; i < count; ++i) {
        Copy &c = copies[i];
        c.staged = at;
        c.result = Copied::Yes;
        at += c.bytes;
        if (c.inline_data != nullptr)
            memcpy(c.staged, c.inline_data, c.bytes);
        else if (all_here(c.source, c.sources) && !copy_in(c))
            c.result = Copied::SourceFault;
    }
    by_kernel(copies, count, false);
    for (int i = 0; i < count; ++i) {
        Copy &c = copies[i];
        // The bit that arrives flipped lies in the last byte: headers of a protocol above us stand first.
        if (c.flip >= 0 && c.bytes > 0) c.staged[c.bytes - 1] ^= static_cast<uint8_t>(1u << (c.flip & 7));
        if (c.result == Copied::Yes && all_here(c.target, c.targets) && !copy_out(c)) c.result = Copied::TargetFault;
    }
    by_kernel(copies, count, true);
}

bool memory_add(uint64_t *word, uint64_t amount, uint64_t mask) {
    if (sigsetjmp(bus_return, 0) != 0) {
        copying = 0;
        return false;
    }
    copying = 1;
    uint64_t old = __atomic_load_n(word, __ATOMIC_RELAXED);
    while (!__atomic_compare_exchange_n(word, &old, (old + amount) & mask, false, __ATOMIC_RELEASE, __ATOMIC_RELAXED)) {
    }
    copying = 0;
    return true;
}

bool memory_probe(pid_t pid, uint64_t addr, uint64_t expected) {
    uint64_t found = 0;
    const iovec local = {&found, sizeof found};
    const iovec remote = {reinterpret_cast<void *>(addr), sizeof found};
    return process_vm_readv(pid, &local, 1, &remote, 1, 0) == sizeof found && found == expected;
}

} // namespace softefa
