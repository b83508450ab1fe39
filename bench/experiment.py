"""The published experiment on one machine: serving arms over load, their tax, and which layer the tax lies in.

    python bench/experiment.py -o FOLDER [--arms proxy,dense] [--concurrency 1,2,4] [--isl 8,48] [--rounds 3]
                               [--device cuda]

The example server (examples/serve.py) serves with each arm in turn, every time under `efaprof record`, and a closed
loop of clients asks it (examples/load.py). `efaprof tax` reads what the clients saw, `efaprof attribute` what the
server did. Three figures are set side by side for each cell: the tax that clients saw, the difference of the traces'
time per token, and the difference of decode steps split by layer, with what the layers do not explain as a residual.
"""

from __future__ import annotations

import argparse
import json
import math
import signal
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import polars as pl

ROOT = Path(__file__).parent.parent
sys.path[:0] = [str(ROOT / "examples"), str(ROOT / "tests")]

from serve_runs import Server, record  # noqa: E402

from efaprof.analyzers.batches import t_quantile  # noqa: E402
from efaprof.session import host  # noqa: E402
from efaprof.trace.layout import UNSAID_COUNT, AnnotatedStep  # noqa: E402
from efaprof.trace.reader import open_tables  # noqa: E402
from efaprof.trace.rundir import open_run  # noqa: E402

EFAPROF = (sys.executable, "-m", "efaprof")
BASELINE = "dense"
MODEL = ("--layers", "4", "--hidden", "64", "--experts", "8", "--topk", "2", "--tokens", "64", "--length", "128")
LAYERS = 4
RANKS = 2  # of serve.py unless it is told otherwise


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean with its 95 % interval, in milliseconds."""

    value: float
    half: float

    def __str__(self) -> str:
        return f"{self.value:7.2f} ±{self.half:.2f}"

    def meets(self, other: Estimate) -> str:
        """Whether the intervals have a value in common; of one round there is none."""
        room = self.half + other.half
        if math.isnan(room):
            return "–"
        return "yes" if abs(self.value - other.value) <= room else "NO"

    def minus(self, other: Estimate) -> Estimate:
        """Difference of two independent means."""
        return Estimate(self.value - other.value, math.hypot(self.half, other.half))


def mean_of(values: list[float]) -> Estimate:
    """Mean of rounds, by t."""
    if len(values) < 2:
        return Estimate(values[0], math.nan)
    error = statistics.stdev(values) / math.sqrt(len(values))
    return Estimate(statistics.fmean(values), t_quantile(0.975, len(values) - 1) * error)


@dataclass(frozen=True, slots=True)
class Cell:
    """A load."""

    concurrency: int
    isl: int


@dataclass(frozen=True, slots=True)
class Trace:
    """What one recorded run says, milliseconds."""

    itl: float  # mean that its clients saw
    token: float  # mean time between two tokens of a sequence while they measured, mixed steps included
    decode: float  # mean decode step
    layers: dict[str, float]


def run_name(arm: str, cell: Cell, number: int) -> str:
    """Of a recorded run and of the export of its clients."""
    return f"{arm}-c{cell.concurrency}-isl{cell.isl}-{number}"


class Experiment:
    """Every run of it, in its folder."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.folder: Path = options.output
        self.gpus = gpu_names() if options.device == "cuda" else []
        self.cells = [Cell(*pair) for pair in product(options.concurrency, options.isl)]
        self.traces: dict[tuple[str, Cell], list[Trace]] = {(arm, c): [] for arm in options.arms for c in self.cells}

    def exports(self, arm: str, isl: int) -> Path:
        """Where the clients' exports of an arm lie."""
        return self.folder / "exports" / f"isl{isl}" / arm

    def run(self) -> None:
        """All rounds, or those that are complete at Ctrl-C; without one of them that is the end."""
        try:
            self.make_runs()
        except KeyboardInterrupt:
            complete = min(len(traces) for traces in self.traces.values())
            if not complete:
                raise
            print(f"stopped after {complete} of {self.options.rounds} rounds", file=sys.stderr)
            self.forget_from(complete)

    def forget_from(self, complete: int) -> None:
        """Leave out the round that was broken off; what its clients saw goes to a folder that nothing reads."""
        aside = self.folder / "incomplete"
        aside.mkdir()
        for arm, cell in self.traces:
            self.traces[arm, cell] = self.traces[arm, cell][:complete]
            for number in range(complete, self.options.rounds):
                name = run_name(arm, cell, number)
                if (export := self.exports(arm, cell.isl) / name).is_dir():
                    export.rename(aside / name)
        self.options.rounds = complete

    def make_runs(self) -> None:
        """All cells, `rounds` times; the arms follow each other in every cell, in turned order every other time."""
        runs = [(number, cell, arm) for number in range(self.options.rounds) for cell in self.cells
                for arm in (self.options.arms if number % 2 == 0 else self.options.arms[::-1])]  # fmt: skip
        begin = time.monotonic()
        for done, (number, cell, arm) in enumerate(runs):
            left = (time.monotonic() - begin) / done * (len(runs) - done) / 60 if done else math.nan
            say = f"run {done + 1} of {len(runs)}: {arm}, concurrency {cell.concurrency}, {cell.isl} tokens of prompt"
            print(f"{say}; about {left:.0f} min left" if done else say, file=sys.stderr, flush=True)
            self.traces[arm, cell].append(self.one(number, cell, arm))

    def one(self, number: int, cell: Cell, arm: str) -> Trace:
        """Serve, ask, attribute."""
        name = run_name(arm, cell, number)
        run = self.folder / "runs" / name
        run.parent.mkdir(parents=True, exist_ok=True)
        options = self.options
        wire = ("--provider", options.provider) if arm != BASELINE else ()
        prefix = (*EFAPROF, "softefa", "--emulate", options.emulate, "--") if options.emulate and wire else ()
        # Kernels stamp their own times; CUPTI beside them could take memory while one waits.
        recorder = record(run, "--cuda", "off") if options.device == "cuda" else record(run)
        with Server(
            "--arm", arm, "--device", options.device, *MODEL, "--slots", str(cell.concurrency), *wire,
            prefix=(*prefix, *recorder),
        ) as server:  # fmt: skip
            asked = server.load(
                "--concurrency", str(cell.concurrency), "--warmup", str(cell.concurrency),
                "--requests", str(options.waves * cell.concurrency), "--isl", str(cell.isl), "--osl", str(options.osl),
                "-o", str(self.exports(arm, cell.isl) / name),
            )  # fmt: skip
            if asked.returncode != 0:
                sys.exit(f"{name}: {asked.stderr}")
            server.stop(signal.SIGINT)
        return read_trace(run, self.exports(arm, cell.isl) / name)


