// What the device did: the log of operations, and whether the machine kept the model's times.
#include "nic.h"

#include <errno.h>
#include <math.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

namespace softefa {
namespace {

int64_t ns_of(const Nic &nic, double model) {
    return nic.epoch_ns + static_cast<int64_t>(llround(model));
}

double late_quantile(const Late &late, double q) {
    uint64_t seen = 0;
    for (int i = 0; i < 64; ++i) {
        seen += late.histogram[i];
        if (static_cast<double>(seen) >= q * static_cast<double>(late.operations)) return i == 0 ? 0 : ldexp(1, i);
    }
    return late.worst_ns;
}

} // namespace

bool truth_open(Nic &nic, const char *path, uint64_t most_bytes) {
    nic.truth = fopen(path, "wbe");
    if (nic.truth == nullptr) return false;
    setvbuf(nic.truth, nullptr, _IOFBF, 1u << 18);
    softefa_truth_header header = {};
    header.magic = SOFTEFA_TRUTH_MAGIC;
    header.version = SOFTEFA_TRUTH_VERSION;
    header.record_bytes = sizeof(softefa_truth_record);
    header.started_monotonic_ns = now_ns();
    timespec wall;
    clock_gettime(CLOCK_REALTIME, &wall);
    header.started_realtime_ns = wall.tv_sec * 1000000000ll + wall.tv_nsec;
    model_text(nic.model, header.config, sizeof header.config);
    nic.truth_most = most_bytes / sizeof(softefa_truth_record);
    return fwrite(&header, sizeof header, 1, nic.truth) == 1 && fflush(nic.truth) == 0;
}

void truth_write(Nic &nic, const Op &op, int64_t cqe_ns) {
    if (nic.truth == nullptr) return;
    if (nic.truth_records >= nic.truth_most) {
        ++nic.truth_dropped;
        return;
    }
    softefa_truth_record r = {};
    r.seq = op.seq;
    r.doorbell_ns = op.doorbell_ns;
    r.start_ns = ns_of(nic, op.start);
    r.due_ns = ns_of(nic, op.due);
    r.delivered_ns = op.delivered_ns;
    r.rx_cqe_ns = op.rx_cqe_ns;
    r.cqe_ns = cqe_ns;
    r.bytes = op.length;
    r.packets = op.packets;
    r.src_device = static_cast<uint16_t>(op.qp->device->index);
    r.dst_device = op.target != nullptr ? static_cast<uint16_t>(op.target->index) : kNowhere;
    r.src_qpn = op.qp->qpn;
    r.dst_qpn = op.dst_qpn;
    r.op = op.kind;
    r.status = op.status;
    r.flags =
        static_cast<uint8_t>((op.has_imm ? SOFTEFA_TRUTH_IMM : 0) | (op.unsolicited ? SOFTEFA_TRUTH_UNSOLICITED : 0) |
                             (op.is_inline ? SOFTEFA_TRUTH_INLINE : 0) | (op.corrupted ? SOFTEFA_TRUTH_CORRUPTED : 0) |
                             (op.detour ? SOFTEFA_TRUTH_DETOUR : 0));
    r.imm = op.imm;
    r.req_id = op.req_id;
    r.rnr = static_cast<uint16_t>(op.rnr < 0xffff ? op.rnr : 0xffff);
    r.retransmits = op.retransmits;
    if (fwrite(&r, sizeof r, 1, nic.truth) == 1)
        ++nic.truth_records;
    else
        ++nic.truth_dropped;
}

void truth_flush(Nic &nic) {
    if (nic.truth != nullptr) fflush(nic.truth);
}

void truth_close(Nic &nic) {
    if (nic.truth == nullptr) return;
    fflush(nic.truth);
    const int fd = fileno(nic.truth);
    const uint64_t counts[] = {nic.truth_dropped, nic.truth_records};
    if (pwrite(fd, counts, sizeof counts, offsetof(softefa_truth_header, dropped)) != sizeof counts)
        fprintf(stderr, "softefa: the truth log's header could not be written: %s\n", strerror(errno));
    fclose(nic.truth);
    nic.truth = nullptr;
}

void late_count(Nic &nic, const Op &op) {
    if (op.delivered_ns == 0) return;
    const double late = static_cast<double>(op.delivered_ns - nic.epoch_ns) - op.due;
    const double modelled = op.due - static_cast<double>(op.doorbell_ns - nic.epoch_ns);
    Late &l = nic.late;
    ++l.operations;
    l.late += late > 2000 && late > 0.05 * modelled;
    int bucket = 0;
    if (late >= 1) frexp(late, &bucket);
    ++l.histogram[bucket < 63 ? bucket : 63];
    if (late > l.worst_ns) l.worst_ns = late;
}

void summary_write(const Nic &nic, int fd) {
    char config[1024];
    model_text(nic.model, config, sizeof config);
    const Late &l = nic.late;
    dprintf(fd,
            "{\"config\": \"%s\", \"devices\": %u, \"peak_devices\": %u, \"operations\": %llu, \"bytes\": %llu, "
            "\"errors\": %llu, \"flushed\": %llu, \"corrupted\": %llu, \"bad_entries\": %llu, \"cq_overruns\": %llu, "
            "\"channel_overruns\": %llu, \"batch_overruns\": %llu, \"truth_records\": %llu, \"truth_dropped\": %llu, "
            "\"delivered\": %llu, \"late\": %llu, \"late_p50_ns\": %.0f, \"late_p99_ns\": %.0f, \"late_max_ns\": %.0f, "
            "\"stalls\": %llu, \"stall_max_ns\": %.0f, \"seconds\": %.3f}\n",
            config, nic.device_count, nic.peak_devices, static_cast<unsigned long long>(nic.operations),
            static_cast<unsigned long long>(nic.bytes), static_cast<unsigned long long>(nic.errors),
            static_cast<unsigned long long>(nic.flushed), static_cast<unsigned long long>(nic.corrupted),
            static_cast<unsigned long long>(nic.bad_entries), static_cast<unsigned long long>(nic.cq_overruns),
            static_cast<unsigned long long>(nic.channel_overruns), static_cast<unsigned long long>(nic.batch_overruns),
            static_cast<unsigned long long>(nic.truth_records), static_cast<unsigned long long>(nic.truth_dropped),
            static_cast<unsigned long long>(l.operations), static_cast<unsigned long long>(l.late),
            late_quantile(l, 0.5), late_quantile(l, 0.99), l.worst_ns, static_cast<unsigned long long>(l.stalls),
            l.worst_stall_ns, model_now(nic) / 1e9);
}

} // namespace softefa
