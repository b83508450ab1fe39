"""What each provider of one libfabric really reports: its attributes, and what it answers when asked.

Providers run code of their own when they are listed and opened, so the survey runs in a process of its own; a provider
that ends it is named and left out, and the survey goes on with the others.
"""

from __future__ import annotations

import base64
import pickle
import subprocess
import sys
import tempfile
from dataclasses import dataclass, replace
from typing import IO, TYPE_CHECKING, Any

from efaprof.libfabric import find
from efaprof.libfabric.errors import FabricError
from efaprof.libfabric.info import Info
from efaprof.libfabric.library import Libfabric
from efaprof.libfabric.words import AtomicKind, AtomicOp, Cap, Datatype, EpType, Mode, Op

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

GDA_OPS = "efa gda ops"  # functions by which a kernel finds the device's queues
LEVELS = (Op.INJECT_COMPLETE, Op.TRANSMIT_COMPLETE, Op.DELIVERY_COMPLETE, Op.COMMIT_COMPLETE)
KINDS = (AtomicKind.BASE, AtomicKind.FETCH, AtomicKind.COMPARE)
_TIMEOUT_S = 60
_EVERY_MODE = Mode((1 << 64) - 1)
_NEW_ATOMICS = (2, 1)  # older releases index tables by datatypes that end at UINT128


@dataclass(frozen=True, slots=True)
class Atomics:
    """What a provider answers to fi_query_atomic, for one kind."""

    kind: AtomicKind
    operations: tuple[AtomicOp, ...]  # those that it has for at least one datatype
    datatypes: tuple[Datatype, ...]  # those that it has for at least one operation
    pairs: int  # of operation and datatype
    largest: int  # elements of one atomic, at most


@dataclass(frozen=True, slots=True)
class Offer:
    """One provider: its most useful entry of fi_getinfo, and what else it says."""

    name: str
    info: Info  # a reliable datagram endpoint with remote memory access, where it has one
    entries: int  # of this provider in fi_getinfo's list
    ep_types: tuple[EpType, ...]
    domains: tuple[str, ...]
    levels: tuple[Op, ...]  # completion levels that fi_getinfo accepts
    atomics: tuple[Atomics, ...] | None  # None: the domain was not opened
    has_gda_ops: bool | None  # None: the domain was not opened
    immediate_takes_receive: bool | None  # of a write with immediate; None: there is none
    problem: str = ""  # why the domain was not opened


@dataclass(frozen=True, slots=True)
class Lost:
    """A provider that ended the survey."""

    name: str
    problem: str


@dataclass(frozen=True, slots=True)
class Survey:
    """One libfabric."""

    path: str
    version: tuple[int, int]
    offers: tuple[Offer, ...]
    lost: tuple[Lost, ...]


def survey(library: Libfabric, provider: str | None = None) -> Survey:
    """Every provider of `library` (or those that `provider` names), asked in another process."""
    offers: list[Offer] = []
    lost: list[Lost] = []
    while True:
        done = {offer.name for offer in offers} | {one.name for one in lost}
        messages, outcome = _run(library.path, provider, done)
        offers += [message for message in messages if isinstance(message, Offer)]
        begun = [message for message in messages if isinstance(message, str)]
        if outcome is None:
            return Survey(library.path, library.version, tuple(offers), tuple(lost))
        unfinished = [name for name in begun if name not in {offer.name for offer in offers}]
        if not unfinished:
            raise FabricError(f"the survey of {library.path} failed: {outcome}", hint="efaprof doctor")
        lost.append(Lost(unfinished[-1], outcome))


def _run(path: str, provider: str | None, skip: Iterable[str]) -> tuple[list[Any], str | None]:
    """What the child said, and how it ended if that was not in order."""
    arguments = [path, provider or "", *sorted(skip)]
    with tempfile.TemporaryFile() as said:
        try:
            done = subprocess.run(
                [sys.executable, "-m", "efaprof.libfabric.survey", str(said.fileno()), *arguments],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,  # ours is data
                pass_fds=(said.fileno(),),
                timeout=_TIMEOUT_S,
                check=False,
                env=find.quiet_environment(),
            )
            outcome = None if done.returncode == 0 else find.ending(done.returncode)
        except subprocess.TimeoutExpired:
            outcome = f"did not answer within {_TIMEOUT_S} s"
        said.seek(0)
        # Written by our own code a moment ago; a line that a signal cut is no message.
        lines = [line for line in said.read().split(b"\n")[:-1] if line]
    return [pickle.loads(base64.b64decode(line)) for line in lines], outcome