def read_trace(run: Path, exports: Path) -> Trace:
    """The decode step by layer, and the time per token of both sides."""
    done = subprocess.run([*EFAPROF, "attribute", str(run), "--json"], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"{run}: {done.stderr}")
    found = json.loads(done.stdout)
    layers = {one["layer"]: one["us"]["value"] / 1000 for one in found["layers"]}
    itl = json.loads((exports / "profile_export_aiperf.json").read_text())["inter_token_latency"]["avg"]
    return Trace(itl, time_per_token(run, measured(exports)), found["wall_us"]["value"] / 1000, layers)


def measured(exports: Path) -> tuple[int, int]:
    """First start and last end of the requests that count, CLOCK_REALTIME."""
    with (exports / "profile_export.jsonl").open() as lines:
        requests = [json.loads(line)["metadata"] for line in lines]
    counted = [one for one in requests if one["benchmark_phase"] == "profiling"]
    return min(one["request_start_ns"] for one in counted), max(one["request_end_ns"] for one in counted)


def time_per_token(run: Path, during: tuple[int, int]) -> float:
    """Mean time from token to token of a sequence: steps weighted by the sequences that got a token in them.

    A step lasts until the next one begins, as in METHOD §7; the last one ends where it ends.
    """
    tables = open_tables(open_run(run))
    offset_ns = tables.facts.realtime_offset_ns
    if offset_ns is None:
        sys.exit(f"{run} does not know what time of day it was")
    steps = tables.spans.filter(pl.col("is_step")).sort("process", "begin_ns").collect()
    first = steps.filter(pl.col("process") == steps["process"].min())
    begin, end = first["begin_ns"].to_numpy(), first["end_ns"].to_numpy()
    lasts_ms = [(int(after) - int(start)) / 1e6 for start, after in zip(begin, [*begin[1:], end[-1]], strict=True)]
    is_counted = (begin + offset_ns >= during[0]) & (end + offset_ns <= during[1])
    total = weight = 0.0
    for kind, payload, lasts, counts in zip(first["category"], first["payload"], lasts_ms, is_counted, strict=True):
        sequences = payload >> 32
        if not counts or kind not in (AnnotatedStep.DECODE, AnnotatedStep.MIXED) or sequences in (0, UNSAID_COUNT):
            continue
        total, weight = total + lasts * sequences, weight + sequences
    return total / weight


