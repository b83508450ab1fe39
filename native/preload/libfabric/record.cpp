#include "record.h"

#include <rdma/fabric.h>
#include <rdma/fi_domain.h>
#include <string.h>

namespace efaprof::ofi {
namespace {

template <class Record> Record *reserve(uint32_t slots = sizeof(Record) / EFAPROF_SLOT_BYTES) {
    return static_cast<Record *>(efaprof::reserve(slots));
}

template <class Record> void publish(Record *record, uint32_t slots = sizeof(Record) / EFAPROF_SLOT_BYTES) {
    efaprof::publish(record, slots);
}

// The flags that took effect: those given, or the endpoint's defaults with what the function itself implies.
uint32_t effective_flags(Thread &thread, const Op &op) {
    const auto given = static_cast<uint32_t>(op.flags);
    switch (op.defaults) {
    case Defaults::kNone: return given;
    case Defaults::kTransmit: return ep_seen(thread, op.ep).tx_flags | given;
    case Defaults::kReceive: return ep_seen(thread, op.ep).rx_flags | given;
    case Defaults::kInject: break;
    }
    return (ep_seen(thread, op.ep).tx_flags & ~static_cast<uint32_t>(FI_COMPLETION)) | given;
}

size_t entry_bytes(uint8_t format) {
    switch (format) {
    case FI_CQ_FORMAT_CONTEXT: return sizeof(fi_cq_entry);
    case FI_CQ_FORMAT_MSG: return sizeof(fi_cq_msg_entry);
    case FI_CQ_FORMAT_DATA: return sizeof(fi_cq_data_entry);
    case FI_CQ_FORMAT_TAGGED: return sizeof(fi_cq_tagged_entry);
    default: return 0;
    }
}

// The formats share their beginnings: context | flags, len | buf, data | tag.
efaprof_cqe decode(const unsigned char *entry, uint8_t format, uint64_t source) {
    efaprof_cqe cqe = {0, source, 0, 0, 0, 0, 0};
    if (format >= FI_CQ_FORMAT_DATA) {
        const auto *data = reinterpret_cast<const fi_cq_data_entry *>(entry);
        if (data->flags & FI_REMOTE_CQ_DATA) cqe.data = static_cast<uint32_t>(data->data);
    }
    if (format >= FI_CQ_FORMAT_MSG) {
        const auto *msg = reinterpret_cast<const fi_cq_msg_entry *>(entry);
        cqe.flags = static_cast<uint32_t>(msg->flags);
        cqe.len = saturated32(msg->len);
    }
    cqe.ctx = reinterpret_cast<uint64_t>(reinterpret_cast<const fi_cq_entry *>(entry)->op_context);
    return cqe;
}

void write_note(uint8_t what, const char *first, const char *second, uint64_t value) {
    char text[EFAPROF_NAME_MAX];
    size_t bytes = 0;
    for (; *first && bytes < sizeof text; ++first)
        text[bytes++] = *first;
    for (; *second && bytes < sizeof text; ++second)
        text[bytes++] = *second;
    const uint64_t id = name(text, bytes);
    const uint64_t t = now();
    if (auto *note = reserve<efaprof_note>()) {
        *note = {head(t, t, EFAPROF_KIND(EFAPROF_SHAPE_NOTE, what), 0), id, value};
        publish(note);
    }
}

} // namespace

void write_op(Thread &thread, const Op &op, uint64_t t_begin, uint64_t t_end, int64_t ret, uint32_t eagain,
              uint8_t nest) {
    const uint32_t flags = effective_flags(thread, op);
    auto *record = reserve<efaprof_op>();
    if (!record) return;
    record->h = head(t_begin, t_end, EFAPROF_KIND(EFAPROF_SHAPE_OP, op.what), static_cast<uint16_t>(ret));
    record->ep = op.ep;
    record->ctx = op.ctx;
    record->fi_addr = op.fi_addr;
    record->raddr = op.raddr;
    record->len = saturated32(op.len);
    record->imm = static_cast<uint32_t>(op.data);
    record->flags = flags;
    record->eagain = saturated16(eagain);
    record->depth = 0;
    record->nest = nest;
    publish(record);
}

void write_cq(CqSeen &seen, const CqRead &read) {
    const size_t bytes = entry_bytes(seen.format);
    const auto *entry = static_cast<const unsigned char *>(read.entries);
    for (int64_t done = 0; done < read.count;) {
        const int64_t left = read.count - done;
        const auto n = static_cast<uint32_t>(left < EFAPROF_CQ_MAX ? left : EFAPROF_CQ_MAX);
        if (auto *record = reserve<efaprof_cq>(1 + n)) {
            const uint16_t kind = EFAPROF_KIND(EFAPROF_SHAPE_CQ, read.what);
            const uint32_t flags = seen.format | static_cast<uint32_t>(read.nest) << 8;
            *record = {head(read.t_begin, read.t_end, kind, static_cast<uint16_t>(n)), seen.fid, seen.empties, flags};
            auto *cqe = reinterpret_cast<efaprof_cqe *>(record + 1);
            for (uint32_t i = 0; i < n; ++i) {
                const uint64_t source = read.sources && seen.has_source ? read.sources[done + i] : FI_ADDR_NOTAVAIL;
                // Of a queue opened out of our sight only the number of entries is known.
                cqe[i] = bytes ? decode(entry + i * bytes, seen.format, source) : efaprof_cqe{0, source, 0, 0, 0, 0, 0};
            }
            publish(record, 1 + n);
            seen.empties = 0;
        }
        entry += n * bytes;
        done += n;
    }
}

void write_cq_error(CqSeen &seen, const fi_cq_err_entry &entry, uint64_t t_begin, uint64_t t_end, uint8_t nest) {
    auto *record = reserve<efaprof_cq>(2);
    if (!record) return;
    record->h = head(t_begin, t_end, EFAPROF_KIND(EFAPROF_SHAPE_CQ, EFAPROF_CQ_READERR), 1);
    record->cq = seen.fid;
    record->empties = seen.empties;
    record->flags = seen.format | static_cast<uint32_t>(nest) << 8;
    *reinterpret_cast<efaprof_cqe *>(record + 1) = {
        reinterpret_cast<uint64_t>(entry.op_context),
        FI_ADDR_NOTAVAIL,
        entry.flags & FI_REMOTE_CQ_DATA ? static_cast<uint32_t>(entry.data) : 0,
        static_cast<uint32_t>(entry.flags),
        saturated32(entry.len),
        1,
        static_cast<int16_t>(entry.err),
    };
    publish(record, 2);
    seen.empties = 0;
}

void write_idle(const CqSeen &seen) {
    const uint64_t t = now();
    if (auto *record = reserve<efaprof_cq>()) {
        const uint32_t flags = seen.format | static_cast<uint32_t>(seen.nest) << 8;
        *record = {head(t, t, EFAPROF_KIND(EFAPROF_SHAPE_CQ, EFAPROF_CQ_IDLE), 0), seen.fid, seen.empties, flags};
        publish(record);
    }
}

void write_cntr(uint64_t cntr, uint8_t what, bool is_error, uint64_t value, uint64_t t_begin, uint64_t t_end) {
    if (auto *record = reserve<efaprof_cntr>()) {
        *record = {head(t_begin, t_end, EFAPROF_KIND(EFAPROF_SHAPE_CNTR, what), is_error), cntr, value};
        publish(record);
    }
}

void write_object(const efaprof_object &object) {
    if (auto *record = reserve<efaprof_object>()) {
        *record = object;
        publish(record);
    }
}

void write_bind(uint64_t fid, uint64_t bound, uint8_t what, uint64_t flags, uint64_t t_begin, uint64_t t_end) {
    if (auto *record = reserve<efaprof_bind>()) {
        *record = {head(t_begin, t_end, EFAPROF_KIND(EFAPROF_SHAPE_BIND, what), 0), fid, bound, flags, {0, 0, 0}};
        publish(record);
    }
}

void write_av(uint64_t av, uint8_t what, uint64_t fi_addr, const void *address, uint32_t bytes, uint64_t t_end) {
    if (auto *record = reserve<efaprof_av>()) {
        const uint32_t kept = bytes < sizeof record->addr ? bytes : sizeof record->addr;
        *record = {
            head(t_end, t_end, EFAPROF_KIND(EFAPROF_SHAPE_AV, what), static_cast<uint16_t>(kept)), av, fi_addr, {0}};
        if (kept) memcpy(record->addr, address, kept);
        publish(record);
    }
}

uint64_t name_of(const char *text) {
    return text ? name(text, strnlen(text, EFAPROF_NAME_MAX + 1)) : 0;
}

void note_info(const char *what, const char *which, uint64_t value) {
    write_note(1, what, which, value);
}
void note_degraded(const char *what, const char *which, uint64_t value) {
    write_note(2, what, which, value);
}

} // namespace efaprof::ofi
