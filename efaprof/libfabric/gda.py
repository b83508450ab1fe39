"""`python -m efaprof.libfabric.gda PATH`: whether a libfabric gives its queues to kernels, as one line of JSON.

Run in a process of its own, as everything that runs a provider's code.
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, dataclass

from efaprof.libfabric.cdef import ffi
from efaprof.libfabric.errors import FabricError
from efaprof.libfabric.library import Libfabric
from efaprof.libfabric.survey import GDA_OPS

_FABRIC = "efa-direct"
_CNTR_OPEN_EXT = 5  # place in the table, which has no size
_HAS_IT = (2, 6)
_ENOSYS = 38
_ANY_ATTRIBUTES = 64  # bytes of zeros: struct fi_cntr_attr asks for nothing then


@dataclass(frozen=True, slots=True)
class GdaAnswer:
    """What a libfabric said about kernel-posted operations."""

    version: str = ""
    has_device: bool = False
    has_ops: bool = False
    has_counters: bool = False  # cntr_open_ext is more than a name
    problem: str = ""


def ask_gda(path: str) -> GdaAnswer:
    """Open efa-direct of this libfabric and ask for the functions; counters are asked for, not inferred."""
    try:
        library = Libfabric(path)
        version = "{}.{}".format(*library.version)
        infos = [info for info in library.everything() if info.name == _FABRIC]
        if not infos:
            return GdaAnswer(version)
        with library.fabric(infos[0]) as fabric, fabric.domain() as domain:
            ops = ffi().new("void **")
            if library.shim.efaprof_fi_open_ops(domain.raw, GDA_OPS.encode(), ops) != 0 or not ops[0]:
                return GdaAnswer(version, has_device=True)
            counters = library.version >= _HAS_IT and _opens_counters(domain.raw, ops[0])
            return GdaAnswer(version, has_device=True, has_ops=True, has_counters=counters)
    except FabricError as error:
        return GdaAnswer(problem=error.message)


def _opens_counters(domain: object, table: object) -> bool:
    """Whether cntr_open_ext was built in. It is called without its memory, which it refuses in words of its own."""
    function = ffi().cast("void **", table)[_CNTR_OPEN_EXT]
    if not function:
        return False
    attributes, counter = ffi().new("char[]", _ANY_ATTRIBUTES), ffi().new("void **")
    call = ffi().cast("int (*)(void *, void *, void **, void *, void *)", function)
    return -int(call(ffi().cast("void *", domain), attributes, counter, ffi().NULL, ffi().NULL)) not in (0, _ENOSYS)


if __name__ == "__main__":
    sys.stdout.write(json.dumps(asdict(ask_gda(sys.argv[1]))) + "\n")