def tax_of(experiment: Experiment, isl: int) -> dict[str, Any]:
    """`efaprof tax` over the exports of one length of prompt; its table and plot are kept."""
    arms = [word for arm in experiment.options.arms for word in ("--arm", f"{arm}={experiment.exports(arm, isl)}")]
    words = [*EFAPROF, "tax", *arms, "--baseline", BASELINE, "--moe-layers", str(LAYERS)]
    plot = ["--plot", str(experiment.folder / f"tax-isl{isl}.svg")]
    done = subprocess.run([*words, *plot, "--json"], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"tax: {done.stderr}")
    text = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    (experiment.folder / f"tax-isl{isl}.txt").write_text(text)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def seen_by_clients(document: dict[str, Any], arm: str, cell: Cell) -> tuple[Estimate, Estimate]:
    """Inter-token latency of the arm, and its tax."""
    one = next(c for c in document["cells"] if c["concurrency"] == cell.concurrency)
    itl = estimate_of(one["arms"][arm]["itl_ms"])
    return itl, itl.minus(estimate_of(one["arms"][BASELINE]["itl_ms"]))


def estimate_of(value: dict[str, Any]) -> Estimate:
    """A value of a document with its interval."""
    half = math.nan if value["hi"] is None else (value["hi"] - value["lo"]) / 2
    return Estimate(value["value"], half)


def table(experiment: Experiment, documents: dict[int, dict[str, Any]], arm: str) -> list[str]:
    """One arm against the baseline, all cells."""
    names = list(dict.fromkeys(n for runs in experiment.traces.values() for run in runs for n in run.layers))
    lines = [
        "| concurrency | isl | ITL, ms | tax seen by clients | tax in the traces | meet "
        f"| ITL outside steps: {arm}, {BASELINE} | decode step longer by | " + " | ".join(names) + " | residual |",
        "|" + "---|" * (9 + len(names)),
    ]  # fmt: skip
    for cell in experiment.cells:
        itl, tax = seen_by_clients(documents[cell.isl], arm, cell)
        own, base = experiment.traces[arm, cell], experiment.traces[BASELINE, cell]
        traced = mean_of([one.token for one in own]).minus(mean_of([one.token for one in base]))
        longer = mean_of([one.decode for one in own]).minus(mean_of([one.decode for one in base]))
        outside = [statistics.fmean(one.itl - one.token for one in runs) for runs in (own, base)]
        parts = [statistics.fmean(one.layers.get(name, 0.0) for one in own)
                 - statistics.fmean(one.layers.get(name, 0.0) for one in base) for name in names]  # fmt: skip
        lines.append(
            f"| {cell.concurrency} | {cell.isl} | {itl} | {tax} | {traced} | {tax.meets(traced)} "
            f"| {outside[0]:.2f}, {outside[1]:.2f} | {longer} | " + " | ".join(f"{part:.2f}" for part in parts)
            + f" | {tax.value - sum(parts):.2f} |"
        )  # fmt: skip
    return lines


def answers_of(experiment: Experiment) -> str:
    """Whether every arm made the same tokens of the same prompts."""
    options = experiment.options
    compared = different = 0
    for number, cell in product(range(options.rounds), experiment.cells):
        files = [experiment.exports(arm, cell.isl) / run_name(arm, cell, number) for arm in options.arms]
        rows = list(zip(*((folder / "answers.txt").read_text().splitlines() for folder in files), strict=True))
        compared += len(rows)
        different += sum(len(set(row)) > 1 for row in rows)
    outcome = f"{different} DIFFER." if different else "the same tokens."
    return f"Answers of all arms to {compared} prompts: {outcome}"


