"""Columns and types of the tables that are made from raw records. Times are int64 nanoseconds of CLOCK_MONOTONIC."""

from __future__ import annotations

import polars as pl

from efaprof.trace.layers import Match
from efaprof.trace.layout import OP_FUNCTIONS, OpClass

# "rma.write", "msg.send", "tagged.recv", "atomic.write", …
OP_KINDS: tuple[str, ...] = tuple(f"{cls.name.lower()}.{function}" for cls in OpClass for function in OP_FUNCTIONS[cls])
OpKind = pl.Enum(OP_KINDS)
MatchKind = pl.Enum([match.value for match in Match])
Direction = pl.Enum(["tx", "rx"])
# In the order of their numbers in format.h.
DeviceKind = pl.Enum(["unknown", "kernel", "graph", "copy", "set"])
SpanKind = pl.Enum(["unknown", "range", "instant", "step", "graph", "step began", "launch", "wait", "event"])
SpanSource = pl.Enum(["none", "annotation", "nvtx", "cuda"])

# One row per libfabric operation (posted or attempted), in order of post_ns.
OPS: dict[str, pl.DataType] = {
    "op": pl.UInt64(),  # row number in the run, unique
    "process": pl.UInt32(),  # index into the processes table
    "thread": pl.UInt32(),  # index into the threads table
    "kind": OpKind,
    "direction": Direction,
    "provider": pl.Categorical(),  # real name, e.g. "tcp;ofi_rxm"
    "nest": pl.UInt8(),  # 0: called by the program; 1…: called by a provider on a lower one
    "endpoint": pl.UInt32(),  # index into the objects table
    "cq": pl.UInt32(),  # index into the objects table; null when none is bound for this direction
    "peer": pl.UInt64(),  # fi_addr; null when the endpoint is connected or the address unspecified
    "context": pl.UInt64(),
    "bytes": pl.UInt32(),
    "remote": pl.UInt64(),  # remote address (rma, atomic) or tag (tagged); null for msg
    "immediate": pl.UInt32(),  # null when the call carries none
    "flags": pl.UInt32(),
    "eagain": pl.UInt16(),  # attempts that returned -FI_EAGAIN before the last one
    "ret": pl.Int16(),  # 0, or -errno of the call
    "post_ns": pl.Int64(),  # first attempt entered
    "return_ns": pl.Int64(),  # the call returned
    "doorbell_ns": pl.Int64(),  # the return that rang the doorbell: later than return_ns under FI_MORE
    "done_ns": pl.Int64(),  # the CQ read that held the completion returned; null when none came
    "match": MatchKind,
    "error": pl.Int16(),  # errno of an error completion, else 0; null when there was no completion
}

# One row per completion-queue entry that met no post: arrivals at a target, and what nothing explains.
ARRIVALS: dict[str, pl.DataType] = {
    "process": pl.UInt32(),
    "thread": pl.UInt32(),
    "cq": pl.UInt32(),
    "nest": pl.UInt8(),
    "time_ns": pl.Int64(),
    "context": pl.UInt64(),
    "source": pl.UInt64(),
    "immediate": pl.UInt32(),
    "flags": pl.UInt32(),
    "bytes": pl.UInt32(),
    "error": pl.Int16(),
    "is_explained": pl.Boolean(),  # a remote write with data, or an atomic or read served for a peer
}

# One row per completion-queue read that returned something (or per closing count of empty polls).
READS: dict[str, pl.DataType] = {
    "process": pl.UInt32(),
    "thread": pl.UInt32(),
    "cq": pl.UInt32(),
    "nest": pl.UInt8(),
    "begin_ns": pl.Int64(),
    "end_ns": pl.Int64(),
    "entries": pl.UInt16(),
    "empties": pl.UInt32(),  # empty reads before this one
}

# One row per sampled counter value.
COUNTERS: dict[str, pl.DataType] = {
    "process": pl.UInt32(),
    "name": pl.Categorical(),
    "time_ns": pl.Int64(),
    "value": pl.Int64(),
    "is_monotone": pl.Boolean(),
}

# One row per named stretch of host time; of one that has no length, both times are the same.
SPANS: dict[str, pl.DataType] = {
    "process": pl.UInt32(),
    "thread": pl.UInt32(),  # that ended it
    "name": pl.Categorical(),
    "begin_ns": pl.Int64(),
    "end_ns": pl.Int64(),
    "depth": pl.UInt16(),
    "is_step": pl.Boolean(),  # the program said so
    "payload": pl.UInt64(),
    "what": SpanKind,
    "source": SpanSource,
    "domain": pl.Categorical(),  # of NVTX; null: none
    # Of NVTX; of a step its kind (`layout.AnnotatedStep`); of an annotation 1 + layer; of a CUDA wait or event
    # its context; 0 none.
    "category": pl.UInt32(),
    "payload_type": pl.UInt8(),  # `layout.Payload`
    "is_unordered": pl.Boolean(),  # began in another order than it ended, or on another thread
    "correlation": pl.UInt64(),  # of a CUDA call: device_work that it launched carries the same; 0 none
}

