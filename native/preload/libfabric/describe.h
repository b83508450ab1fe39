// From the arguments of each data call to the Op that is recorded. Arguments are read before the call: afterwards they
// may be gone. What the provider would refuse (null pointers, absurd counts) must not crash here.
#pragma once

#include "thread.h"

#include <rdma/fabric.h>
#include <rdma/fi_atomic.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_rma.h>
#include <rdma/fi_tagged.h>
#include <sys/uio.h>

namespace efaprof::ofi {

constexpr size_t kMostIovs = 64; // a count beyond this is an error of the caller

inline uint64_t total(const iovec *iov, size_t count) {
    uint64_t sum = 0;
    for (size_t i = 0; iov && i < count && count <= kMostIovs; ++i)
        sum += iov[i].iov_len;
    return sum;
}

inline uint64_t bytes_of(fi_datatype type) {
    // In the order of enum fi_datatype, those of later releases too (128-bit integers, 16- and 8-bit floats).
    constexpr uint8_t bytes[] = {1, 1, 2, 2, 4, 4, 8, 8, 4, 8, 8, 16, 16, 32, 16, 16, 2, 2, 1, 1};
    const auto index = static_cast<unsigned>(type);
    return index < sizeof bytes ? bytes[index] : 0;
}

inline uint64_t total(const fi_ioc *ioc, size_t count, fi_datatype type) {
    uint64_t sum = 0;
    for (size_t i = 0; ioc && i < count && count <= kMostIovs; ++i)
        sum += ioc[i].count;
    return sum * bytes_of(type);
}

// ---- plain calls: everything is an argument
inline Op transmit(uint64_t ep, void *ctx, uint64_t addr, uint64_t raddr, uint64_t len) {
    return {ep, address(ctx), addr, raddr, len, 0, 0, 0, Defaults::kTransmit};
}
inline Op with_data(Op op, uint64_t data) {
    op.data = data;
    op.flags |= FI_REMOTE_CQ_DATA;
    return op;
}
inline Op injected(uint64_t ep, uint64_t addr, uint64_t raddr, uint64_t len) {
    return {ep, 0, addr, raddr, len, 0, FI_INJECT, 0, Defaults::kInject};
}
inline Op receive(uint64_t ep, void *ctx, uint64_t addr, uint64_t raddr, uint64_t len) {
    return {ep, address(ctx), addr, raddr, len, 0, 0, 0, Defaults::kReceive};
}

// ---- msg calls: a struct and flags of their own
template <class Msg> Op given(uint64_t ep, const Msg *msg, uint64_t raddr, uint64_t len, uint64_t flags) {
    const uint64_t data = flags & FI_REMOTE_CQ_DATA ? msg->data : 0;
    return {ep, address(msg->context), msg->addr, raddr, len, data, flags, 0, Defaults::kNone};
}
inline Op nothing(uint64_t ep, uint64_t flags) {
    return {ep, 0, FI_ADDR_UNSPEC, 0, 0, 0, flags, 0, Defaults::kNone};
}

struct DescribeMsg {
    static Op recv(fid_ep *ep, void *, size_t len, void *, fi_addr_t addr, void *ctx) {
        return receive(address(ep), ctx, addr, 0, len);
    }
    static Op recvv(fid_ep *ep, const iovec *iov, void **, size_t count, fi_addr_t addr, void *ctx) {
        return receive(address(ep), ctx, addr, 0, total(iov, count));
    }
    static Op message(fid_ep *ep, const fi_msg *msg, uint64_t flags) {
        if (!msg) return nothing(address(ep), flags);
        return given(address(ep), msg, 0, total(msg->msg_iov, msg->iov_count), flags);
    }
    static Op send(fid_ep *ep, const void *, size_t len, void *, fi_addr_t addr, void *ctx) {
        return transmit(address(ep), ctx, addr, 0, len);
    }
    static Op sendv(fid_ep *ep, const iovec *iov, void **, size_t count, fi_addr_t addr, void *ctx) {
        return transmit(address(ep), ctx, addr, 0, total(iov, count));
    }
    static Op inject(fid_ep *ep, const void *, size_t len, fi_addr_t addr) {
        return injected(address(ep), addr, 0, len);
    }
    static Op senddata(fid_ep *ep, const void *, size_t len, void *, uint64_t data, fi_addr_t addr, void *ctx) {
        return with_data(transmit(address(ep), ctx, addr, 0, len), data);
    }
    static Op injectdata(fid_ep *ep, const void *, size_t len, uint64_t data, fi_addr_t addr) {
        return with_data(injected(address(ep), addr, 0, len), data);
    }
};

struct DescribeTagged {
    static Op recv(fid_ep *ep, void *, size_t len, void *, fi_addr_t addr, uint64_t tag, uint64_t, void *ctx) {
        return receive(address(ep), ctx, addr, tag, len);
    }
    static Op recvv(fid_ep *ep, const iovec *iov, void **, size_t count, fi_addr_t addr, uint64_t tag, uint64_t,
                    void *ctx) {
        return receive(address(ep), ctx, addr, tag, total(iov, count));
    }
    static Op message(fid_ep *ep, const fi_msg_tagged *msg, uint64_t flags) {
        if (!msg) return nothing(address(ep), flags);
        return given(address(ep), msg, msg->tag, total(msg->msg_iov, msg->iov_count), flags);
    }
    static Op send(fid_ep *ep, const void *, size_t len, void *, fi_addr_t addr, uint64_t tag, void *ctx) {
        return transmit(address(ep), ctx, addr, tag, len);
    }
    static Op sendv(fid_ep *ep, const iovec *iov, void **, size_t count, fi_addr_t addr, uint64_t tag, void *ctx) {
        return transmit(address(ep), ctx, addr, tag, total(iov, count));
    }
    static Op inject(fid_ep *ep, const void *, size_t len, fi_addr_t addr, uint64_t tag) {
        return injected(address(ep), addr, tag, len);
    }
    static Op senddata(fid_ep *ep, const void *, size_t len, void *, uint64_t data, fi_addr_t addr, uint64_t tag,
                       void *ctx) {
        return with_data(transmit(address(ep), ctx, addr, tag, len), data);
    }
    static Op injectdata(fid_ep *ep, const void *, size_t len, uint64_t data, fi_addr_t addr, uint64_t tag) {
        return with_data(injected(address(ep), addr, tag, len), data);
    }
};

struct DescribeRma {
    template <class Buffer> // fi_read and fi_write differ in const
    static Op plain(fid_ep *ep, Buffer *, size_t len, void *, fi_addr_t addr, uint64_t raddr, uint64_t, void *ctx) {
        return transmit(address(ep), ctx, addr, raddr, len);
    }
    static Op vector(fid_ep *ep, const iovec *iov, void **, size_t count, fi_addr_t addr, uint64_t raddr, uint64_t,
                     void *ctx) {
        return transmit(address(ep), ctx, addr, raddr, total(iov, count));
    }
    static Op message(fid_ep *ep, const fi_msg_rma *msg, uint64_t flags) {
        if (!msg) return nothing(address(ep), flags);
        const uint64_t raddr = msg->rma_iov && msg->rma_iov_count ? msg->rma_iov[0].addr : 0;
        return given(address(ep), msg, raddr, total(msg->msg_iov, msg->iov_count), flags);
    }
    static Op inject(fid_ep *ep, const void *, size_t len, fi_addr_t addr, uint64_t raddr, uint64_t) {
        return injected(address(ep), addr, raddr, len);
    }
    static Op writedata(fid_ep *ep, const void *, size_t len, void *, uint64_t data, fi_addr_t addr, uint64_t raddr,
                        uint64_t, void *ctx) {
        return with_data(transmit(address(ep), ctx, addr, raddr, len), data);
    }
    static Op injectdata(fid_ep *ep, const void *, size_t len, uint64_t data, fi_addr_t addr, uint64_t raddr,
                         uint64_t) {
        return with_data(injected(address(ep), addr, raddr, len), data);
    }
};

struct DescribeAtomic {
    static Op write(fid_ep *ep, const void *, size_t count, void *, fi_addr_t addr, uint64_t raddr, uint64_t,
                    fi_datatype type, fi_op, void *ctx) {
        return transmit(address(ep), ctx, addr, raddr, count * bytes_of(type));
    }
    static Op writev(fid_ep *ep, const fi_ioc *iov, void **, size_t count, fi_addr_t addr, uint64_t raddr, uint64_t,
                     fi_datatype type, fi_op, void *ctx) {
        return transmit(address(ep), ctx, addr, raddr, total(iov, count, type));
    }
    static Op writemsg(fid_ep *ep, const fi_msg_atomic *msg, uint64_t flags) {
        if (!msg) return nothing(address(ep), flags);
        const uint64_t raddr = msg->rma_iov && msg->rma_iov_count ? msg->rma_iov[0].addr : 0;
        return given(address(ep), msg, raddr, total(msg->msg_iov, msg->iov_count, msg->datatype), flags);
    }
    static Op inject(fid_ep *ep, const void *, size_t count, fi_addr_t addr, uint64_t raddr, uint64_t, fi_datatype type,
                     fi_op) {
        return injected(address(ep), addr, raddr, count * bytes_of(type));
    }
    static Op readwrite(fid_ep *ep, const void *, size_t count, void *, void *, void *, fi_addr_t addr, uint64_t raddr,
                        uint64_t, fi_datatype type, fi_op, void *ctx) {
        return transmit(address(ep), ctx, addr, raddr, count * bytes_of(type));
    }
    static Op readwritev(fid_ep *ep, const fi_ioc *iov, void **, size_t count, fi_ioc *results, void **,
                         size_t result_count, fi_addr_t addr, uint64_t raddr, uint64_t, fi_datatype type, fi_op,
                         void *ctx) {
        // A plain atomic read has no operand.
        const uint64_t len = iov ? total(iov, count, type) : total(results, result_count, type);
        return transmit(address(ep), ctx, addr, raddr, len);
    }
    static Op readwritemsg(fid_ep *ep, const fi_msg_atomic *msg, fi_ioc *results, void **, size_t result_count,
                           uint64_t flags) {
        Op op = writemsg(ep, msg, flags);
        if (msg && !msg->msg_iov) op.len = total(results, result_count, msg->datatype);
        return op;
    }
    static Op compwrite(fid_ep *ep, const void *, size_t count, void *, const void *, void *, void *, void *,
                        fi_addr_t addr, uint64_t raddr, uint64_t, fi_datatype type, fi_op, void *ctx) {
        return transmit(address(ep), ctx, addr, raddr, count * bytes_of(type));
    }
    static Op compwritev(fid_ep *ep, const fi_ioc *iov, void **, size_t count, const fi_ioc *, void **, size_t,
                         fi_ioc *, void **, size_t, fi_addr_t addr, uint64_t raddr, uint64_t, fi_datatype type, fi_op,
                         void *ctx) {
        return transmit(address(ep), ctx, addr, raddr, total(iov, count, type));
    }
    static Op compwritemsg(fid_ep *ep, const fi_msg_atomic *msg, const fi_ioc *, void **, size_t, fi_ioc *, void **,
                           size_t, uint64_t flags) {
        return writemsg(ep, msg, flags);
    }
};

inline Op describe_cancel(fid *ep, void *ctx) {
    return {address(ep), address(ctx), FI_ADDR_UNSPEC, 0, 0, 0, 0, 0, Defaults::kNone};
}

} // namespace efaprof::ofi
