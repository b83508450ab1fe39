"""libfabric constants that stand in records (rdma/fabric.h, the same since 1.0)."""

from __future__ import annotations

from enum import IntEnum

# Flags of operations, completions and bindings.
FI_MSG = 1 << 1
FI_RMA = 1 << 2
FI_TAGGED = 1 << 3
FI_ATOMIC = 1 << 4
FI_READ = 1 << 8
FI_WRITE = 1 << 9
FI_RECV = 1 << 10
FI_SEND = 1 << 11
FI_TRANSMIT = FI_SEND
FI_REMOTE_READ = 1 << 12
FI_REMOTE_WRITE = 1 << 13
FI_MULTI_RECV = 1 << 16
FI_REMOTE_CQ_DATA = 1 << 17
FI_MORE = 1 << 18
FI_COMPLETION = 1 << 24
FI_INJECT = 1 << 25
FI_SELECTIVE_COMPLETION = 1 << 59  # of a binding

# Mode bit of an endpoint: remote CQ data uses up a posted receive.
FI_RX_CQ_DATA = 1 << 56

FI_ADDR_UNSPEC = (1 << 64) - 1
ECANCELED = 125

# The interposer's note that a program asked for the device's own queues, which only kernels post to.
KERNEL_POSTED = "kernel-posted path opened"


class CqFormat(IntEnum):
    """Layout of a completion queue's entries; up to CONTEXT they carry no flags."""

    UNSPEC = 0
    CONTEXT = 1
    MSG = 2
    DATA = 3
    TAGGED = 4


class EpType(IntEnum):
    """enum fi_ep_type."""

    UNSPEC = 0
    MSG = 1
    DGRAM = 2
    RDM = 3
