// Registration of memory.
#include "open.h"
#include "table.h"
#include "tables.h"

namespace efaprof::ofi {
namespace {

constexpr uint64_t kDmabuf = 1ull << 40; // FI_MR_DMABUF of 1.20 and later: attr holds this instead of an iovec
struct Dmabuf {
    int fd;
    uint64_t offset;
    size_t len;
    void *base_addr;
};

void opened_mr(const Opened &opened, uint64_t len, uint64_t access, uint64_t flags, uint32_t iface) {
    efaprof_object record = record_of(opened, EFAPROF_OBJ_MR);
    record.caps = len;
    record.mode = access;
    Object domain;
    if (find_object(record.parent, &domain) && (domain.caps & FI_HMEM))
        record.ep_type = iface; // else older callers have none
    record.inject = (static_cast<uint32_t>(flags) & ~1u) | ((flags & kDmabuf) != 0);
    record.extra = reinterpret_cast<const fid_mr *>(opened.object)->key;
    opened_other(opened, record);
}

uint64_t total_length(const iovec *iov, size_t count) {
    uint64_t sum = 0;
    for (size_t i = 0; iov && i < count; ++i)
        sum += iov[i].iov_len;
    return sum;
}

struct RegProbe {
    static int run(int (*real)(fid *, const void *, size_t, uint64_t, uint64_t, uint64_t, uint64_t, fid_mr **, void *),
                   fid *domain, const void *buf, size_t len, uint64_t access, uint64_t offset, uint64_t key,
                   uint64_t flags, fid_mr **mr, void *context) {
        return open_object(
            domain, mr, [&] { return real(domain, buf, len, access, offset, key, flags, mr, context); },
            [&](const Opened &opened) { opened_mr(opened, len, access, flags, FI_HMEM_SYSTEM); });
    }
};

struct RegvProbe {
    static int run(int (*real)(fid *, const iovec *, size_t, uint64_t, uint64_t, uint64_t, uint64_t, fid_mr **, void *),
                   fid *domain, const iovec *iov, size_t count, uint64_t access, uint64_t offset, uint64_t key,
                   uint64_t flags, fid_mr **mr, void *context) {
        return open_object(
            domain, mr, [&] { return real(domain, iov, count, access, offset, key, flags, mr, context); },
            [&](const Opened &opened) { opened_mr(opened, total_length(iov, count), access, flags, FI_HMEM_SYSTEM); });
    }
};

struct RegattrProbe {
    static int run(int (*real)(fid *, const fi_mr_attr *, uint64_t, fid_mr **), fid *domain, const fi_mr_attr *attr,
                   uint64_t flags, fid_mr **mr) {
        return open_object(
            domain, mr, [&] { return real(domain, attr, flags, mr); },
            [&](const Opened &opened) {
                const uint64_t len = flags & kDmabuf ? reinterpret_cast<const Dmabuf *>(attr->mr_iov)->len
                                                     : total_length(attr->mr_iov, attr->iov_count);
                opened_mr(opened, len, attr->access, flags, static_cast<uint32_t>(attr->iface));
            });
    }
};

const Hook mr_hooks[] = {
    EFAPROF_HOOK(fi_ops_mr, reg, RegProbe),
    EFAPROF_HOOK(fi_ops_mr, regv, RegvProbe),
    EFAPROF_HOOK(fi_ops_mr, regattr, RegattrProbe),
};

TableKind mr_kind = EFAPROF_TABLE_KIND(fi_ops_mr, mr_hooks);

} // namespace

void patch(const fi_ops_mr *table) {
    patch_table(mr_kind, table);
}

} // namespace efaprof::ofi