def setting(gpus: list[str]) -> list[str]:
    """What is real here and what is not."""
    if not gpus:
        return ["Emulated: the kernel is a CPU thread, the wire is this host's memory. Milliseconds, 95 % intervals."]
    staged = len(gpus) < RANKS
    shared = ", sharing it under MPS" if staged else ""
    collectives = "gloo, staged through host memory" if staged else "NCCL"
    return [
        f"Model and kernels on {len(gpus)} × {gpus[0]}, {RANKS} ranks{shared}. Arm `{BASELINE}` by {collectives}.",
        "Emulated: payload of the other arms lies in pinned host memory, not in the GPU's; all ranks are on this host.",
        "Milliseconds, 95 % intervals.",
    ]


def gpu_names() -> list[str]:
    """GPUs of this machine, as their driver calls them."""
    words = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
    return subprocess.run(words, capture_output=True, text=True, check=True).stdout.split("\n")[:-1]


def page(experiment: Experiment) -> str:
    """The whole result in markdown."""
    options, machine = experiment.options, host.describe()
    wire = f"{options.provider} on an emulated EFA device ({options.emulate})" if options.emulate else options.provider
    documents = {isl: tax_of(experiment, isl) for isl in options.isl}
    lines = [
        f"# Serving arms over load, {time.strftime('%Y-%m-%d')}",
        "",
        f"{machine.cpu_model}, {machine.cpus} cores. Model {' '.join(MODEL)}.",
        f"Rounds: {options.rounds}, of {options.waves} waves, {options.osl} tokens an answer; baseline `{BASELINE}`.",
        f"Dispatch over {wire}, all ranks on this host.",
        *setting(experiment.gpus),
        answers_of(experiment),
    ]
    for arm in options.arms:
        if arm != BASELINE:
            lines += ["", f"## {arm} against {BASELINE}", "", *table(experiment, documents, arm)]
    for isl, document in documents.items():
        lines += ["", f"## Does it depend on the load? (isl {isl})", ""]
        for arm, found in document["invariance"].items():
            change = "" if found.get("change") is None else f", change {100 * found['change']:+.1f} %"
            lines.append(f"- {arm}: {found['outcome']}{change}")
    return "\n".join(lines) + "\n"


def draw_layers(experiment: Experiment) -> None:
    """A picture of one run of each arm at the highest load: where its decode step goes."""
    cell, last = experiment.cells[-1], experiment.options.rounds - 1
    for arm in experiment.options.arms:
        run = experiment.folder / "runs" / run_name(arm, cell, last)
        picture = experiment.folder / f"layers-{arm}.svg"
        subprocess.run([*EFAPROF, "attribute", str(run), "--plot", str(picture)], check=True, capture_output=True)


def numbers(text: str) -> list[int]:
    """Comma-separated numbers."""
    return [int(word) for word in text.split(",")]


def main() -> None:
    """Run it and print the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", type=Path, required=True, metavar="FOLDER")
    parser.add_argument("--arms", type=lambda text: text.split(","), default=["proxy", BASELINE])
    parser.add_argument("--concurrency", type=numbers, default=[1, 2, 4])
    parser.add_argument("--isl", type=numbers, default=[8, 48], help="tokens of a prompt")
    parser.add_argument("--osl", type=int, default=32, help="tokens of an answer")
    parser.add_argument("--waves", type=int, default=5, help="requests of each client in a run")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="where the model runs")
    parser.add_argument("--provider", default="tcp", help="of libfabric, for the arms that use one")
    parser.add_argument("--emulate", default="", metavar="SPEC", help="run those arms on an emulated EFA device")
    options = parser.parse_args()
    if BASELINE not in options.arms:
        parser.error(f"--arms needs {BASELINE}: it is what the others are compared with")
    if options.output.exists():
        parser.error(f"{options.output} exists; name another folder")
    experiment = Experiment(options)
    experiment.run()
    text = page(experiment)
    (options.output / "experiment.md").write_text(text)
    draw_layers(experiment)
    print(text)
    print(f"pictures and runs: {options.output}", file=sys.stderr)


if __name__ == "__main__":
    main()
