"""libfabric's enumerations under the names that it gives them, without `FI_`.

Bits that this table does not know stay in a flag set; a value that an enumeration does not know becomes a member named
`UNKNOWN_<value>`: a newer libfabric is no error.
"""

from __future__ import annotations

from enum import IntEnum, IntFlag
from typing import Self


class _Word(IntEnum):
    """An enumeration that keeps what it does not know."""

    @classmethod
    def _missing_(cls, value: object) -> Self | None:
        if not isinstance(value, int):
            return None
        found = int.__new__(cls, value)
        found._name_ = f"UNKNOWN_{value}"
        found._value_ = value
        return found


class _Bits(IntFlag):
    """A set of bits."""

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the bits, lowest first; those that nobody named as hexadecimal numbers."""
        return tuple(bit.name or hex(bit) for bit in self._each())

    def _each(self) -> list[Self]:
        return [type(self)(1 << at) for at in range(int(self).bit_length()) if int(self) >> at & 1]


class Cap(_Bits):
    """Capabilities (`fi_info.caps` and those of its attributes); also access rights of a memory region."""

    NONE = 0
    MSG = 1 << 1
    RMA = 1 << 2
    TAGGED = 1 << 3
    ATOMIC = 1 << 4
    MULTICAST = 1 << 5
    COLLECTIVE = 1 << 6
    READ = 1 << 8
    WRITE = 1 << 9
    RECV = 1 << 10
    SEND = 1 << 11
    REMOTE_READ = 1 << 12
    REMOTE_WRITE = 1 << 13
    MULTI_RECV = 1 << 16
    TRIGGER = 1 << 20
    FENCE = 1 << 21
    AV_USER_ID = 1 << 41
    PEER = 1 << 43
    XPU_TRIGGER = 1 << 44  # until 1.x
    TAGGED_DIRECTED_RECV = 1 << 45  # since 2.0
    TAGGED_MULTI_RECV = 1 << 46  # since 2.0
    HMEM = 1 << 47
    EXACT_DIRECTED_RECV = 1 << 48  # since 2.0; VARIABLE_MSG before
    RMA_PMEM = 1 << 49
    SOURCE_ERR = 1 << 50
    LOCAL_COMM = 1 << 51
    REMOTE_COMM = 1 << 52
    SHARED_AV = 1 << 53
    RMA_EVENT = 1 << 56
    SOURCE = 1 << 57
    NAMED_RX_CTX = 1 << 58
    DIRECTED_RECV = 1 << 59


class Mode(_Bits):
    """What a provider asks of its user (`fi_info.mode`)."""

    NONE = 0
    BUFFERED_RECV = 1 << 51
    CONTEXT2 = 1 << 52
    RESTRICTED_COMP = 1 << 53
    NOTIFY_FLAGS_ONLY = 1 << 54
    LOCAL_MR = 1 << 55
    RX_CQ_DATA = 1 << 56
    ASYNC_IOV = 1 << 57
    MSG_PREFIX = 1 << 58
    CONTEXT = 1 << 59


class Op(_Bits):
    """Flags of operations (`op_flags`) and of completions."""

    NONE = 0
    MSG = 1 << 1
    RMA = 1 << 2
    TAGGED = 1 << 3
    ATOMIC = 1 << 4
    COLLECTIVE = 1 << 6
    READ = 1 << 8
    WRITE = 1 << 9
    RECV = 1 << 10
    SEND = 1 << 11
    REMOTE_READ = 1 << 12
    REMOTE_WRITE = 1 << 13
    MULTI_RECV = 1 << 16
    REMOTE_CQ_DATA = 1 << 17
    MORE = 1 << 18
    PEEK = 1 << 19
    TRIGGER = 1 << 20
    FENCE = 1 << 21
    COMPLETION = 1 << 24
    INJECT = 1 << 25
    INJECT_COMPLETE = 1 << 26
    TRANSMIT_COMPLETE = 1 << 27
    DELIVERY_COMPLETE = 1 << 28
    AFFINITY = 1 << 29
    COMMIT_COMPLETE = 1 << 30
    MATCH_COMPLETE = 1 << 31
    PEER_TRANSFER = 1 << 36
    DISCARD = 1 << 58
    CLAIM = 1 << 59


class Order(_Bits):
    """Orders that are kept (`msg_order`, `comp_order`): the later operation, after, the earlier one."""

    NONE = 0
    RAR = 1 << 0
    RAW = 1 << 1
    RAS = 1 << 2
    WAR = 1 << 3
    WAW = 1 << 4
    WAS = 1 << 5
    SAR = 1 << 6
    SAW = 1 << 7
    SAS = 1 << 8
    DATA = 1 << 16
    RMA_RAR = 1 << 32
    RMA_RAW = 1 << 33
    RMA_WAR = 1 << 34
    RMA_WAW = 1 << 35
    ATOMIC_RAR = 1 << 36
    ATOMIC_RAW = 1 << 37
    ATOMIC_WAR = 1 << 38
    ATOMIC_WAW = 1 << 39


class MrMode(_Bits):
    """What a provider asks of registered memory (`mr_mode`)."""

    NONE = 0
    BASIC = 1 << 0
    SCALABLE = 1 << 1
    LOCAL = 1 << 2
    RAW = 1 << 3
    VIRT_ADDR = 1 << 4
    ALLOCATED = 1 << 5
    PROV_KEY = 1 << 6
    MMU_NOTIFY = 1 << 7
    RMA_EVENT = 1 << 8
    ENDPOINT = 1 << 9
    HMEM = 1 << 10
    COLLECTIVE = 1 << 11


class EpType(_Word):
    """Kinds of endpoints."""

    UNSPEC = 0
    MSG = 1
    DGRAM = 2
    RDM = 3
    SOCK_STREAM = 4
    SOCK_DGRAM = 5


class Threading(_Word):
    """Which calls the user may make at once."""

    UNSPEC = 0
    SAFE = 1
    FID = 2
    DOMAIN = 3
    COMPLETION = 4
    ENDPOINT = 5


class Progress(_Word):
    """Who drives transfers: the provider (`AUTO`), or the user by reading completions (`MANUAL`)."""

    UNSPEC = 0
    AUTO = 1
    MANUAL = 2
    CONTROL_UNIFIED = 3


class ResourceMgmt(_Word):
    """Whether the provider guards against overrun queues."""

    UNSPEC = 0
    DISABLED = 1
    ENABLED = 2


class AvType(_Word):
    """How an address vector names its entries."""

    UNSPEC = 0
    MAP = 1
    TABLE = 2


class AddrFormat(_Word):
    """Formats of addresses."""

    UNSPEC = 0
    SOCKADDR = 1
    SOCKADDR_IN = 2
    SOCKADDR_IN6 = 3
    SOCKADDR_IB = 4
    PSMX = 5
    GNI = 6
    BGQ = 7
    MLX = 8
    STR = 9
    PSMX2 = 10
    IB_UD = 11
    EFA = 12
    PSMX3 = 13
    OPX = 14
    CXI = 15
    UCX = 16
    SOCKADDR_IP = 17


class Protocol(_Word):
    """Wire protocols of endpoints."""

    UNSPEC = 0
    RDMA_CM_IB_RC = 1
    IWARP = 2
    IB_UD = 3
    PSMX = 4
    UDP = 5
    SOCK_TCP = 6
    MXM = 7
    IWARP_RDM = 8
    IB_RDM = 9
    GNI = 10
    RXM = 11
    RXD = 12
    MLX = 13
    NETWORKDIRECT = 14
    PSMX2 = 15
    SHM = 16
    MRAIL = 17
    RSTREAM = 18
    RDMA_CM_IB_XRC = 19
    EFA = 20
    PSMX3 = 21
    RXM_TCP = 22
    OPX = 23
    CXI = 24
    XNET = 25
    COLL = 26
    UCX = 27
    SM2 = 28
    CXI_RNR = 29
    LPP = 30
    LNX = 31


class LinkState(_Word):
    """State of a NIC's link."""

    UNKNOWN = 0
    DOWN = 1
    UP = 2


