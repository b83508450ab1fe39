// Data calls: rma, msg, tagged, atomic, cancel.
#include "describe.h"
#include "open.h"
#include "record.h"
#include "table.h"
#include "tables.h"

#include <rdma/fi_errno.h>

namespace efaprof::ofi {
namespace {

__attribute__((noinline)) void finish_tried(Thread &thread, const Op &op, uint64_t t_begin, uint64_t t_end, ssize_t ret,
                                            uint8_t nest) {
    if (ret == -FI_EAGAIN) return retry_later(thread, op, t_begin, t_end, nest);
    Retry tried;
    if (retry_ended(thread, op, &tried)) return write_op(thread, op, tried.t_first, t_end, ret, tried.attempts, nest);
    write_op(thread, op, t_begin, t_end, ret, 0, nest);
}

inline void finish(Thread &thread, const Op &op, uint64_t t_begin, uint64_t t_end, ssize_t ret, uint8_t nest) {
    if (!recording()) return;
    if (__builtin_expect(ret == -FI_EAGAIN || thread.retries != 0, 0))
        return finish_tried(thread, op, t_begin, t_end, ret, nest);
    write_op(thread, op, t_begin, t_end, ret, 0, nest);
}

template <uint8_t What, auto Describe> struct Post {
    template <class Fid, class... Args> static ssize_t run(ssize_t (*real)(Fid *, Args...), Fid *fid, Args... args) {
        Call call(fid);
        if (!call) return real(fid, args...);
        Op op = Describe(fid, args...);
        op.what = What;
        const uint64_t t_begin = now();
        const ssize_t ret = real(fid, args...);
        const uint64_t t_end = now();
        call.leave();
        finish(call.thread(), op, t_begin, t_end, ret, call.nest());
        return ret;
    }
};

#define POST(ops, member, cls, fn, describe)                                                                           \
    EFAPROF_HOOK(ops, member, Post<EFAPROF_OP_WHAT(EFAPROF_OP_##cls, EFAPROF_FN_##fn), describe>)

const Hook rma_hooks[] = {
    POST(fi_ops_rma, read, RMA, READ, DescribeRma::plain<void>),
    POST(fi_ops_rma, readv, RMA, READV, DescribeRma::vector),
    POST(fi_ops_rma, readmsg, RMA, READMSG, DescribeRma::message),
    POST(fi_ops_rma, write, RMA, WRITE, DescribeRma::plain<const void>),
    POST(fi_ops_rma, writev, RMA, WRITEV, DescribeRma::vector),
    POST(fi_ops_rma, writemsg, RMA, WRITEMSG, DescribeRma::message),
    POST(fi_ops_rma, inject, RMA, RMA_INJECT, DescribeRma::inject),
    POST(fi_ops_rma, writedata, RMA, WRITEDATA, DescribeRma::writedata),
    POST(fi_ops_rma, injectdata, RMA, RMA_INJECTDATA, DescribeRma::injectdata),
};
const Hook msg_hooks[] = {
    POST(fi_ops_msg, recv, MSG, RECV, DescribeMsg::recv),
    POST(fi_ops_msg, recvv, MSG, RECVV, DescribeMsg::recvv),
    POST(fi_ops_msg, recvmsg, MSG, RECVMSG, DescribeMsg::message),
    POST(fi_ops_msg, send, MSG, SEND, DescribeMsg::send),
    POST(fi_ops_msg, sendv, MSG, SENDV, DescribeMsg::sendv),
    POST(fi_ops_msg, sendmsg, MSG, SENDMSG, DescribeMsg::message),
    POST(fi_ops_msg, inject, MSG, INJECT, DescribeMsg::inject),
    POST(fi_ops_msg, senddata, MSG, SENDDATA, DescribeMsg::senddata),
    POST(fi_ops_msg, injectdata, MSG, INJECTDATA, DescribeMsg::injectdata),
};
const Hook tagged_hooks[] = {
    POST(fi_ops_tagged, recv, TAGGED, RECV, DescribeTagged::recv),
    POST(fi_ops_tagged, recvv, TAGGED, RECVV, DescribeTagged::recvv),
    POST(fi_ops_tagged, recvmsg, TAGGED, RECVMSG, DescribeTagged::message),
    POST(fi_ops_tagged, send, TAGGED, SEND, DescribeTagged::send),
    POST(fi_ops_tagged, sendv, TAGGED, SENDV, DescribeTagged::sendv),
    POST(fi_ops_tagged, sendmsg, TAGGED, SENDMSG, DescribeTagged::message),
    POST(fi_ops_tagged, inject, TAGGED, INJECT, DescribeTagged::inject),
    POST(fi_ops_tagged, senddata, TAGGED, SENDDATA, DescribeTagged::senddata),
    POST(fi_ops_tagged, injectdata, TAGGED, INJECTDATA, DescribeTagged::injectdata),
};
const Hook atomic_hooks[] = {
    POST(fi_ops_atomic, write, ATOMIC, AWRITE, DescribeAtomic::write),
    POST(fi_ops_atomic, writev, ATOMIC, AWRITEV, DescribeAtomic::writev),
    POST(fi_ops_atomic, writemsg, ATOMIC, AWRITEMSG, DescribeAtomic::writemsg),
    POST(fi_ops_atomic, inject, ATOMIC, AINJECT, DescribeAtomic::inject),
    POST(fi_ops_atomic, readwrite, ATOMIC, AREADWRITE, DescribeAtomic::readwrite),
    POST(fi_ops_atomic, readwritev, ATOMIC, AREADWRITEV, DescribeAtomic::readwritev),
    POST(fi_ops_atomic, readwritemsg, ATOMIC, AREADWRITEMSG, DescribeAtomic::readwritemsg),
    POST(fi_ops_atomic, compwrite, ATOMIC, ACOMPWRITE, DescribeAtomic::compwrite),
    POST(fi_ops_atomic, compwritev, ATOMIC, ACOMPWRITEV, DescribeAtomic::compwritev),
    POST(fi_ops_atomic, compwritemsg, ATOMIC, ACOMPWRITEMSG, DescribeAtomic::compwritemsg),
};
const Hook ep_hooks[] = {
    EFAPROF_HOOK(fi_ops_ep, cancel, Post<EFAPROF_OP_WHAT(EFAPROF_OP_EP, 0), describe_cancel>),
    EFAPROF_HOOK(fi_ops_ep, setopt, SetoptProbe),
    EFAPROF_HOOK(fi_ops_ep, tx_ctx, ContextProbe),
    EFAPROF_HOOK(fi_ops_ep, rx_ctx, ContextProbe),
};

TableKind rma_kind = EFAPROF_TABLE_KIND(fi_ops_rma, rma_hooks);
TableKind msg_kind = EFAPROF_TABLE_KIND(fi_ops_msg, msg_hooks);
TableKind tagged_kind = EFAPROF_TABLE_KIND(fi_ops_tagged, tagged_hooks);
TableKind atomic_kind = EFAPROF_TABLE_KIND(fi_ops_atomic, atomic_hooks);
TableKind ep_kind = EFAPROF_TABLE_KIND(fi_ops_ep, ep_hooks);

} // namespace

void patch(const fi_ops_rma *table) {
    patch_table(rma_kind, table);
}
void patch(const fi_ops_msg *table) {
    patch_table(msg_kind, table);
}
void patch(const fi_ops_tagged *table) {
    patch_table(tagged_kind, table);
}
void patch(const fi_ops_atomic *table) {
    patch_table(atomic_kind, table);
}
void patch(const fi_ops_ep *table) {
    patch_table(ep_kind, table);
}

} // namespace efaprof::ofi