# One row per stretch of a GPU's time that CUPTI told of.
DEVICE_WORK: dict[str, pl.DataType] = {
    "process": pl.UInt32(),
    "device": pl.UInt16(),  # number in its process
    "stream": pl.UInt32(),
    "kind": DeviceKind,
    "name": pl.Categorical(),  # of a kernel; null: it has none
    "begin_ns": pl.Int64(),
    "end_ns": pl.Int64(),
    "correlation": pl.UInt32(),  # of the call that launched it: the span of that call carries the same
    "graph": pl.UInt64(),  # that it is, or is a node of; null: none
    "bytes": pl.UInt64(),  # of a copy or a set
    "context": pl.UInt32(),  # that the stream belongs to
}

# One row per process, thread and libfabric object of the run.
PROCESSES: dict[str, pl.DataType] = {
    "process": pl.UInt32(),
    "host": pl.String(),
    "pid": pl.UInt32(),
    "rank": pl.Int32(),  # null when unknown
    "comm": pl.String(),
    "producer": pl.String(),
}
THREADS: dict[str, pl.DataType] = {
    "thread": pl.UInt32(),
    "process": pl.UInt32(),
    "tid": pl.UInt32(),
    "comm": pl.String(),
}
OBJECTS: dict[str, pl.DataType] = {
    "object": pl.UInt32(),
    "process": pl.UInt32(),
    "kind": pl.String(),
    "fid": pl.UInt64(),
    "provider": pl.String(),
    "detail": pl.String(),  # fabric or domain name
    "parent": pl.UInt32(),
    "opened_ns": pl.Int64(),
    "closed_ns": pl.Int64(),
    "caps": pl.UInt64(),
    "mode": pl.UInt64(),
    "msg_order": pl.UInt64(),
    "ep_type": pl.UInt32(),
    "inject": pl.UInt32(),
    "max_msg": pl.UInt64(),
    "extra": pl.UInt64(),
    "nest": pl.UInt16(),
}

# ---- our own dispatch paths; enums stand in the order of their numbers in format.h
Phase = pl.Enum(["none", "dispatch", "combine", "compute", "step"])
CommandKind = pl.Enum(["unknown", "put", "notify", "signal", "barrier"])
ComputeKind = pl.Enum(["unknown", "stand-in", "copy", "expert", "reduce", "verify"])
StepKind = pl.Enum(["decode", "prefill", "mixed", "warm-up"])
WaitKind = pl.Enum(["unknown", "poll", "flush", "barrier"])

# One row per operation that a kernel (or its stand-in) issued, in order of (ring, seq).
DISPATCH: dict[str, pl.DataType] = {
    "process": pl.UInt32(),
    "rank": pl.UInt16(),
    "ring": pl.UInt16(),  # unique in a job
    "seq": pl.Int64(),
    "step": pl.UInt32(),
    "layer": pl.UInt16(),
    "phase": Phase,
    "kind": CommandKind,
    "peer": pl.UInt16(),
    "channel": pl.UInt16(),
    "bytes": pl.UInt32(),
    "is_fenced": pl.Boolean(),
    "is_posted": pl.Boolean(),  # by the kernel itself: neither ring nor proxy nor library
    "wire_seq": pl.Int64(),  # number among the sequenced operations of (ring, peer, channel); null: none
    "eagain": pl.UInt16(),
    "error": pl.UInt16(),  # errno of an error completion, 0 none
    "outstanding": pl.UInt8(),  # in flight before it: 0 none, else 1 + floor(log2)
    "enter_ns": pl.Int64(),  # kernel entered the issue
    "publish_ns": pl.Int64(),  # command visible in the ring; entry written, where the kernel posts by itself
    "seen_ns": pl.Int64(),  # taken by the proxy
    "fenced_ns": pl.Int64(),  # everything that it had to wait for has completed; null: not fenced
    "call_ns": pl.Int64(),  # libfabric entered
    "return_ns": pl.Int64(),  # doorbell rung
    "done_ns": pl.Int64(),  # completion seen by the poster
    "told_ns": pl.Int64(),  # consumer told of it
    "arrival_ns": pl.Int64(),  # seen on the receiver's completion queue; null: carries nothing to see
    "signal_ns": pl.Int64(),  # handed over to the receiver's consumer
    "is_held": pl.Boolean(),  # held back there for order
}

# One row per step and rank.
STEPS: dict[str, pl.DataType] = {
    "process": pl.UInt32(),
    "rank": pl.UInt16(),
    "step": pl.UInt32(),
    "kind": StepKind,
    "begin_ns": pl.Int64(),
    "end_ns": pl.Int64(),  # begin of the next step: host time between steps is inside
}

# One row per gate that ended: a poll, a barrier or a flush.
WAITS: dict[str, pl.DataType] = {
    "process": pl.UInt32(),
    "rank": pl.UInt16(),
    "step": pl.UInt32(),
    "layer": pl.UInt16(),
    "phase": Phase,
    "kind": WaitKind,
    "begin_ns": pl.Int64(),
    "end_ns": pl.Int64(),
    "source": pl.UInt16(),  # rank of the operation that was ready last (own rank for a flush)
    "channel": pl.UInt16(),
    "seq": pl.Int64(),  # its wire sequence; for a flush its seq in the own ring
    "signal_ns": pl.Int64(),
    "polls": pl.UInt32(),
}

# One row per stretch of the rank's own arithmetic.
COMPUTES: dict[str, pl.DataType] = {
    "process": pl.UInt32(),
    "rank": pl.UInt16(),
    "kind": ComputeKind,
    "begin_ns": pl.Int64(),
    "end_ns": pl.Int64(),
}