# ---- in the process that asks -----------------------------------------------------------------


def offers_of(library: Libfabric, provider: str | None, skip: frozenset[str]) -> Iterator[str | Offer]:
    """For each provider its name, before it is asked, and then what it offers."""
    for name, infos in _by_name(library).items():
        if name in skip or (provider is not None and not is_named(name, provider)):
            continue
        yield name
        yield _ask(library, name, infos)


def is_named(name: str, wanted: str) -> bool:
    """Whether a user who says `wanted` means this provider: its whole name, or one of its layers."""
    return wanted == name or wanted in name.split(";")


def _by_name(library: Libfabric) -> dict[str, list[Info]]:
    found: dict[str, list[Info]] = {}
    for info in library.everything():
        found.setdefault(info.name, []).append(info)
    return found


def _infos(library: Libfabric, **wish: Any) -> list[Info]:
    try:
        return library.getinfo(**wish)
    except FabricError:
        return []


def _ask(library: Libfabric, name: str, infos: list[Info]) -> Offer:
    best = max(infos, key=lambda info: (info.ep.type == EpType.RDM, Cap.RMA in info.caps))
    atomics: tuple[Atomics, ...] | None = None
    has_gda_ops: bool | None = None
    problem = ""
    try:
        with library.fabric(best) as fabric, fabric.domain() as domain:
            atomics = tuple(_atomics(library, domain, kind) for kind in KINDS)
            has_gda_ops = domain.has_ops(GDA_OPS)
    except FabricError as error:
        problem = error.message
    return Offer(
        name=name,
        info=replace(best, raw=None),
        entries=len(infos),
        ep_types=tuple(sorted({info.ep.type for info in infos})),
        domains=tuple(dict.fromkeys(info.domain.name for info in infos)),
        levels=tuple(level for level in LEVELS if _accepts(library, best, level)),
        atomics=atomics,
        has_gda_ops=has_gda_ops,
        immediate_takes_receive=_immediate_takes_receive(library, best),
        problem=problem,
    )


def _accepts(library: Libfabric, info: Info, level: Op) -> bool:
    return _offers(library, info, mode=_EVERY_MODE, op_flags=level)


def _immediate_takes_receive(library: Libfabric, info: Info) -> bool | None:
    """Whether remote memory access is only offered to those who post a receive for each immediate (RX_CQ_DATA)."""
    if Cap.RMA not in info.caps or info.domain.cq_data_size == 0:
        return None
    return not _offers(library, info, mode=_EVERY_MODE & ~Mode.RX_CQ_DATA, caps=Cap.MSG | Cap.RMA)


def _offers(library: Libfabric, info: Info, **wish: Any) -> bool:
    """Whether the provider of `info` still offers such endpoints under this wish."""
    provider = info.name if info.name == "efa-direct" else info.fabric.prov_name
    found = _infos(library, provider=provider, ep_type=info.ep.type, **wish)
    return any(one.name == info.name for one in found)


def _atomics(library: Libfabric, domain: Any, kind: AtomicKind) -> Atomics:
    is_old = library.version < _NEW_ATOMICS
    operations = [one for one in AtomicOp if not (is_old and one > AtomicOp.MSWAP)]
    datatypes = [one for one in Datatype if not (is_old and one > Datatype.UINT128)]
    counts = {
        (operation, datatype): count
        for operation in operations
        for datatype in datatypes
        if (count := domain.query_atomic(datatype, operation, kind))
    }
    return Atomics(
        kind,
        tuple(sorted({operation for operation, _ in counts})),
        tuple(sorted({datatype for _, datatype in counts})),
        len(counts),
        max(counts.values(), default=0),
    )


def _write(into: IO[bytes], message: str | Offer) -> None:
    into.write(base64.b64encode(pickle.dumps(message)) + b"\n")
    into.flush()  # what comes next may end this process


def _main(descriptor: str, path: str, provider: str, *skip: str) -> None:
    with open(int(descriptor), "wb", closefd=False) as into:
        for message in offers_of(Libfabric(path), provider or None, frozenset(skip)):
            _write(into, message)


if __name__ == "__main__":
    # As this module is named to its parent, so that both know the same classes.
    from efaprof.libfabric import survey as _named

    _named._main(*sys.argv[1:])
