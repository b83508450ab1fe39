"""numpy mirror of native/include/efaprof/format.h, compared with it field by field by a test."""

from __future__ import annotations

from enum import IntEnum

import numpy as np

from efaprof.trace import header

MAGIC, FORMAT_VERSION, OLDEST_READABLE = header.MAGIC, header.FORMAT_VERSION, header.OLDEST_READABLE
SLOT_BYTES, HEADER_BYTES = header.SLOT_BYTES, header.HEADER_BYTES
Clock = header.Clock
NAME_MAX = 128
CQ_MAX = 64
RINGS_APART = 256  # ring i of rank r has the number RINGS_APART * i + r


class Shape(IntEnum):
    """High byte of a record's kind."""

    PAD = 0x00
    STAGE = 0x01
    OP = 0x02
    CQ = 0x03
    TICK = 0x04
    MARK = 0x05
    WAIT = 0x06
    RX = 0x07
    CNTR = 0x08
    SPAN = 0x09
    RANGE = 0x0A
    DEVICE = 0x0B
    POST = 0x0C
    NAME = 0x40
    THREAD = 0x41
    OBJECT = 0x42
    BIND = 0x43
    AV = 0x44
    COUNTER = 0x45
    CLOCK = 0x46
    NOTE = 0x47


class OpClass(IntEnum):
    """Bits 5..7 of an OP record's `what`."""

    MSG = 0
    RMA = 1
    TAGGED = 2
    ATOMIC = 3
    EP = 4


# Bits 0..4 of an OP record's `what`, in fi_ops_* order.
OP_FUNCTIONS: dict[OpClass, tuple[str, ...]] = {
    OpClass.MSG: ("recv", "recvv", "recvmsg", "send", "sendv", "sendmsg", "inject", "senddata", "injectdata"),
    OpClass.RMA: ("read", "readv", "readmsg", "write", "writev", "writemsg", "inject", "writedata", "injectdata"),
    OpClass.TAGGED: ("recv", "recvv", "recvmsg", "send", "sendv", "sendmsg", "inject", "senddata", "injectdata"),
    OpClass.ATOMIC: (
        "write", "writev", "writemsg", "inject", "readwrite", "readwritev", "readwritemsg",
        "compwrite", "compwritev", "compwritemsg",
    ),
    OpClass.EP: ("cancel",),
}  # fmt: skip


class ObjectKind(IntEnum):
    """`what` of OBJECT and BIND records; a close has CLOSED set."""

    FABRIC = 1
    DOMAIN = 2
    EP = 3
    CQ = 4
    CNTR = 5
    AV = 6
    MR = 7
    SRX = 8
    STX = 9
    PEP = 10
    EQ = 11


class Stage(IntEnum):
    """`what` of a STAGE record."""

    KERNEL = 1
    RING = 2
    PROXY = 3
    LIBFABRIC = 4
    NIC = 5
    TOLD = 6
    COMPUTE = 7
    FENCE = 8


class Command(IntEnum):
    """Bits 12..15 of a STAGE record's x: what the operation is for."""

    PUT = 1
    NOTIFY = 2
    SIGNAL = 3
    BARRIER = 4


X_IMM = 0x0100  # STAGE x: carries an immediate
X_FENCE = 0x0200  # STAGE x: issued only after every earlier operation to that peer has completed
X_POSTED = 0x0400  # STAGE x: its entry was written by the kernel itself


class Compute(IntEnum):
    """x of a COMPUTE stage."""

    STANDIN = 1
    COPY = 2
    EXPERT = 3
    REDUCE = 4
    VERIFY = 5


class Phase(IntEnum):
    """`phase` of MARK and WAIT records."""

    NONE = 0
    DISPATCH = 1
    COMBINE = 2
    COMPUTE = 3
    STEP = 4


class StepKind(IntEnum):
    """x of a MARK record."""

    DECODE = 0
    PREFILL = 1
    MIXED = 2
    WARM_UP = 3


