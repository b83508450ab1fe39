// Moving payload between processes: the ranks' memory is read and written in place, as a NIC's DMA would.
#include "nic.h"

#include <errno.h>
#include <string.h>
#include <sys/uio.h>

namespace softefa {
namespace {

constexpr uint64_t kBounce = 1u << 20;
constexpr int kIovs = 8;
alignas(64) uint8_t bounce[kBounce];

// The iovecs of `length` bytes after `skip` in the spans; how many.
int slice(const Span *spans, uint32_t count, uint64_t skip, uint64_t length, iovec out[]) {
    int n = 0;
    for (uint32_t i = 0; i < count && length > 0 && n < kIovs; ++i) {
        if (skip >= spans[i].length) {
            skip -= spans[i].length;
            continue;
        }
        const uint64_t here = spans[i].length - skip;
        const uint64_t take = here < length ? here : length;
        out[n++] = {reinterpret_cast<void *>(spans[i].addr + skip), take};
        skip = 0;
        length -= take;
    }
    return n;
}

enum class Moved { All, Fault, Gone };
Moved move(pid_t pid, const iovec *remote, int remotes, uint64_t length, bool write) {
    const iovec local = {bounce, length};
    const ssize_t n = write ? process_vm_writev(pid, &local, 1, remote, static_cast<unsigned long>(remotes), 0)
                            : process_vm_readv(pid, &local, 1, remote, static_cast<unsigned long>(remotes), 0);
    if (n == static_cast<ssize_t>(length)) return Moved::All;
    return n < 0 && errno == ESRCH ? Moved::Gone : Moved::Fault;
}

Copied put(pid_t to, const Span *target, uint32_t targets, uint64_t skip, uint64_t length) {
    iovec out[kIovs];
    const Moved moved = move(to, out, slice(target, targets, skip, length, out), length, true);
    if (moved == Moved::All) return Copied::Yes;
    return moved == Moved::Gone ? Copied::TargetGone : Copied::TargetFault;
}

// The bit that arrives flipped lies in the last byte: headers of a protocol above us stand first.
void flip_in(uint64_t length, int flip_bit) {
    if (flip_bit >= 0 && length > 0) bounce[length - 1] ^= static_cast<uint8_t>(1u << (flip_bit & 7));
}

} // namespace

Copied memory_copy(pid_t from, const Span *source, uint32_t sources, uint64_t skip, pid_t to, const Span *target,
                   uint32_t targets, uint64_t target_skip, uint64_t length, int flip_bit) {
    while (length > 0) {
        const uint64_t step = length < kBounce ? length : kBounce;
        iovec in[kIovs];
        const Moved moved = move(from, in, slice(source, sources, skip, step, in), step, false);
        if (moved != Moved::All) return moved == Moved::Gone ? Copied::SourceGone : Copied::SourceFault;
        if (step == length) flip_in(step, flip_bit);
        const Copied copied = put(to, target, targets, target_skip, step);
        if (copied != Copied::Yes) return copied;
        skip += step;
        target_skip += step;
        length -= step;
    }
    return Copied::Yes;
}

Copied memory_put(const uint8_t *bytes, uint64_t length, pid_t to, const Span *target, uint32_t targets,
                  uint64_t target_skip, int flip_bit) {
    if (length == 0) return Copied::Yes;
    memcpy(bounce, bytes, length);
    flip_in(length, flip_bit);
    return put(to, target, targets, target_skip, length);
}

bool memory_probe(pid_t pid, uint64_t addr, uint64_t expected) {
    uint64_t found = 0;
    const iovec local = {&found, sizeof found};
    const iovec remote = {reinterpret_cast<void *>(addr), sizeof found};
    return process_vm_readv(pid, &local, 1, &remote, 1, 0) == sizeof found && found == expected;
}

} // namespace softefa
