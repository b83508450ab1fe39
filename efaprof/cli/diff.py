"""`efaprof diff`: what changed between two groups of runs, layer by layer, and a gate on it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand

from efaprof.cli.gating import CiFiles, append_summary, end_with
from efaprof.cli.optional_value import command_with
from efaprof.cli.quantities import parse_percent
from efaprof.cli.run_argument import chosen_run
from efaprof.cli.talk import QuietReport
from efaprof.cli.targets import Targets
from efaprof.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from efaprof.analyzers.path_change import PathChange
    from efaprof.analyzers.profile import Profile
    from efaprof.report.diff_runs import ReadRun

_SPLIT = "\0--"  # stands for `--` among the arguments: no path holds a zero byte


class _TwoGroups(TyperCommand):
    """Keeps `--` as an argument, so that it parts two groups and options may stand on either side of it."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        return super().parse_args(ctx, [_SPLIT if word == "--" else word for word in args])


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("diff", cls=command_with("--json", "--markdown", base=_TwoGroups))(diff)


def diff(
    runs: Annotated[
        list[str],
        typer.Argument(metavar="A... -- B...", help="Runs of both sides: run directories or attribution.json files."),
    ],
    baseline: Annotated[
        list[str] | None, typer.Option(metavar="RUN", help="A run of side A; all others are B. Repeatable.")
    ] = None,
    fail_regression: Annotated[
        str | None,
        typer.Option(metavar="PERCENT", help="Exit 4 when the step is shown to be longer by more, or a layer is."),
    ] = None,
    margin: Annotated[str, typer.Option(metavar="PERCENT", help="A change of the step up to here is none.")] = "3%",
    layer_margin: Annotated[str, typer.Option(metavar="PERCENT", help="The same for one layer.")] = "10%",
    allow: Annotated[
        list[str] | None, typer.Option(metavar="KEY", help="Compare although this differs, inject say. Repeatable.")
    ] = None,
    unfenced: Annotated[
        list[str] | None,
        typer.Option(metavar="RUN", help="Proxy against gdaki: a proxy run without fences, beside both. Repeatable."),
    ] = None,
    strict: Annotated[bool, typer.Option("--strict", help="Exit 4 unless the step is shown to be no longer.")] = False,
    junit: Annotated[Path | None, typer.Option(metavar="FILE", help="Gates as JUnit test cases.")] = None,
    bench: Annotated[Path | None, typer.Option(metavar="FILE", help="B's times for github-action-benchmark.")] = None,
    as_json: Annotated[
        str | None, typer.Option("--json", metavar="[FILE]", help="JSON (efaprof.diff/1), to stdout or FILE.")
    ] = None,
    as_markdown: Annotated[
        str | None, typer.Option("--markdown", metavar="[FILE]", help="Markdown, to stdout or FILE.")
    ] = None,
    quiet: QuietReport = False,
) -> None:
    """Compare two groups of runs: A is what was, B is what is.

    The unit is the run: record at least 3 on each side, one side after the other (A B B A A B). A regression is only
    what is shown to be one; what cannot be told passes unless --strict. Runs that are not comparable end with 5.
    Runs with a proxy against runs whose kernel posts by itself: what the first predict of the second stands beside it.
    """
    from efaprof.analyzers.diff import Margins
    from efaprof.report.benchmark_json import diff_rows
    from efaprof.report.diff_json import diff_document
    from efaprof.report.diff_paths import PATH_KEYS, path_document, path_sections
    from efaprof.report.diff_report import diff_report
    from efaprof.report.diff_sections import diff_heading, diff_sections
    from efaprof.report.progress import counting_bar

    targets = Targets(as_json, as_markdown, is_quiet=quiet)
    first, second = _groups(runs, baseline or [])
    margins = Margins(parse_percent(fail_regression or margin), parse_percent(layer_margin))
    with counting_bar("reading runs", len(first) + len(second)) as advance:
        sides = [read_runs(side, advance) for side in (first, second)]
    allowed = frozenset(allow or ())
    paths = _paths(sides, [first, second, unfenced or []])
    report = diff_report(*sides, margins=margins, allowed=allowed | (PATH_KEYS if paths else frozenset()))
    heading, sections = diff_heading(report), diff_sections(report)
    document = diff_document(report)
    if paths is not None:
        sections[1:1] = path_sections(paths)
        document |= {"paths": path_document(paths)}
    targets.write(document, heading, sections)
    CiFiles(junit, bench).write("efaprof diff", report.gates, diff_rows(report.diff))
    append_summary(heading, sections)
    if fail_regression is not None or strict:
        end_with(report.gates, is_strict=strict)


def _groups(words: Sequence[str], baseline: Sequence[str]) -> tuple[list[str], list[str]]:
    """Runs of both sides, each at least one."""
    if words.count(_SPLIT) > 1 or (baseline and _SPLIT in words):
        raise UsageError("there are more than two sides", hint="efaprof diff A... -- B..., or B... --baseline A")
    at = words.index(_SPLIT) if _SPLIT in words else None
    first, second = (list(baseline), list(words)) if at is None else (list(words[:at]), list(words[at + 1 :]))
    if not first or not second:
        raise UsageError(
            "a comparison needs runs on two sides", hint="efaprof diff A1 A2 A3 -- B1 B2 B3, or B1 … --baseline A1 …"
        )
    for side in (first, second):
        twice = sorted({path for path in side if side.count(path) > 1})
        if twice:
            raise UsageError(
                f"{twice[0]} stands twice on one side", hint="each run counts once: noise between runs is judged"
            )
    return first, second


def _paths(sides: Sequence[Sequence[ReadRun]], paths: Sequence[Sequence[str]]) -> PathChange | None:
    """What a comparison of a proxy with a kernel that posts says of the claim; None when it is no such comparison."""
    from efaprof.report.diff_paths import is_across_paths, path_change

    if not is_across_paths(*sides):
        if paths[2]:
            raise UsageError(
                "--unfenced stands beside a proxy path and a kernel-posted path",
                hint="efaprof diff PROXY... -- GDAKI...",
            )
        return None
    kept = [path for side in paths for path in side if not Path(path).is_dir()]
    if kept:
        raise UsageError(
            f"{kept[0]} is no run directory: a kept report cannot be replayed", hint="give the run directories"
        )
    return path_change(*([chosen_run(Path(path)) for path in side] for side in paths))


def read_runs(
    paths: Sequence[str | Path], advance: Callable[[], None], *, profile: Profile | None = None
) -> list[ReadRun]:
    """Run directories and kept reports of one side, in order; `advance` after each of them."""
    from efaprof.report.diff_runs import read_directory, read_document

    found = []
    for path in map(Path, paths):
        found.append(read_document(path) if path.is_file() else read_directory(chosen_run(path), profile=profile))
        advance()
    return found
