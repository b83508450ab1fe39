"""`efaprof model`: the arithmetic of a dispatch path, operation by operation."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from efaprof.cli.optional_value import command_with
from efaprof.cli.quantities import parse_rate, parse_seconds
from efaprof.cli.talk import Quiet
from efaprof.cli.targets import Targets
from efaprof.errors import UsageError
from efaprof.trace.layers import Layer, Provenance

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from efaprof.analyzers.op_counts import Shape
    from efaprof.analyzers.op_time import OpTime, Quantity
    from efaprof.analyzers.rates import RateTax

Word = TypeVar("Word", bound=StrEnum)
PUBLISHED_RATES = "19.6,27.6"


def model(
    preset: Annotated[str, typer.Option(help="Model: qwen3-30b-a3b or deepseek-v3.")] = "qwen3-30b-a3b",
    layers: Annotated[int | None, typer.Option(min=1, help="Layers with experts.")] = None,
    hidden: Annotated[int | None, typer.Option(min=1, help="Hidden size.")] = None,
    experts: Annotated[int | None, typer.Option(min=1, help="Experts of a layer.")] = None,
    topk: Annotated[int | None, typer.Option(min=1, help="Experts of a token.")] = None,
    dtype: Annotated[str | None, typer.Option(help="Dispatched type: fp8 or bf16.")] = None,
    ranks: Annotated[int | None, typer.Option(min=2, help="Ranks of the expert group.")] = None,
    nodes: Annotated[int | None, typer.Option(min=2, help="Nodes of the expert group.")] = None,
    tokens: Annotated[float | None, typer.Option(min=0, help="Decoded tokens per rank and step.")] = None,
    channels: Annotated[int | None, typer.Option(min=0, help="SMs × channels per SM.")] = None,
    mode: Annotated[str, typer.Option(help="Routing of DeepEP V2: hybrid or direct.")] = "hybrid",
    ops_per_layer: Annotated[
        float | None, typer.Option(min=0, help="Operations per layer, instead of derived.")
    ] = None,
    stage: Annotated[
        list[str] | None, typer.Option(metavar="LAYER=TIME", help="Time that an operation adds there. Repeat for more.")
    ] = None,
    t_op: Annotated[str | None, typer.Option(metavar="TIME", help="Time that an operation adds, not split.")] = None,
    run: Annotated[
        Path | None, typer.Option("--from", metavar="RUN", help="Take t_op from a recorded run or attribution.json.")
    ] = None,
    solve: Annotated[str | None, typer.Option(metavar="t_op", help="Solve t_op from --tax.")] = None,
    tax: Annotated[float | None, typer.Option(min=0, help="ms per token, with --solve t_op.")] = None,
    path: Annotated[
        list[str] | None, typer.Option(help="proxy, gdaki, ibgda or dense. Repeat; all when absent.")
    ] = None,
    dense_itl: Annotated[float | None, typer.Option(min=0, help="ITL of the dense arm, ms.")] = None,
    rates: Annotated[
        str, typer.Option(metavar="ARM,DENSE", help="Two printed rates, tok/s per user, to take a tax from.")
    ] = PUBLISHED_RATES,
    line_rate: Annotated[str, typer.Option(metavar="RATE", help="Wire of one rank.")] = "400Gbps",
    tokens_per_step: Annotated[float | None, typer.Option(min=0, help="Tokens accepted per decode step.")] = None,
    as_json: Annotated[
        str | None, typer.Option("--json", metavar="[FILE]", help="JSON (efaprof.model/1), to stdout or FILE.")
    ] = None,
    as_markdown: Annotated[
        str | None, typer.Option("--markdown", metavar="[FILE]", help="Markdown, to stdout or FILE.")
    ] = None,
    quiet: Quiet = False,
) -> None:
    """Operations per layer × time per operation = tax per token, for every way of posting, each number tagged."""
    from efaprof.analyzers.dispatch_model import Mode, ModelInputs
    from efaprof.analyzers.dispatch_model import model as arithmetic
    from efaprof.analyzers.op_counts import Dtype
    from efaprof.analyzers.op_time import Arm
    from efaprof.analyzers.rates import PUBLISHED_TAX_MS
    from efaprof.report.model_json import model_document
    from efaprof.report.model_report import ModelReport
    from efaprof.report.model_sections import model_heading, model_sections

    targets = Targets(as_json, as_markdown)
    if ops_per_layer == 0 or tokens_per_step == 0:
        raise UsageError("--ops-per-layer and --tokens-per-step must be above 0", hint="leave them out for the default")
    wanted = None if dtype is None else _word(Dtype, dtype, "--dtype")
    changes = {"layers": layers, "hidden": hidden, "experts": experts, "topk": topk, "ranks": ranks, "nodes": nodes}
    timing = _timing(stage or [], t_op, run, solve, tax)
    rate_tax = _rate_tax(rates)
    inputs = ModelInputs(
        shape=_shape(preset, {**changes, "tokens": tokens, "channels": channels, "dtype": wanted}),
        mode=_word(Mode, mode, "--mode"),
        op_time=timing.op_time,
        ops_per_layer=ops_per_layer,
        dense_itl_ms=_dense_itl(dense_itl, rate_tax),
        line_rate_bytes_s=parse_rate(line_rate),
        tokens_per_step=tokens_per_step or timing.tokens_per_step,
        solve_tax_ms=timing.solve_tax_ms,
        arms=tuple(_word(Arm, name, "--path") for name in path) if path else tuple(Arm),
    )
    report = ModelReport(
        inputs=inputs,
        op_time=timing.op_time,
        arms=arithmetic(inputs),
        rate_tax=rate_tax,
        printed_tax_ms=PUBLISHED_TAX_MS if rates == PUBLISHED_RATES else None,
        warnings=timing.warnings,
    )
    targets.write(model_document(report), model_heading(report), model_sections(report))


@dataclass(frozen=True, slots=True)
class _Timing:
    """Where t_op comes from; `op_time` is None when it is solved from a tax."""

    op_time: OpTime | None
    solve_tax_ms: float | None = None
    tokens_per_step: float = 1.0
    warnings: tuple[str, ...] = ()


def _timing(stages: Sequence[str], t_op: str | None, run: Path | None, solve: str | None, tax: float | None) -> _Timing:
    from efaprof.analyzers import op_time

    if sum((bool(stages), t_op is not None, run is not None, solve is not None)) > 1:
        raise UsageError("--stage, --t-op, --from and --solve each say where t_op comes from", hint="give one of them")
    if (solve is None) != (tax is None) or solve not in (None, "t_op"):
        raise UsageError("--solve t_op and --tax MS belong together", hint="efaprof model --solve t_op --tax 14.7")
    if tax is not None:
        if tax == 0:
            raise UsageError("--tax 0 leaves nothing to solve", hint="efaprof model --solve t_op --tax 14.7")
        return _Timing(None, solve_tax_ms=tax)
    if stages:
        return _Timing(op_time.given_op_time(_stage_times(stages)))
    if t_op is not None:
        return _Timing(op_time.total_op_time(parse_seconds(t_op) * 1e6))
    if run is not None:
        return _recorded(run)
    default = op_time.campaign_op_time()
    note = f"t_op is the {default.source}: an order of size; efaprof model --from RUN takes a measured one"
    return _Timing(default, warnings=(note,))


def _recorded(run: Path) -> _Timing:
    from efaprof.analyzers.op_time import recorded_op_time
    from efaprof.ingest.attribution import FILE_NAME, costs_of, read_costs

    if run.is_dir() and not (run / FILE_NAME).is_file():
        costs = costs_of(str(run), _attributed(run))
    else:
        costs = read_costs(run)
    notes = [f"{costs.source}: emulated: {', '.join(costs.emulated)}"] if costs.emulated else []
    if costs.operations_per_step is None:
        notes.append(f"{costs.source} has no steps: t_op is its mean operation's, and what overlaps counts twice")
    return _Timing(recorded_op_time(costs), tokens_per_step=costs.tokens_per_step, warnings=tuple(notes))


def _attributed(run: Path) -> Mapping[str, Any]:
    """The attribution of a run that has none yet, as `efaprof attribute` would write it."""
    from efaprof.cli.run_argument import chosen_run
    from efaprof.report.attribution_json import attribution_document
    from efaprof.report.attribution_report import report_on
    from efaprof.trace.reader import open_tables

    chosen = chosen_run(run)
    return attribution_document(report_on([(chosen, open_tables(chosen))]))


def _stage_times(texts: Sequence[str]) -> dict[Layer, float]:
    found: dict[Layer, float] = {}
    for text in texts:
        name, equals, time = text.partition("=")
        if not equals:
            raise UsageError(f"--stage {text} is not LAYER=TIME", hint="--stage proxy=1.2us --stage libfabric=0.5us")
        found[_word(Layer, name, "--stage")] = parse_seconds(time) * 1e6
    return found


def _shape(preset: str, changes: Mapping[str, Any]) -> Shape:
    from efaprof.analyzers.op_counts import PRESETS

    if preset not in PRESETS:
        raise UsageError(f"there is no preset {preset!r}", hint=f"--preset {' or '.join(PRESETS)}")
    given = {name: value for name, value in changes.items() if value is not None}
    shape = replace(PRESETS[preset], **given)
    if given.keys() & {"layers", "hidden", "experts", "topk"}:
        shape = replace(shape, name=f"{preset}, changed")
    if shape.topk > shape.experts or shape.experts < shape.ranks or shape.ranks < shape.nodes:
        raise UsageError(
            f"top-{shape.topk} of {shape.experts} experts on {shape.ranks} ranks and {shape.nodes} nodes cannot be",
            hint="experts ≥ top-k and ranks, ranks ≥ nodes",
        )
    return shape


def _rate_tax(text: str) -> RateTax:
    from efaprof.analyzers.rates import tax_of_rates

    arm, comma, baseline = text.partition(",")
    if not comma:
        raise UsageError(f"--rates {text} is not ARM,DENSE", hint=f"--rates {PUBLISHED_RATES}")
    return tax_of_rates(arm.strip(), baseline.strip())


def _dense_itl(given_ms: float | None, rate_tax: RateTax) -> Quantity:
    from efaprof.analyzers.op_time import Quantity

    if given_ms is not None:
        return Quantity(given_ms, Provenance.ASSUMED, "given")
    return Quantity(rate_tax.baseline_itl_ms, Provenance.DERIVED, f"1000/{rate_tax.baseline_tok_s}, the printed rate")


def _word(words: type[Word], text: str, option: str) -> Word:
    try:
        return words(text)
    except ValueError:
        raise UsageError(f"{option} {text} is unknown", hint=f"{option} {', '.join(words)}") from None


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("model", cls=command_with("--json", "--markdown"))(model)
