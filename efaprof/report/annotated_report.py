"""The decode section of programs whose steps are annotated, named by NVTX ranges, or launched as CUDA graphs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import polars as pl

from efaprof.analyzers.annotated import annotated_decode, tokens_of
from efaprof.analyzers.step_costs import RunSteps, step_costs
from efaprof.analyzers.steps import FoundSteps, ProcessSteps, asked_pattern, find_steps
from efaprof.report.decode_report import COSTS_NAME, DecodeSection, host_facts
from efaprof.report.job import missing_ranks, why_no_job
from efaprof.trace.events import PARENT

if TYPE_CHECKING:
    from collections.abc import Sequence

    from efaprof.analyzers.profile import Profile
    from efaprof.analyzers.recorded import Recorded
    from efaprof.trace.reader import Tables
    from efaprof.trace.rundir import Run


def annotated_section(
    runs: Sequence[tuple[Run, Tables]],
    recorded: Recorded,
    *,
    pattern: str | None = None,
    profile: Profile | None = None,
) -> DecodeSection | None:
    """Section for the runs of one job whose program says where its steps are, else None.

    `pattern`: all of the names of NVTX ranges that are steps; None: what `record --step` was given.
    """
    if len(runs) > 1 and why_no_job(runs) is not None:
        return None
    found = [_of_run(run, tables, pattern) for run, tables in runs]
    if any(one is None for one in found):
        return None
    steps = [one for one in found if one is not None]
    numbers = _ranks([(tables, one) for (_, tables), one in zip(runs, steps, strict=True)])
    costs = step_costs(
        [RunSteps(tables, one, rank) for (_, tables), one, rank in zip(runs, steps, numbers, strict=True)]
    )
    ranks = costs.frame["rank"].n_unique()
    decode = annotated_decode(costs, host_facts([tables for _, tables in runs], recorded, ranks=ranks), profile=profile)
    if decode is None:
        return None
    if len(runs) == 1:
        decode.step_costs.write_parquet(runs[0][1].folder / COSTS_NAME)
    return DecodeSection(
        decode=decode,
        predicted_per_step=None,
        verified_tokens=0,
        mismatches=0,
        missing_ranks=missing_ranks(runs[0][0].manifest, decode.split.ranks),
        found=_merged(steps),
        tokens=tokens_of(costs.frame),
    )


def _of_run(run: Run, tables: Tables, pattern: str | None) -> FoundSteps | None:
    found = find_steps(tables.spans, pattern if pattern is not None else asked_pattern(run.manifest.options))
    return None if found is None else _lent(found, tables)


def _lent(found: FoundSteps, tables: Tables) -> FoundSteps:
    """The steps of a single process that posts nothing are those of the processes that do: its workers."""
    if len(found.processes) != 1:
        return found
    (only,) = found.processes
    own = pl.col("nest") == 0
    posting = tables.ops.filter(own).select(pl.col("process").unique().sort()).collect().to_series().to_list()
    if not posting or only.process in posting:
        return found
    return FoundSteps(found.by, found.names, tuple(_as_of(only, process) for process in posting), found.unfinished)


def _as_of(steps: ProcessSteps, process: int) -> ProcessSteps:
    return ProcessSteps(
        process, steps.number, steps.begin_ns, steps.end_ns, steps.until_ns, steps.kind, steps.tokens, steps.batch,
        steps.has_ends,
    )  # fmt: skip


def _ranks(runs: Sequence[tuple[Tables, FoundSteps]]) -> list[dict[int, int]]:
    """Rank of each process with steps, by run: the launcher's numbers where all are known and differ, else in order."""
    rows: list[tuple[int, int, int | None, int]] = []  # run, process, rank, pid
    for number, (tables, found) in enumerate(runs):
        of = {row["process"]: row for row in tables.processes.filter(pl.col("producer") != PARENT).to_dicts()}
        rows += [(number, one.process, of[one.process]["rank"], of[one.process]["pid"]) for one in found.processes]
    known = [rank for _, _, rank, _ in rows]
    made: list[dict[int, int]] = [{} for _ in runs]
    if None not in known and len(set(known)) == len(known):
        for number, process, rank, _ in rows:
            made[number][process] = int(rank or 0)
        return made
    for position, (number, process, _, _) in enumerate(sorted(rows, key=lambda row: (row[0], row[3]))):
        made[number][process] = position
    return made


def _merged(found: Sequence[FoundSteps]) -> FoundSteps:
    return FoundSteps(
        by=tuple(dict.fromkeys(by for one in found for by in one.by)),
        names=tuple(dict.fromkeys(name for one in found for name in one.names)),
        processes=tuple(steps for one in found for steps in one.processes),
        unfinished=sum(one.unfinished for one in found),
    )


def found_keys(section: DecodeSection) -> dict[str, Any] | None:
    """How the steps were found, for the attribution document; None where marks say it."""
    found, tokens = section.found, section.tokens
    if found is None or tokens is None:
        return None
    return {
        "by": [by.value for by in found.by],
        "names": list(found.names),
        "unfinished": found.unfinished,
        "tokens": tokens.tokens,
        "batch": tokens.batch,
    }


def found_words(section: DecodeSection) -> str:
    """How the steps were found, for a heading."""
    found = section.found
    return "" if found is None else f" by {' and '.join(by.value for by in found.by)}"
