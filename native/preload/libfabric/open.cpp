#include "open.h"

#include "table.h"
#include "tables.h"

#include <rdma/fi_eq.h>

namespace efaprof::ofi {

fid nothing_made;

bool is_recorded(const Opened &opened) {
    return opened.thread.opened == address(opened.object);
}

efaprof_object record_of(const Opened &opened, uint8_t what) {
    efaprof_object record = {};
    record.h = head(opened.t_begin, opened.t_end, EFAPROF_KIND(EFAPROF_SHAPE_OBJECT, what), opened.nest);
    record.fid = address(opened.object);
    record.parent = address(opened.parent);
    return record;
}

void record_now(const Opened &opened, const efaprof_object &record) {
    opened.thread.opened = record.fid;
    write_object(record);
}

bool find_object(uint64_t fid, Object *found) {
    const RegistryLock lock;
    const Object *object = registry_find(fid);
    if (object) *found = *object;
    return object != nullptr;
}

void opened_other(const Opened &opened, const efaprof_object &record) {
    if (!is_recorded(opened)) record_now(opened, record);
    adopt_other(opened.object);
}

namespace {

Object entry_of(const efaprof_object &record, uint32_t kind) {
    Object entry = {};
    entry.fid = record.fid;
    entry.parent = record.parent;
    entry.caps = record.caps;
    entry.name = record.name;
    entry.detail = record.detail;
    entry.kind = kind;
    return entry;
}

void remember(const Object &entry) {
    const RegistryLock lock;
    if (!registry_add(entry)) note_degraded("no memory to remember ", "an object", entry.fid);
}

void describe_info(efaprof_object &record, const fi_info *info) {
    record.caps = info->caps;
    record.mode = info->mode;
    if (info->fabric_attr) record.name = name_of(info->fabric_attr->prov_name);
    if (info->domain_attr) record.detail = name_of(info->domain_attr->name);
    if (info->tx_attr) {
        record.msg_order = info->tx_attr->msg_order;
        record.inject = saturated32(info->tx_attr->inject_size);
        record.extra = info->tx_attr->op_flags;
    }
    if (info->ep_attr) {
        record.ep_type = static_cast<uint32_t>(info->ep_attr->type);
        record.max_msg = info->ep_attr->max_msg_size;
    }
}

// ---- domain
uint32_t address_bytes(const fi_info *info) {
    switch (info->addr_format) {
    case FI_SOCKADDR_IN: return 16;
    case FI_SOCKADDR_IN6: return 28;
    case FI_SOCKADDR_IB: return 48;
    case FI_ADDR_PSMX: return 8;
    case FI_ADDR_PSMX2: return 16;
    case FI_ADDR_IB_UD:
    case FI_ADDR_EFA:
    case FI_ADDR_PSMX3: return 32;
    default: return static_cast<uint32_t>(info->src_addrlen ? info->src_addrlen : info->dest_addrlen);
    }
}

void opened_domain(const Opened &opened, const fi_info *info) {
    if (!is_recorded(opened)) {
        efaprof_object record = record_of(opened, EFAPROF_OBJ_DOMAIN);
        if (info) describe_info(record, info);
        Object entry = entry_of(record, EFAPROF_OBJ_DOMAIN);
        if (info) {
            entry.format = info->addr_format;
            entry.addr_bytes = address_bytes(info);
            entry.has_source = (info->caps & FI_SOURCE) != 0;
        }
        remember(entry);
        record_now(opened, record);
    }
    adopt_domain(reinterpret_cast<fid_domain *>(opened.object));
}

struct DomainProbe {
    template <class... Flags> // domain2 has flags before the context
    static int run(int (*real)(fid_fabric *, fi_info *, fid_domain **, Flags...), fid_fabric *fabric, fi_info *info,
                   fid_domain **domain, Flags... flags) {
        return open_object(
            &fabric->fid, domain, [&] { return real(fabric, info, domain, flags...); },
            [&](const Opened &opened) { opened_domain(opened, info); });
    }
};

// ---- endpoints
// Reads of the domain's queues may say from now on where a message came from.
void expect_sources(uint64_t fid) {
    const RegistryLock lock;
    Object *domain = registry_find(fid);
    if (!domain || domain->has_source) return;
    domain->has_source = 1;
    registry_changed();
}

void opened_ep(const Opened &opened, const fi_info *info) {
    if (!is_recorded(opened)) {
        efaprof_object record = record_of(opened, EFAPROF_OBJ_EP);
        if (info) describe_info(record, info);
        Object entry = entry_of(record, EFAPROF_OBJ_EP);
        if (info && info->tx_attr) entry.tx_flags = info->tx_attr->op_flags;
        if (info && info->rx_attr) entry.rx_flags = info->rx_attr->op_flags;
        remember(entry);
        if (record.caps & FI_SOURCE) expect_sources(record.parent);
        record_now(opened, record);
    }
    adopt_ep(reinterpret_cast<fid_ep *>(opened.object));
}

struct EndpointProbe {
    template <class... Flags> // endpoint2 has flags before the context
    static int run(int (*real)(fid_domain *, fi_info *, fid_ep **, Flags...), fid_domain *domain, fi_info *info,
                   fid_ep **ep, Flags... flags) {
        return open_object(
            &domain->fid, ep, [&] { return real(domain, info, ep, flags...); },
            [&](const Opened &opened) { opened_ep(opened, info); });
    }
};

struct PassiveProbe {
    static int run(int (*real)(fid_fabric *, fi_info *, fid_pep **, void *), fid_fabric *fabric, fi_info *info,
                   fid_pep **pep, void *context) {
        return open_object(
            &fabric->fid, pep, [&] { return real(fabric, info, pep, context); },
            [&](const Opened &opened) {
                efaprof_object record = record_of(opened, EFAPROF_OBJ_PEP);
                if (info) describe_info(record, info);
                opened_other(opened, record);
            });
    }
};

struct SharedReceiveProbe {
    static int run(int (*real)(fid_domain *, fi_rx_attr *, fid_ep **, void *), fid_domain *domain, fi_rx_attr *attr,
                   fid_ep **ep, void *context) {
        return open_object(
            &domain->fid, ep, [&] { return real(domain, attr, ep, context); },
            [&](const Opened &opened) { opened_context(opened, attr); });
    }
};

struct SharedTransmitProbe {
    static int run(int (*real)(fid_domain *, fi_tx_attr *, fid_stx **, void *), fid_domain *domain, fi_tx_attr *attr,
                   fid_stx **stx, void *context) {
        return open_object(
            &domain->fid, stx, [&] { return real(domain, attr, stx, context); },
            [&](const Opened &opened) {
                efaprof_object record = record_of(opened, EFAPROF_OBJ_STX);
                if (attr) record.extra = attr->op_flags;
                opened_other(opened, record);
            });
    }
};

// ---- queues, counters, address vectors
struct CqProbe {
    static int run(int (*real)(fid_domain *, fi_cq_attr *, fid_cq **, void *), fid_domain *domain, fi_cq_attr *attr,
                   fid_cq **cq, void *context) {
        return open_object(
            &domain->fid, cq, [&] { return real(domain, attr, cq, context); },
            [&](const Opened &opened) { opened_cq(opened, attr); });
    }
};

struct CntrProbe {
    static int run(int (*real)(fid_domain *, fi_cntr_attr *, fid_cntr **, void *), fid_domain *domain,
                   fi_cntr_attr *attr, fid_cntr **cntr, void *context) {
        return open_object(
            &domain->fid, cntr, [&] { return real(domain, attr, cntr, context); },
            [&](const Opened &opened) { opened_cntr(opened); });
    }
};

struct AvProbe {
    static int run(int (*real)(fid_domain *, fi_av_attr *, fid_av **, void *), fid_domain *domain, fi_av_attr *attr,
                   fid_av **av, void *context) {
        return open_object(
            &domain->fid, av, [&] { return real(domain, attr, av, context); },
            [&](const Opened &opened) {
                if (!is_recorded(opened)) {
                    const efaprof_object record = record_of(opened, EFAPROF_OBJ_AV);
                    Object entry = entry_of(record, EFAPROF_OBJ_AV), parent;
                    if (find_object(record.parent, &parent)) {
                        entry.format = parent.format;
                        entry.addr_bytes = parent.addr_bytes;
                    }
                    remember(entry);
                    record_now(opened, record);
                }
                adopt_av(reinterpret_cast<fid_av *>(opened.object));
            });
    }
};

struct EqProbe {
    static int run(int (*real)(fid_fabric *, fi_eq_attr *, fid_eq **, void *), fid_fabric *fabric, fi_eq_attr *attr,
                   fid_eq **eq, void *context) {
        return open_object(
            &fabric->fid, eq, [&] { return real(fabric, attr, eq, context); },
            [&](const Opened &opened) {
                efaprof_object record = record_of(opened, EFAPROF_OBJ_EQ);
                opened_other(opened, record);
            });
    }
};

const Hook fabric_hooks[] = {
    EFAPROF_HOOK(fi_ops_fabric, domain, DomainProbe),
    EFAPROF_HOOK(fi_ops_fabric, passive_ep, PassiveProbe),
    EFAPROF_HOOK(fi_ops_fabric, eq_open, EqProbe),
    EFAPROF_HOOK(fi_ops_fabric, domain2, DomainProbe),
};
const Hook domain_hooks[] = {
    EFAPROF_HOOK(fi_ops_domain, av_open, AvProbe),
    EFAPROF_HOOK(fi_ops_domain, cq_open, CqProbe),
    EFAPROF_HOOK(fi_ops_domain, endpoint, EndpointProbe),
    EFAPROF_HOOK(fi_ops_domain, scalable_ep, EndpointProbe),
    EFAPROF_HOOK(fi_ops_domain, cntr_open, CntrProbe),
    EFAPROF_HOOK(fi_ops_domain, stx_ctx, SharedTransmitProbe),
    EFAPROF_HOOK(fi_ops_domain, srx_ctx, SharedReceiveProbe),
    EFAPROF_HOOK(fi_ops_domain, endpoint2, EndpointProbe),
};

TableKind fabric_kind = EFAPROF_TABLE_KIND(fi_ops_fabric, fabric_hooks);
TableKind domain_kind = EFAPROF_TABLE_KIND(fi_ops_domain, domain_hooks);

} // namespace

void patch(const fi_ops_fabric *table) {
    patch_table(fabric_kind, table);
}
void patch(const fi_ops_domain *table) {
    patch_table(domain_kind, table);
}

void opened_fabric(const Opened &opened, const char *provider, const char *name) {
    if (!is_recorded(opened)) {
        efaprof_object record = record_of(opened, EFAPROF_OBJ_FABRIC);
        record.name = name_of(provider);
        record.detail = name_of(name);
        record_now(opened, record);
    }
    adopt_fabric(reinterpret_cast<fid_fabric *>(opened.object));
}

void opened_cq(const Opened &opened, const fi_cq_attr *attr) {
    if (!is_recorded(opened)) {
        efaprof_object record = record_of(opened, EFAPROF_OBJ_CQ);
        // Read after the call: some providers put their choice there. Left open, it is the smallest one.
        record.caps = attr && attr->format != FI_CQ_FORMAT_UNSPEC ? attr->format : FI_CQ_FORMAT_CONTEXT;
        record.mode = attr ? attr->size : 0;
        Object entry = entry_of(record, EFAPROF_OBJ_CQ);
        entry.format = static_cast<uint32_t>(record.caps);
        remember(entry);
        record_now(opened, record);
    }
    adopt_cq(reinterpret_cast<fid_cq *>(opened.object));
}

void opened_cntr(const Opened &opened) {
    if (!is_recorded(opened)) record_now(opened, record_of(opened, EFAPROF_OBJ_CNTR));
    adopt_cntr(reinterpret_cast<fid_cntr *>(opened.object));
}

namespace {

// A context of a scalable endpoint or of a domain: what its own attributes do not say, its parent does.
void opened_context(const Opened &opened, uint64_t caps, uint64_t msg_order, uint64_t inject, const uint64_t *tx_flags,
                    const uint64_t *rx_flags) {
    if (!is_recorded(opened)) {
        const uint32_t kind = kind_of(opened.object);
        efaprof_object record = record_of(opened, static_cast<uint8_t>(kind));
        Object parent = {};
        find_object(record.parent, &parent);
        record.name = parent.name;
        record.detail = parent.detail;
        record.caps = caps ? caps : parent.caps;
        record.msg_order = msg_order;
        record.inject = saturated32(inject);
        record.extra = tx_flags ? *tx_flags : parent.tx_flags;
        Object entry = entry_of(record, kind);
        entry.parent = parent.kind == EFAPROF_OBJ_EP ? parent.parent : record.parent;
        entry.tx_flags = record.extra;
        entry.rx_flags = rx_flags ? *rx_flags : parent.rx_flags;
        remember(entry);
        record_now(opened, record);
    }
    adopt_ep(reinterpret_cast<fid_ep *>(opened.object));
}

} // namespace

void opened_context(const Opened &opened, const fi_tx_attr *attr) {
    if (attr)
        opened_context(opened, attr->caps, attr->msg_order, attr->inject_size, &attr->op_flags, nullptr);
    else
        opened_context(opened, 0, 0, 0, nullptr, nullptr);
}

void opened_context(const Opened &opened, const fi_rx_attr *attr) {
    if (attr)
        opened_context(opened, attr->caps, attr->msg_order, 0, nullptr, &attr->op_flags);
    else
        opened_context(opened, 0, 0, 0, nullptr, nullptr);
}

} // namespace efaprof::ofi