class WaitKind(IntEnum):
    """`what` of a WAIT record."""

    POLL = 1
    FLUSH = 2
    BARRIER = 3


class Span(IntEnum):
    """`what` of SPAN and RANGE records."""

    RANGE = 1
    INSTANT = 2
    STEP = 3
    GRAPH = 4
    STEP_BEGAN = 5
    LAUNCH = 6
    WAIT = 7
    EVENT = 8


class Device(IntEnum):
    """`what` of a DEVICE record."""

    KERNEL = 1
    GRAPH = 2
    COPY = 3
    SET = 4


class Source(IntEnum):
    """`source` of a RANGE record: who named the stretch."""

    NONE = 0
    ANNOTATION = 1
    NVTX = 2
    CUDA = 3


class AnnotatedStep(IntEnum):
    """`category` of a RANGE record of a step: what kind the program says that it was."""

    UNSAID = 0
    DECODE = 1
    PREFILL = 2
    MIXED = 3
    WARM_UP = 4
    OTHER = 5


class Payload(IntEnum):
    """`payload_type` of a RANGE record."""

    NONE = 0
    U64 = 1
    I64 = 2
    F64 = 3
    U32 = 4
    I32 = 5
    F32 = 6
    STEP = 7  # tokens in the low half, sequences in the high one, UNSAID_COUNT when not said


UNSAID_COUNT = 0xFFFFFFFF
EVERY_STREAM = 0xFFFFFFFF  # payload of a CUDA wait: all streams of its context
RANGE_UNORDERED = 0x1  # RANGE flags: began in another order than it ended, or on another thread

RX_HELD = 0x1  # RX x: held back for order
RX_SIGNAL = 0x2  # RX x: a signal, whose consumer was told

CLOSED = 0x80
CQ_IDLE = 6  # `what` of a CQ record that only reports empty polls

HEADER = np.dtype(
    {
        "names": [name for name, _, _ in header.FIELDS],
        "formats": [header.numpy_format(letters) for _, letters, _ in header.FIELDS],
        "offsets": [at for _, _, at in header.FIELDS],
        "itemsize": HEADER_BYTES,
    }
)

