"""`efaprof tax`: what a dispatch path costs per token, from the exports of a serving benchmark."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from efaprof.cli.gating import CiFiles, append_summary, end_with
from efaprof.cli.optional_value import command_with
from efaprof.cli.quantities import parse_seconds
from efaprof.cli.talk import QuietReport, talk
from efaprof.cli.targets import Targets
from efaprof.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from efaprof.analyzers.load_points import LoadPoint
    from efaprof.analyzers.tax_gates import TaxLimit


def tax(
    arm: Annotated[
        list[str],
        typer.Option("--arm", metavar="NAME=PATH", help="An arm: an export or a folder of them. Repeat for more."),
    ],
    baseline: Annotated[str | None, typer.Option(help='Arm to compare with; "dense" if there is one.')] = None,
    moe_layers: Annotated[int | None, typer.Option(min=1, help="Also print the tax per layer with experts.")] = None,
    session_window: Annotated[str, typer.Option(metavar="TIME", help="Runs further apart are other sessions.")] = "24h",
    extrapolate: Annotated[
        bool, typer.Option("--extrapolate", help="Allow a baseline of another session or load, and say so.")
    ] = False,
    margin: Annotated[float, typer.Option(min=0, max=50, help="Equivalence margin of load invariance, percent.")] = 5.0,
    tight_margin: Annotated[float, typer.Option(min=0, max=50, help="Second, tighter margin, percent.")] = 2.0,
    warmup_waves: Annotated[
        int | None, typer.Option(min=0, help="Leading waves to drop in every cell; detected when not given.")
    ] = None,
    ops_per_step: Annotated[
        list[str] | None,
        typer.Option(metavar="CONC=N", help="Measured operations per rank and step at a load. Repeat for more."),
    ] = None,
    ranks: Annotated[int, typer.Option(min=1, help="Ranks, for the predicted growth of operations.")] = 16,
    fail_above: Annotated[
        list[str] | None,
        typer.Option(metavar="[ARM=]TIME", help="Gate: the tax per token, of every arm or of one; repeatable."),
    ] = None,
    expect: Annotated[
        list[str] | None,
        typer.Option(metavar="[!]ARM=OUTCOME", help="Gate: flat, load-sensitive or inconclusive; repeatable."),
    ] = None,
    junit: Annotated[Path | None, typer.Option(metavar="FILE", help="Gates as JUnit test cases.")] = None,
    bench: Annotated[Path | None, typer.Option(metavar="FILE", help="Tax for github-action-benchmark.")] = None,
    strict: Annotated[bool, typer.Option("--strict", help="Exit 4 also when a gate is inconclusive.")] = False,
    plot: Annotated[Path | None, typer.Option(metavar="FILE.svg|png", help="Draw tok/s and ITL over load.")] = None,
    as_json: Annotated[
        str | None, typer.Option("--json", metavar="[FILE]", help="JSON (efaprof.tax/1), to stdout or FILE.")
    ] = None,
    as_markdown: Annotated[
        str | None, typer.Option("--markdown", metavar="[FILE]", help="Markdown, to stdout or FILE.")
    ] = None,
    quiet: QuietReport = False,
) -> None:
    """Tax per token of serving arms against a baseline, with intervals, and whether it depends on the load.

    With a gate, exit 4 when it fails; where the data cannot tell, it passes unless --strict.
    """
    from efaprof.analyzers.tax import TaxOptions, compare
    from efaprof.analyzers.tax_gates import parse_expected, tax_gates
    from efaprof.report.benchmark_json import tax_rows
    from efaprof.report.gates_json import gate_rows, gates_table
    from efaprof.report.tax_json import tax_document
    from efaprof.report.tax_plot import write_plot
    from efaprof.report.tax_sections import tax_heading, tax_sections

    targets = Targets(as_json, as_markdown, is_quiet=quiet)
    limits, expected = [_limit(text) for text in fail_above or ()], [parse_expected(text) for text in expect or ()]
    options = TaxOptions(
        baseline=baseline,
        session_window_h=parse_seconds(session_window) / 3600,
        may_extrapolate=extrapolate,
        moe_layers=moe_layers,
        margin=margin / 100,
        tight_margin=min(tight_margin, margin) / 100,
        ops_per_step=_ops(ops_per_step or []),
        ranks=ranks,
    )
    report = compare(_read(arm, warmup_waves), options)
    if plot is not None:
        write_plot(report, plot)
    gates = tax_gates(report, limits=limits, expected=expected)
    heading, sections = tax_heading(report), tax_sections(report)
    if gates:
        sections = [*sections[:-1], gates_table(gates), sections[-1]]
    targets.write(tax_document(report) | {"gates": gate_rows(gates)}, heading, sections)
    CiFiles(junit, bench).write("efaprof tax", gates, tax_rows(report))
    if gates:
        append_summary(heading, sections)
        end_with(gates, is_strict=strict, hint="the report has every arm and load, with intervals")


def _limit(text: str) -> TaxLimit:
    """`16.5ms` or `deepep=16.5ms` as a limit."""
    from efaprof.analyzers.tax_gates import TaxLimit

    arm, _, time = text.rpartition("=")
    return TaxLimit(arm or None, parse_seconds(time) * 1e3)


def _read(arms: Sequence[str], warmup_waves: int | None) -> Mapping[str, Sequence[LoadPoint]]:
    from efaprof.analyzers.load_points import load_points
    from efaprof.ingest.exports import read_arm
    from efaprof.report.progress import reading_bar

    paths: dict[str, list[Path]] = {}
    for text in arms:
        name, equals, path = text.partition("=")
        if not name or not equals or not path:
            raise UsageError(
                f"--arm {text} is not NAME=PATH", hint="--arm deepep=results/deepep --arm dense=results/dense"
            )
        paths.setdefault(name, []).append(Path(path))
    points = {}
    with reading_bar() as bar:
        for name, places in paths.items():
            found = read_arm(places, progress=bar)
            points[name] = load_points(found.cells, warmup_waves=warmup_waves)
            if found.ignored:
                talk(f"{name}: {len(found.ignored)} files are no benchmark export, not read")
    return points


def _ops(texts: Sequence[str]) -> dict[int, float]:
    found: dict[int, float] = {}
    for text in texts:
        load, _, count = text.partition("=")
        try:
            found[int(load)] = float(count)
        except ValueError:
            raise UsageError(f"--ops-per-step {text} is not CONC=N", hint="--ops-per-step 4=2016") from None
    return found


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("tax", cls=command_with("--json", "--markdown"))(tax)
