"""What is documented about reliable connections (RC) and EFA's SRD: reference values, assumed, none measured here."""

from __future__ import annotations

from efaprof.report.fabric_traits import Paths, Property, Traits, Value
from efaprof.trace.layers import Provenance


def _known(text: str, source: str) -> Value:
    return Value(text, Provenance.ASSUMED, source)


_IBTA = "InfiniBand architecture"
_EFA_DEVICE = "rdma-core providers/efa"
_EFA_PROVIDER = "libfabric prov/efa"

RC: dict[Property, Value] = {
    Property.ORDERING: _known("in order per QP", _IBTA),
    Property.ATOMICS: _known("8 B fetch-add, compare-swap", _IBTA),
    Property.IMMEDIATE: _known("4 B, takes a receive", _IBTA),
    Property.COMPLETION: _known("remote NIC acknowledged", _IBTA),
    Property.GPU: _known("IBGDA", "NVSHMEM, DeepEP"),
    Property.MEMORY: _known("per NIC, 4 B key", _IBTA),
    Property.GATHER: _known("tens of pieces", "device dependent: ibv_query_device max_sge"),
    Property.MULTIPATH: _known("one path a QP", "RoCE v2: the flow is hashed"),
}
SRD: dict[Property, Value] = {
    Property.ORDERING: _known("none", f"{_EFA_PROVIDER}: msg_order of efa-direct is 0"),
    Property.ATOMICS: _known("none in hardware", f"{_EFA_DEVICE}: send, RDMA read and write only"),
    Property.IMMEDIATE: _known("4 B, no receive since 1.22", f"{_EFA_PROVIDER}, rdma-core 52: unsolicited write"),
    Property.COMPLETION: _known("after the remote's answer", f"{_EFA_DEVICE}: status codes 7 to 15; untested here"),
    Property.GPU: _known("EFA-GDA: P5en, P6", "aws-ofi-nccl 1.21: libfabric 2.6, NCCL 2.31.2"),
    Property.MEMORY: _known("per NIC, 4 B key", f"{_EFA_PROVIDER}: one domain a device, FI_MR_PROV_KEY"),
    Property.GATHER: _known("send 2, RDMA write 1", f"{_EFA_DEVICE}: descriptor buffers"),
    Property.MULTIPATH: _known("packets sprayed", "AWS: SRD; not visible in libfabric"),
}

_SRD_TRAITS = Traits(
    keeps_writes=False,
    keeps_sends=False,
    adds=False,
    immediate_bytes=4,
    immediate_takes_receive=False,
    confirms_delivery=True,
    posts_from_gpu=True,
    registers_by_endpoint=False,
    needs_local_registration=True,
    pieces=1,
    paths=Paths.SPRAYED,
)
_RC_TRAITS = Traits(
    keeps_writes=True,
    keeps_sends=True,
    adds=True,
    immediate_bytes=4,
    immediate_takes_receive=True,
    confirms_delivery=True,
    posts_from_gpu=True,
    registers_by_endpoint=False,
    needs_local_registration=True,
    pieces=16,
    paths=Paths.SINGLE,
)

# Providers of hardware that may be missing here: their documented values and traits.
DOCUMENTED: dict[str, tuple[dict[Property, Value], Traits]] = {
    "efa-direct": (SRD, _SRD_TRAITS),
    "efa": (
        {
            **SRD,
            Property.ORDERING: _known("SAS, by software", f"{_EFA_PROVIDER}: a reorder window over SRD"),
            Property.ATOMICS: _known("emulated by software", f"{_EFA_PROVIDER}: the target's CPU must progress"),
            Property.GATHER: _known("4, copied by software", f"{_EFA_PROVIDER}: iov_limit of efa"),
            Property.GPU: _known("no: efa-direct alone", f"{_EFA_PROVIDER}: FI_EFA_GDA_OPS"),
        },
        Traits(
            keeps_writes=False,
            keeps_sends=False,
            adds=True,
            immediate_bytes=4,
            immediate_takes_receive=False,
            confirms_delivery=True,
            posts_from_gpu=False,
            registers_by_endpoint=False,
            needs_local_registration=False,
            pieces=4,
            paths=Paths.SPRAYED,
        ),
    ),
    "verbs": (RC, _RC_TRAITS),
}