_HEAD = [("t_end", "<u8"), ("dur", "<u4"), ("kind", "<u2"), ("x", "<u2")]
HEAD = np.dtype(_HEAD)
STAGE = np.dtype([*_HEAD, ("op", "<u8"), ("bytes", "<u4"), ("peer", "<u2"), ("status", "u1"), ("depth", "u1")])
POST = np.dtype(
    [
        *_HEAD, ("op", "<u8"), ("bytes", "<u4"), ("peer", "<u2"), ("status", "u1"), ("depth", "u1"), ("order", "<u4"),
        ("slot", "<u4"), ("space", "<u4"), ("build", "<u4"), ("turn", "<u4"), ("fence", "<u4"), ("doorbell", "<u4"),
        ("batch", "<u4"),
    ]
)  # fmt: skip
OP = np.dtype(
    [
        *_HEAD, ("ep", "<u8"), ("ctx", "<u8"), ("fi_addr", "<u8"), ("raddr", "<u8"), ("len", "<u4"), ("imm", "<u4"),
        ("flags", "<u4"), ("eagain", "<u2"), ("depth", "u1"), ("nest", "u1"),
    ]
)  # fmt: skip
CQ = np.dtype([*_HEAD, ("cq", "<u8"), ("empties", "<u4"), ("flags", "<u4")])
CQE = np.dtype(
    [("ctx", "<u8"), ("src", "<u8"), ("data", "<u4"), ("flags", "<u4"), ("len", "<u4"), ("kind", "<u2"), ("err", "<i2")]
)
CNTR = np.dtype([*_HEAD, ("cntr", "<u8"), ("value", "<u8")])
TICK = np.dtype([*_HEAD, ("n_cmd", "<u4"), ("n_test", "<u4"), ("n_done", "<u4"), ("backlog", "<u4")])
MARK = np.dtype([*_HEAD, ("step", "<u4"), ("layer", "<u2"), ("phase", "<u2"), ("ring", "<u2"), ("first_seq", "u1", 6)])
WAIT = np.dtype(
    [
        *_HEAD, ("step", "<u4"), ("layer", "<u2"), ("src", "<u2"), ("channel", "<u2"), ("ring", "<u2"),
        ("polls", "<u4"), ("seq", "<u8"), ("t_sig", "<u8"), ("reserved", "<u8", 2),
    ]
)  # fmt: skip
RX = np.dtype([*_HEAD, ("src", "<u2"), ("channel", "<u2"), ("seq", "u1", 6), ("reserved", "<u2"), ("imm", "<u4")])
SPAN = np.dtype([*_HEAD, ("name", "<u8"), ("payload", "<u8")])
RANGE = np.dtype(
    [
        *_HEAD, ("name", "<u8"), ("payload", "<u8"), ("t_begin", "<u8"), ("domain", "<u8"), ("category", "<u4"),
        ("source", "u1"), ("payload_type", "u1"), ("flags", "<u2"), ("correlation", "<u8"),
    ]
)  # fmt: skip
DEVICE = np.dtype(
    [
        *_HEAD, ("name", "<u8"), ("t_begin", "<u8"), ("correlation", "<u4"), ("stream", "<u4"), ("graph", "<u8"),
        ("bytes", "<u8"), ("context", "<u4"), ("reserved", "<u4"),
    ]
)  # fmt: skip
NAME = np.dtype([*_HEAD, ("id", "<u8"), ("reserved", "<u8")])
THREAD = np.dtype(
    [*_HEAD, ("pid", "<u4"), ("tid", "<u4"), ("process_start", "<u8"), ("comm", "S16"), ("reserved", "<u8", 2)]
)
OBJECT = np.dtype(
    [
        *_HEAD, ("fid", "<u8"), ("parent", "<u8"), ("name", "<u8"), ("detail", "<u8"), ("caps", "<u8"),
        ("mode", "<u8"), ("msg_order", "<u8"), ("ep_type", "<u4"), ("inject", "<u4"), ("max_msg", "<u8"),
        ("extra", "<u8"),
    ]
)  # fmt: skip
BIND = np.dtype([*_HEAD, ("fid", "<u8"), ("bound", "<u8"), ("flags", "<u8"), ("reserved", "<u8", 3)])
AV = np.dtype([*_HEAD, ("av", "<u8"), ("fi_addr", "<u8"), ("addr", "u1", 32)])
COUNTER = np.dtype([*_HEAD, ("name", "<u8"), ("value", "<i8")])
CLOCK = np.dtype([*_HEAD, ("monotonic_ns", "<i8"), ("realtime_ns", "<i8")])
NOTE = np.dtype([*_HEAD, ("name", "<u8"), ("value", "<u8")])

# The record of each shape that is read; entries of a CQ record and the text of a NAME record follow it.
RECORDS: dict[Shape, np.dtype[np.void]] = {
    Shape.STAGE: STAGE, Shape.POST: POST, Shape.OP: OP, Shape.CQ: CQ, Shape.TICK: TICK, Shape.MARK: MARK,
    Shape.WAIT: WAIT, Shape.RX: RX, Shape.CNTR: CNTR, Shape.SPAN: SPAN, Shape.RANGE: RANGE, Shape.DEVICE: DEVICE,
    Shape.NAME: NAME, Shape.THREAD: THREAD, Shape.OBJECT: OBJECT, Shape.BIND: BIND, Shape.AV: AV,
    Shape.COUNTER: COUNTER, Shape.CLOCK: CLOCK, Shape.NOTE: NOTE,
}  # fmt: skip


def name_id(text: bytes) -> int:
    """FNV-1a 64-bit hash of the first NAME_MAX bytes: the same id in every process and in native code."""
    value = 0xCBF29CE484222325
    for byte in text[:NAME_MAX]:
        value = ((value ^ byte) * 0x100000001B3) & 0xFFFFFFFFFFFFFFFF
    return value
