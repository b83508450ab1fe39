// Calls that bind, enable, change or close an object.
#include "open.h"
#include "table.h"
#include "tables.h"

#include <string.h>

namespace efaprof::ofi {
namespace {

void adopt_again(fid *object) {
    if (const uint32_t kind = kind_of(object); kind == EFAPROF_OBJ_EP || kind == EFAPROF_OBJ_SRX)
        adopt_ep(reinterpret_cast<fid_ep *>(object));
}

// ---- close
void record_closed(uint32_t kind, uint64_t fid, uint64_t t, uint8_t nest) {
    efaprof_object record = {};
    record.h = head(t, t, EFAPROF_KIND(EFAPROF_SHAPE_OBJECT, kind | EFAPROF_OBJ_CLOSED), nest);
    record.fid = fid;
    write_object(record);
}

struct CloseProbe {
    static int run(int (*real)(fid *), fid *object) {
        Call call(object);
        if (!call) return real(object);
        Thread &thread = call.thread();
        const uint32_t kind = kind_of(object);
        const uint64_t fid = address(object);
        Object was = {};
        bool known;
        {
            const ErrnoKept kept;
            if (kind == EFAPROF_OBJ_CQ) flush_idle_everywhere(fid);
            if (kind == EFAPROF_OBJ_EP || kind == EFAPROF_OBJ_SRX) flush_retries(thread, fid);
            if (kind == EFAPROF_OBJ_CNTR) registry_changed();
            const RegistryLock lock;
            known = registry_remove(fid, &was);
        }
        // Stamped and forgotten before the call: as soon as the provider gives the memory back, another thread may
        // open an object at this address, and the record of that must not be older.
        const uint64_t t = now();
        const int ret = real(object);
        call.leave();
        const ErrnoKept kept;
        if (ret == 0) {
            if (thread.opened == fid) thread.opened = 0;
            if (kind) record_closed(kind, fid, t, call.nest());
        } else if (known) {
            const RegistryLock lock;
            registry_add(was);
        }
        return ret;
    }
};

// ---- bind
struct BindProbe {
    static int run(int (*real)(fid *, fid *, uint64_t), fid *object, fid *bound, uint64_t flags) {
        Call call(object);
        if (!call) return real(object, bound, flags);
        const uint64_t t_begin = now();
        const int ret = real(object, bound, flags);
        const uint64_t t_end = now();
        call.leave();
        if (ret == 0 && bound) {
            const ErrnoKept kept;
            write_bind(address(object), address(bound), static_cast<uint8_t>(kind_of(bound)), flags, t_begin, t_end);
            adopt_again(object);
        }
        return ret;
    }
};

// ---- control
void took_flags(uint64_t ep, uint64_t flags) {
    const RegistryLock lock;
    Object *object = registry_find(ep);
    if (!object) return;
    (flags & FI_RECV ? object->rx_flags : object->tx_flags) = flags & ~(FI_TRANSMIT | FI_RECV);
    registry_changed();
}

// An alias is another fid of the same endpoint, with default flags of its own.
void made_alias(const Call &call, Thread &thread, const fid *object, const struct fi_alias &alias, uint64_t t_begin,
                uint64_t t_end) {
    if (kind_of(object) != EFAPROF_OBJ_EP || !alias.fid || !*alias.fid) return;
    Object entry = {};
    {
        const RegistryLock lock;
        if (const Object *original = registry_find(address(object))) entry = *original;
    }
    entry.kind = EFAPROF_OBJ_EP;
    entry.fid = address(*alias.fid);
    const bool receives = alias.flags & FI_RECV;
    (receives ? entry.rx_flags : entry.tx_flags) = alias.flags & ~(FI_TRANSMIT | FI_RECV);
    efaprof_object record = {};
    record.h = head(t_begin, t_end, EFAPROF_KIND(EFAPROF_SHAPE_OBJECT, EFAPROF_OBJ_EP), call.nest());
    record.fid = entry.fid;
    record.parent = address(object);
    record.name = entry.name;
    record.detail = entry.detail;
    record.caps = entry.caps;
    record.extra = entry.tx_flags;
    {
        const RegistryLock lock;
        registry_add(entry);
    }
    thread.opened = entry.fid;
    write_object(record);
    adopt_ep(reinterpret_cast<fid_ep *>(*alias.fid));
}

struct ControlProbe {
    static int run(int (*real)(fid *, int, void *), fid *object, int command, void *argument) {
        Call call(object);
        if (!call) return real(object, command, argument);
        const uint64_t flags = command == FI_SETOPSFLAG && argument ? *static_cast<uint64_t *>(argument) : 0;
        const uint64_t t_begin = now();
        const int ret = real(object, command, argument);
        const uint64_t t_end = now();
        call.leave();
        if (ret != 0) return ret;
        const ErrnoKept kept;
        if (command == FI_ENABLE) adopt_again(object);
        if (command == FI_SETOPSFLAG && flags) took_flags(address(object), flags);
        if (command == FI_ALIAS && argument)
            made_alias(call, call.thread(), object, *static_cast<struct fi_alias *>(argument), t_begin, t_end);
        return ret;
    }
};

// ---- a provider's extensions
struct OpsOpenProbe {
    static int run(int (*real)(fid *, const char *, uint64_t, void **, void *), fid *object, const char *name,
                   uint64_t flags, void **ops, void *context) {
        Call call(object);
        if (!call) return real(object, name, flags, ops, context);
        const int ret = real(object, name, flags, ops, context);
        call.leave();
        if (ret == 0 && name && ops && *ops) {
            const ErrnoKept kept;
            opened_ops(object, name, *ops);
        }
        return ret;
    }
};

// ---- address vectors
constexpr uint8_t kInsert = 1, kRemove = 2; // `what` of AV records
constexpr int kMostAddresses = 4096;        // recorded of one call: more would push operations out of the ring

void inserted(const fid_av *av, const void *addr, int count, const fi_addr_t *fi_addr, uint64_t t) {
    Object entry = {};
    {
        const RegistryLock lock;
        Object *object = registry_find(address(av));
        if (object) {
            entry = *object;
            object->inserted += static_cast<uint64_t>(count);
        }
    }
    if (count > kMostAddresses) note_info("addresses of one fi_av_insert not recorded", "", count - kMostAddresses);
    const char *at = static_cast<const char *>(addr);
    for (int i = 0; i < count && i < kMostAddresses; ++i) {
        const auto bytes = static_cast<uint32_t>(entry.format == FI_ADDR_STR ? strlen(at) + 1 : entry.addr_bytes);
        // Without an array of fi_addr_t the vector is a table, numbered as inserted.
        const fi_addr_t number = fi_addr ? fi_addr[i] : entry.inserted + static_cast<uint64_t>(i);
        if (number != FI_ADDR_NOTAVAIL) write_av(address(av), kInsert, number, at, bytes, t);
        at += bytes;
    }
}

struct InsertProbe {
    static int run(int (*real)(fid_av *, const void *, size_t, fi_addr_t *, uint64_t, void *), fid_av *av,
                   const void *addr, size_t count, fi_addr_t *fi_addr, uint64_t flags, void *context) {
        Call call(av);
        if (!call) return real(av, addr, count, fi_addr, flags, context);
        const int ret = real(av, addr, count, fi_addr, flags, context);
        call.leave();
        if (ret > 0 && addr) { // the number of addresses; 0 when the vector tells through an event queue
            const ErrnoKept kept;
            inserted(av, addr, static_cast<int>(count), fi_addr, now());
        }
        return ret;
    }
};

// Addresses by name: the provider resolves them, and what they became is looked up in its vector.
void inserted_names(fid_av *av, uint64_t first, size_t count, const fi_addr_t *fi_addr) {
    const uint64_t t = now();
    for (size_t i = 0; i < count && i < kMostAddresses; ++i) {
        const fi_addr_t number = fi_addr ? fi_addr[i] : first + i;
        if (number == FI_ADDR_NOTAVAIL) continue;
        char resolved[256];
        size_t bytes = sizeof resolved;
        if (!FI_CHECK_OP(av->ops, struct fi_ops_av, lookup) || av->ops->lookup(av, number, resolved, &bytes) != 0)
            bytes = 0;
        write_av(address(av), kInsert, number, resolved, static_cast<uint32_t>(bytes), t);
    }
}

// Runs real(), which inserts up to `count` addresses by name, and says how many those were.
template <class Real> int insert_names(fid_av *av, size_t count, const fi_addr_t *fi_addr, Real real) {
    Call call(av);
    if (!call) return real();
    const int ret = real();
    if (ret > 0) {
        const ErrnoKept kept;
        uint64_t first = 0;
        {
            const RegistryLock lock;
            if (Object *object = registry_find(address(av))) {
                first = object->inserted;
                object->inserted += count;
            }
        }
        inserted_names(av, first, count, fi_addr); // while we are its innermost call: the look-ups are ours
    }
    call.leave();
    return ret;
}

struct InsertServiceProbe {
    static int run(int (*real)(fid_av *, const char *, const char *, fi_addr_t *, uint64_t, void *), fid_av *av,
                   const char *node, const char *service, fi_addr_t *fi_addr, uint64_t flags, void *context) {
        return insert_names(av, 1, fi_addr, [&] { return real(av, node, service, fi_addr, flags, context); });
    }
};

struct InsertSymmetricProbe {
    static int run(int (*real)(fid_av *, const char *, size_t, const char *, size_t, fi_addr_t *, uint64_t, void *),
                   fid_av *av, const char *node, size_t nodes, const char *service, size_t services, fi_addr_t *fi_addr,
                   uint64_t flags, void *context) {
        return insert_names(av, nodes * services, fi_addr,
                            [&] { return real(av, node, nodes, service, services, fi_addr, flags, context); });
    }
};

struct RemoveProbe {
    static int run(int (*real)(fid_av *, fi_addr_t *, size_t, uint64_t), fid_av *av, fi_addr_t *fi_addr, size_t count,
                   uint64_t flags) {
        Call call(av);
        if (!call) return real(av, fi_addr, count, flags);
        const int ret = real(av, fi_addr, count, flags);
        call.leave();
        if (ret == 0 && fi_addr) {
            const ErrnoKept kept;
            const uint64_t t = now();
            for (size_t i = 0; i < count && i < kMostAddresses; ++i)
                write_av(address(av), kRemove, fi_addr[i], nullptr, 0, t);
        }
        return ret;
    }
};

const Hook fid_hooks[] = {
    EFAPROF_HOOK_OF(fi_ops, kFidSlots, close, CloseProbe),
    EFAPROF_HOOK_OF(fi_ops, kFidSlots, bind, BindProbe),
    EFAPROF_HOOK_OF(fi_ops, kFidSlots, control, ControlProbe),
    EFAPROF_HOOK_OF(fi_ops, kFidSlots, ops_open, OpsOpenProbe),
};
const Hook av_hooks[] = {
    EFAPROF_HOOK(fi_ops_av, insert, InsertProbe),
    EFAPROF_HOOK(fi_ops_av, insertsvc, InsertServiceProbe),
    EFAPROF_HOOK(fi_ops_av, insertsym, InsertSymmetricProbe),
    EFAPROF_HOOK(fi_ops_av, remove, RemoveProbe),
};

TableKind fid_kind = EFAPROF_TABLE_KIND_OF(fi_ops, kFidSlots, fid_hooks);
TableKind av_kind = EFAPROF_TABLE_KIND(fi_ops_av, av_hooks);

} // namespace

void patch(const fi_ops *table) {
    patch_table(fid_kind, table);
}
bool closes_are_seen(const fi_ops *table) {
    return is_patched(fid_kind, table);
}
void patch(const fi_ops_av *table) {
    patch_table(av_kind, table);
}

int SetoptProbe::run(int (*real)(fid *, int, int, const void *, size_t), fid *ep, int level, int name,
                     const void *value, size_t bytes) {
    Call call(ep);
    if (!call) return real(ep, level, name, value, bytes);
    const int ret = real(ep, level, name, value, bytes);
    call.leave();
    if (ret == 0) {
        const ErrnoKept kept;
        adopt_again(ep);
    }
    return ret;
}

} // namespace efaprof::ofi
