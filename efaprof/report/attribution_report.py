"""What `efaprof attribute` says, as one value for all renderings. Sections that a run cannot have are None."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from efaprof.analyzers.by import By
from efaprof.analyzers.recorded import Recorded, summarise
from efaprof.analyzers.replay import STANDARD
from efaprof.analyzers.signatures import segment
from efaprof.analyzers.verdict import decide
from efaprof.errors import NothingToAnalyse, TraceError
from efaprof.report import units
from efaprof.report.annotated_report import annotated_section
from efaprof.report.decode_report import decode_section
from efaprof.report.gpu_times import GpuTimes, gpu_times, times_warnings
from efaprof.report.host_report import host_section
from efaprof.report.job import has_marks, why_no_job
from efaprof.report.nic_words import movement_words
from efaprof.report.self_cost import SelfCost, self_cost
from efaprof.trace import fabric
from efaprof.trace.layers import DispatchPath
from efaprof.trace.manifest import ProbeState

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from efaprof.analyzers.by import PathBy
    from efaprof.analyzers.profile import Profile
    from efaprof.analyzers.replay import Change
    from efaprof.analyzers.signatures import Segmentation
    from efaprof.analyzers.verdict import Verdict
    from efaprof.report.decode_report import DecodeSection
    from efaprof.report.host_report import HostSection
    from efaprof.trace.manifest import Manifest
    from efaprof.trace.reader import Facts, Tables
    from efaprof.trace.rundir import Run

PER_OPERATION = "per-operation"
OPERATIONS = "operations"  # scope of a report without steps
RANK_LOCAL = "rank-local"  # scope of one with steps: each rank's own view, mean over ranks
PAYLOAD_VERIFIED = 3
DELIVERY = (
    "posts returned",
    "local completions",
    "NIC counters moved by the right bytes",
    "payload verified or stamped by the receiver",
)
NO_STEPS = "no decode steps were recorded: a split per token, and every rule for the path, needs them"


@dataclass(frozen=True, slots=True)
class RunSection:
    """Which recordings the report is about."""

    runs: tuple[str, ...]
    program: str
    command: tuple[str, ...]
    path: DispatchPath
    processes: int
    host: str
    started_realtime_ns: int
    efaprof_version: str
    providers: tuple[str, ...]
    fingerprint: dict[str, Any]
    emulated: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class AttributionReport:
    """One report."""

    run: RunSection
    method: str
    scope: str
    recorded: Recorded
    decode: DecodeSection | None  # of the runs of one job with marked decode steps
    segmentation: Segmentation | None  # of a single run without marks that has the pattern of dispatch
    verdict: Verdict
    next_command: str
    warnings: tuple[str, ...]
    self_cost: SelfCost | None = None  # of recording, from above
    host: HostSection | None = None  # of a single run with sampled Python stacks
    gpu_times: tuple[GpuTimes, ...] = ()  # of runs in which GPUs were seen to work

    @property
    def clock_error_ns(self) -> int:
        """Bound on the error of any time against any other."""
        clocks = self.decode.clocks if self.decode else None
        return max(self.recorded.clock_error_ns, math.ceil(clocks.error_ns) if clocks else 0)

    @property
    def delivery_level(self) -> int:
        """How far delivery is proven, as an index of DELIVERY."""
        return PAYLOAD_VERIFIED if self.decode and self.decode.is_verified else self.recorded.delivery_level


def report_on(
    runs: Sequence[tuple[Run, Tables]],
    *,
    by: By = By.KIND,
    path_by: PathBy | None = None,
    what_if: Sequence[Change] = (),
    profile: Profile | None = None,
    step: str | None = None,
) -> AttributionReport:
    """Report on the operations of one or several runs; NothingToAnalyse says what was seen instead of any.

    `step`: names of NVTX ranges that are steps, where the program has no marks.
    """
    recorded = summarise([tables for _, tables in runs], by)
    steps = decode_section(
        runs, recorded, changes=(*STANDARD, *what_if), path_by=path_by, profile=profile
    ) or annotated_section(runs, recorded, pattern=step, profile=profile)
    if not recorded.everything and steps is None:
        raise _nothing(runs)
    first, _ = runs[0]
    times = tuple(one for _, tables in runs for one in gpu_times(tables))
    return AttributionReport(
        run=_run_section(runs, recorded, steps),
        method=steps.decode.split.method if steps else PER_OPERATION,
        scope=RANK_LOCAL if steps else OPERATIONS,
        recorded=recorded,
        decode=steps,
        segmentation=segment(runs[0][1].ops) if steps is None and len(runs) == 1 else None,
        verdict=steps.decode.verdict if steps else decide({}),
        next_command=f"efaprof open {first.path}",
        warnings=(*_warnings(runs, recorded, steps), *times_warnings(times)),
        self_cost=self_cost(runs, recorded, steps),
        host=host_section(*runs[0], steps.found if steps else None) if len(runs) == 1 else None,
        gpu_times=times,
    )


def check_explained(report: AttributionReport) -> None:
    """TraceError where operations have no explanation."""
    lost = report.recorded.unexplained
    if lost:
        kinds = ", ".join(f"{count} {kind}" for kind, count in lost.items())
        raise TraceError(f"operations are unexplained: {kinds}", hint="leave out --strict to see the rest")


def _run_section(runs: Sequence[tuple[Run, Tables]], recorded: Recorded, steps: DecodeSection | None) -> RunSection:
    first = runs[0][0].manifest
    providers = {name for _, tables in runs for name in tables.objects["provider"].drop_nulls().unique()}
    return RunSection(
        runs=tuple(run.path.resolve().name for run, _ in runs),
        program=first.program,
        command=tuple(first.command),
        path=_path(runs) if steps and steps.found is None else DispatchPath.LIBFABRIC,
        processes=recorded.processes,
        host=first.host,
        started_realtime_ns=first.started_realtime_ns,
        efaprof_version=first.efaprof_version,
        providers=tuple(sorted(providers)),
        fingerprint={**runs[0][1].facts.options, **first.fingerprint},
        emulated=tuple(
            dict.fromkeys(name for run, tables in runs for name in (*run.manifest.emulated, *tables.facts.emulated))
        ),
    )


def _path(runs: Sequence[tuple[Run, Tables]]) -> DispatchPath:
    """As the run was asked for, else as its program said."""
    run, tables = runs[0]
    asked = run.manifest.fingerprint.get("path")
    return DispatchPath(asked) if asked else tables.facts.path or DispatchPath.PROXY


def _nothing(runs: Sequence[tuple[Run, Tables]]) -> NothingToAnalyse:
    names = ", ".join(str(run.path) for run, _ in runs)
    if has_marks(runs) and (reason := why_no_job(runs)) is not None:
        return NothingToAnalyse(
            f"{names}: their steps cannot be analysed together: {reason}", hint="give the runs of one job, or one run"
        )
    seen: dict[str, int] = {}
    for _, tables in runs:
        for shape, count in tables.facts.records.items():
            seen[shape] = seen.get(shape, 0) + count
    records = ", ".join(f"{count} {shape}" for shape, count in seen.items()) or "none at all"
    return NothingToAnalyse(
        f"{names}: no libfabric operation was recorded (records seen: {records})",
        hint=f"efaprof info {runs[0][0].path} says which probes were on; did the program use libfabric?",
    )


def _warnings(runs: Sequence[tuple[Run, Tables]], recorded: Recorded, steps: DecodeSection | None) -> list[str]:
    found: list[str] = []
    for run, tables in runs:
        found += [*_bad_end(run.manifest), *run_warnings(run.manifest, tables.facts)]
    if recorded.overlap_clip_ns:
        found.append("some completions were read before their post had returned; their nic time is 0")
    if len(runs) > 1 and steps is None and has_marks(runs) and (reason := why_no_job(runs)) is not None:
        found.append(f"the steps of these runs are not analysed together: {reason}")
    if steps is not None and steps.clocks is not None:
        found.append(_said_of_clocks(steps))
    if steps is not None and steps.missing_ranks:
        ranks = ", ".join(str(rank) for rank in steps.missing_ranks)
        found.append(f"no run has rank {ranks}: what others waited for there is unattributed")
    if steps is not None and steps.found is not None and steps.found.unfinished:
        found.append(f"{steps.found.unfinished:,} steps had begun and not ended when the recording did")
    if steps is not None and steps.mismatches:
        found.append(f"{steps.mismatches:,} tokens differ from the reference: the payload was not delivered right")
    if steps is not None and steps.decode.split.unfinished:
        found.append(f"{steps.decode.split.unfinished:,} operations of decode steps never completed")
    if steps is not None and steps.decode.cut_edges:
        found.append(f"{steps.decode.cut_edges:,} stamps contradict each other; replays leave them out")
    if recorded.movement is not None and recorded.movement.agrees is False:
        found.append(
            f"NIC counters do not agree with the operations ({movement_words(recorded.movement)}):"
            " other traffic, another NIC, or shared memory"
        )
    if recorded.movement is not None and recorded.movement.resets:
        found.append(f"NIC counters were set back {recorded.movement.resets:,} times: what was counted before is kept")
    return list(dict.fromkeys(found))


def _said_of_clocks(steps: DecodeSection) -> str:
    assert steps.clocks is not None  # checked before
    within = f"the clocks of {steps.clocks.hosts} hosts were aligned by the messages between them, within "
    together = "; nic, rx and skew stand together" if steps.decode.is_merged else ""
    return f"{within}±{units.duration(round(steps.clocks.error_ns))}{together}"


def _bad_end(manifest: Manifest) -> list[str]:
    """That the program failed: its steps may not be those of a good run."""
    if manifest.signal is not None:
        return [f"{manifest.program} was killed by signal {manifest.signal}"]
    return [f"{manifest.program} ended with exit code {manifest.exit_code}"] if manifest.exit_code else []


def run_warnings(manifest: Manifest, facts: Facts | None) -> list[str]:
    """What the recording has to say of itself, and what is missing from its records."""
    found = list(manifest.warnings)
    if not manifest.is_closed:
        found.append("the recorder did not end in order; what it had drained was read")
    found += [
        f"probe {probe.name} was degraded: {probe.reason}"
        for probe in manifest.probes
        if probe.state is ProbeState.DEGRADED
    ]
    if facts is not None:
        found += facts.warnings(has_recorder_told=manifest.is_closed)
        found += [f"degraded: {note.text}" for note in facts.notes if note.is_degraded]
        if facts.is_kernel_posted:
            found.append(f"{fabric.KERNEL_POSTED}: what kernels post themselves is not among the operations")
    return found