class CqFormat(_Word):
    """What a completion carries; each format has the fields of the one before."""

    UNSPEC = 0
    CONTEXT = 1
    MSG = 2
    DATA = 3
    TAGGED = 4


class WaitObj(_Word):
    """What a completion queue can be waited on with."""

    NONE = 0
    UNSPEC = 1
    SET = 2
    FD = 3
    MUTEX_COND = 4
    YIELD = 5
    POLLFD = 6


class Datatype(_Word):
    """Datatypes of atomics."""

    INT8 = 0
    UINT8 = 1
    INT16 = 2
    UINT16 = 3
    INT32 = 4
    UINT32 = 5
    INT64 = 6
    UINT64 = 7
    FLOAT = 8
    DOUBLE = 9
    FLOAT_COMPLEX = 10
    DOUBLE_COMPLEX = 11
    LONG_DOUBLE = 12
    LONG_DOUBLE_COMPLEX = 13
    INT128 = 14
    UINT128 = 15
    FLOAT16 = 16
    BFLOAT16 = 17
    FLOAT8_E4M3 = 18
    FLOAT8_E5M2 = 19


class AtomicOp(_Word):
    """Operations of atomics."""

    MIN = 0
    MAX = 1
    SUM = 2
    PROD = 3
    LOR = 4
    LAND = 5
    BOR = 6
    BAND = 7
    LXOR = 8
    BXOR = 9
    ATOMIC_READ = 10
    ATOMIC_WRITE = 11
    CSWAP = 12
    CSWAP_NE = 13
    CSWAP_LE = 14
    CSWAP_LT = 15
    CSWAP_GE = 16
    CSWAP_GT = 17
    MSWAP = 18
    DIFF = 19


class AtomicKind(_Bits):
    """Which form of an atomic: without a result (0), fetching the old value, or comparing first."""

    BASE = 0
    FETCH = 1 << 58
    COMPARE = 1 << 59
