"""What `efaprof fabric` says, as one value for its renderings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from efaprof.libfabric import EpType
from efaprof.libfabric.survey import is_named
from efaprof.report.fabric_known import DOCUMENTED
from efaprof.report.fabric_traits import Paths, Property, Traits, Value, traits_of, values_of

if TYPE_CHECKING:
    from efaprof.libfabric.survey import Offer, Survey

DEVICE_PROVIDERS = ("efa-direct", "efa")  # shown as documented when nothing here offers them


@dataclass(frozen=True, slots=True)
class Row:
    """One property of one provider."""

    name: Property
    value: Value
    means: str  # for dispatch


@dataclass(frozen=True, slots=True)
class ProviderReport:
    """One provider; `offer` is None for one that is not here and whose values are documented ones."""

    name: str
    offer: Offer | None
    rows: tuple[Row, ...]


@dataclass(frozen=True, slots=True)
class FabricReport:
    """One libfabric."""

    path: str
    version: str
    emulated: tuple[str, ...]
    providers: tuple[ProviderReport, ...]
    warnings: tuple[str, ...]


def report_on(survey: Survey, *, provider: str | None, emulated: tuple[str, ...]) -> FabricReport:
    """Report on a survey of all providers, or of those that `provider` names."""
    found = [_present(offer) for offer in survey.offers]
    names = {one.name for one in found}
    wanted = [provider] if provider is not None else list(DEVICE_PROVIDERS[:1])
    absent = [name for name in wanted if name in DOCUMENTED and not any(is_named(one, name) for one in names)]
    version = "{}.{}".format(*survey.version)
    warnings = [f"{lost.name}: asking it failed: {lost.problem}" for lost in survey.lost]
    warnings += [f"{one.name}: {one.problem}" for one in survey.offers if one.problem]
    warnings += [f"{name} is not offered here: what is shown of it is documented, not asked" for name in absent]
    return FabricReport(survey.path, version, emulated, (*found, *map(_absent, absent)), tuple(warnings))


def _present(offer: Offer) -> ProviderReport:
    return _provider(offer.name, offer, values_of(offer), traits_of(offer))


def _absent(name: str) -> ProviderReport:
    return _provider(name, None, *DOCUMENTED[name])


def _provider(name: str, offer: Offer | None, values: dict[Property, Value], traits: Traits) -> ProviderReport:
    is_reliable = offer is None or offer.info.ep.type != EpType.DGRAM
    rows = tuple(Row(one, values[one], meaning(one, traits, is_reliable=is_reliable)) for one in Property)
    return ProviderReport(name, offer, rows)


def meaning(name: Property, traits: Traits, *, is_reliable: bool = True) -> str:
    """What a property means for dispatch of a mixture of experts, in one line."""
    return _MEANINGS[name](traits) if is_reliable or name is not Property.COMPLETION else _UNRELIABLE


_UNRELIABLE = "messages may be lost: dispatch needs a reliable endpoint above it"


def _ordering(traits: Traits) -> str:
    if traits.keeps_writes:
        return "a signal written after its payload lands after it: no fence between them"
    if traits.keeps_sends:
        return "a signal sent as a message arrives after the payload written before it: no fence between them"
    return "a signal can overtake its payload: count arrivals by immediates, or fence before each signal"


def _atomics(traits: Traits) -> str:
    if traits.adds is None:
        return "not known: a signal that adds may not be possible"
    if not traits.adds:
        return "no remote counters: a signal is a write or an immediate, and the receiver counts"
    return "remote counters can be added to; where software does it, the target's CPU must make progress"


def _immediate(traits: Traits) -> str:
    if traits.immediate_bytes == 0:
        return "payload and signal are two operations"
    if traits.immediate_takes_receive:
        return "payload and signal in one operation, but the receiver must keep a receive posted for each"
    return "payload and signal in one operation; the receiver counts completions, no fence, nothing to post"


def _completion(traits: Traits) -> str:
    if traits.confirms_delivery:
        return "a sender can ask to hear that data is visible remotely: what a flush before a signal waits for"
    return "a completion frees the sender's buffer and says nothing of the receiver: only it can confirm"


def _gpu(traits: Traits) -> str:
    if traits.posts_from_gpu is None:
        return "not known: count on a host thread that posts"
    if traits.posts_from_gpu:
        return "kernels can post themselves (path gdaki): no ring, proxy or libfabric time per operation"
    return "a host thread posts (path proxy): every operation pays ring, proxy and libfabric time"


def _memory(traits: Traits) -> str:
    local = "; source buffers too" if traits.needs_local_registration else ""
    if traits.registers_by_endpoint:
        return f"register each buffer once per endpoint and tell peers each key{local}"
    return f"register each buffer once per NIC; peers need its key for each NIC they write through{local}"


def _gather(traits: Traits) -> str:
    if traits.pieces <= 1:
        return "a token's scattered pieces (values, scales, ids) are packed first, or cost an operation each"
    return f"up to {traits.pieces} pieces of a token (values, scales, ids) go in one operation"


def _multipath(traits: Traits) -> str:
    return {
        Paths.SPRAYED: "one peer can use the whole NIC without more endpoints; the price is that nothing is ordered",
        Paths.SINGLE: "flows that meet on one path share it: several connections a peer spread the load",
        Paths.NONE: "the memory bus is the wire: says nothing of a network",
        Paths.UNKNOWN: "not known",
    }[traits.paths]


_MEANINGS = {
    Property.ORDERING: _ordering,
    Property.ATOMICS: _atomics,
    Property.IMMEDIATE: _immediate,
    Property.COMPLETION: _completion,
    Property.GPU: _gpu,
    Property.MEMORY: _memory,
    Property.GATHER: _gather,
    Property.MULTIPATH: _multipath,
}
