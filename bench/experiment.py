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
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path
from typing import Any

import polars as pl

ROOT = Path(__file__).parent.parent
sys.path[:0] = [str(ROOT / "examples"), str(ROOT / "tests")]

from experiment_page import BASELINE, Cell, Step, Trace, Traces, agreement, compare, mean_gap_ms, page  # noqa: E402
from serve_runs import Server, record  # noqa: E402

from efaprof.session import host  # noqa: E402
from efaprof.trace.layout import UNSAID_COUNT, AnnotatedStep  # noqa: E402
from efaprof.trace.reader import open_tables  # noqa: E402
from efaprof.trace.rundir import open_run  # noqa: E402

EFAPROF = (sys.executable, "-m", "efaprof")
MODEL = ("--layers", "4", "--hidden", "64", "--experts", "8", "--topk", "2", "--tokens", "64", "--length", "128")
LAYERS = 4
CORES_TO_READ = 4  # for each trace that is read beside others
RANKS = 2  # of serve.py unless it is told otherwise


def run_name(arm: str, cell: Cell, number: int) -> str:
    """Of a recorded run and of the export of its clients."""
    return f"{arm}-c{cell.concurrency}-isl{cell.isl}-{number}"


class Experiment:
    """Every run of it, in its folder."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.folder: Path = options.output
        self.runs = self.folder / "runs"
        self.gpus = gpu_names() if options.device == "cuda" else []
        self.cells = [Cell(*pair) for pair in product(options.concurrency, options.isl)]
        self.finished: list[tuple[int, Cell, str]] = []
        self.traces: Traces = {(arm, cell): [] for cell in self.cells for arm in options.arms}

    def exports(self, arm: str, isl: int) -> Path:
        """Where the clients' exports of an arm lie."""
        return self.folder / "exports" / f"isl{isl}" / arm

    def run(self) -> None:
        """All rounds, or those that are complete at Ctrl-C; without one of them that is the end."""
        try:
            self.make_runs()
        except KeyboardInterrupt:
            complete = len(self.finished) // len(self.traces)
            if not complete:
                raise
            print(f"stopped after {complete} of {self.options.rounds} rounds", file=sys.stderr)
            self.forget_from(complete)
        self.read_traces()

    def forget_from(self, complete: int) -> None:
        """Leave out the round that was broken off; what its clients saw goes to a folder that nothing reads."""
        aside = self.folder / "incomplete"
        aside.mkdir()
        for arm, cell in self.traces:
            for number in range(complete, self.options.rounds):
                name = run_name(arm, cell, number)
                if (export := self.exports(arm, cell.isl) / name).is_dir():
                    export.rename(aside / name)
        self.finished = [one for one in self.finished if one[0] < complete]
        self.options.rounds = complete

    def read_traces(self) -> None:
        """After all runs, so that none of them is disturbed; several at once where there are cores for it."""
        print(f"reading {len(self.finished)} traces", file=sys.stderr, flush=True)
        with ThreadPoolExecutor(max(1, host.describe().cpus // CORES_TO_READ)) as pool:
            for (_, cell, arm), trace in zip(self.finished, pool.map(self.read, self.finished), strict=True):
                self.traces[arm, cell].append(trace)

    def read(self, finished: tuple[int, Cell, str]) -> Trace:
        """One of them."""
        number, cell, arm = finished
        name = run_name(arm, cell, number)
        return read_trace(self.runs / name, self.exports(arm, cell.isl) / name)

    def make_runs(self) -> None:
        """All cells, `rounds` times; the arms follow each other in every cell, in turned order every other time."""
        runs = [(number, cell, arm) for number in range(self.options.rounds) for cell in self.cells
                for arm in (self.options.arms if number % 2 == 0 else self.options.arms[::-1])]  # fmt: skip
        begin = time.monotonic()
        for done, (number, cell, arm) in enumerate(runs):
            left = (time.monotonic() - begin) / done * (len(runs) - done) / 60 if done else math.nan
            say = f"run {done + 1} of {len(runs)}: {arm}, concurrency {cell.concurrency}, {cell.isl} tokens of prompt"
            print(f"{say}; about {left:.0f} min left" if done else say, file=sys.stderr, flush=True)
            self.one(number, cell, arm)
            self.finished.append((number, cell, arm))

    def one(self, number: int, cell: Cell, arm: str) -> None:
        """Serve and ask."""
        name = run_name(arm, cell, number)
        self.runs.mkdir(parents=True, exist_ok=True)
        run = self.runs / name
        options = self.options
        wire = ("--provider", options.provider) if arm != BASELINE else ()
        prefix = (*EFAPROF, "softefa", "--emulate", options.emulate, "--") if options.emulate and wire else ()
        # Kernels stamp their own times; CUPTI beside them could take memory while one waits.
        recorder = record(run, "--cuda", "off") if options.device == "cuda" else record(run)
        with Server(
            "--arm", arm, "--device", options.device, *(["--eager"] if options.eager else []), *MODEL,
            "--slots", str(cell.concurrency), *wire, prefix=(*prefix, *recorder),
        ) as server:  # fmt: skip
            asked = server.load(
                "--concurrency", str(cell.concurrency), "--warmup", str(cell.concurrency),
                "--requests", str(options.waves * cell.concurrency), "--isl", str(cell.isl), "--osl", str(options.osl),
                "-o", str(self.exports(arm, cell.isl) / name),
            )  # fmt: skip
            if asked.returncode != 0:
                sys.exit(f"{name}: {asked.stderr}")
            server.stop(signal.SIGINT)


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
    """Mean time from token to token of a sequence in the steps of a stretch of CLOCK_REALTIME, milliseconds."""
    tables = open_tables(open_run(run))
    offset_ns = tables.facts.realtime_offset_ns
    if offset_ns is None:
        sys.exit(f"{run} does not know what time of day it was")
    spans = tables.spans.filter(pl.col("is_step")).sort("process", "begin_ns").collect()
    begin, end = (pl.col(name) + offset_ns for name in ("begin_ns", "end_ns"))
    first = spans.filter(pl.col("process") == spans["process"].min(), begin >= during[0], end <= during[1])
    columns = (first[name].to_list() for name in ("category", "payload", "begin_ns", "end_ns"))
    steps = [Step(kind == AnnotatedStep.PREFILL, payload >> 32, begin_ns, end_ns)
             for kind, payload, begin_ns, end_ns in zip(*columns, strict=True)]  # fmt: skip
    if any(step.sequences == UNSAID_COUNT for step in steps):
        sys.exit(f"{run} does not say how many sequences its steps had")
    return mean_gap_ms(steps)


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


def what_is_real(gpus: list[str], *, is_eager: bool) -> list[str]:
    """And what is not."""
    if not gpus:
        return ["Emulated: the kernel is a CPU thread, the wire is this host's memory. Milliseconds, 95 % intervals."]
    staged = len(gpus) < RANKS
    shared = ", sharing it under MPS" if staged else ""
    collectives = "gloo, staged through host memory" if staged else "NCCL"
    launches = "kernel by kernel" if is_eager else f"as CUDA graphs, cut at each collective of arm `{BASELINE}`"
    return [
        f"Model and kernels on {len(gpus)} × {gpus[0]}, {RANKS} ranks{shared}. Arm `{BASELINE}` by {collectives}.",
        f"Decode steps are launched {launches}.",
        "Emulated: payload of the other arms lies in pinned host memory, not in the GPU's; all ranks are on this host.",
        "Milliseconds, 95 % intervals.",
    ]


def gpu_names() -> list[str]:
    """GPUs of this machine, as their driver calls them."""
    words = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
    return subprocess.run(words, capture_output=True, text=True, check=True).stdout.split("\n")[:-1]


def head_of(experiment: Experiment) -> list[str]:
    """What was run, for the page."""
    options = experiment.options
    wire = f"{options.provider} on an emulated EFA device ({options.emulate})" if options.emulate else options.provider
    return [
        f"Model {' '.join(MODEL)}.",
        f"Rounds: {options.rounds}, of {options.waves} waves, {options.osl} tokens an answer; baseline `{BASELINE}`.",
        f"Dispatch over {wire}, all ranks on this host.",
        *what_is_real(experiment.gpus, is_eager=options.eager),
        answers_of(experiment),
    ]


def draw_layers(experiment: Experiment) -> None:
    """A picture of one run of each arm at the highest load: where its decode step goes."""
    cell, last = experiment.cells[-1], experiment.options.rounds - 1
    for arm in experiment.options.arms:
        run = experiment.runs / run_name(arm, cell, last)
        picture = experiment.folder / f"layers-{arm}.svg"
        subprocess.run([*EFAPROF, "attribute", str(run), "--plot", str(picture)], check=True, capture_output=True)


def numbers(text: str) -> list[int]:
    """Comma-separated numbers."""
    return [int(word) for word in text.split(",")]


def main() -> int:
    """Run it and print the page; 1 when clients and traces contradict each other."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", type=Path, required=True, metavar="FOLDER")
    parser.add_argument("--arms", type=lambda text: text.split(","), default=["proxy", BASELINE])
    parser.add_argument("--concurrency", type=numbers, default=[1, 2, 4])
    parser.add_argument("--isl", type=numbers, default=[8, 48], help="tokens of a prompt")
    parser.add_argument("--osl", type=int, default=32, help="tokens of an answer")
    parser.add_argument("--waves", type=int, default=5, help="requests of each client in a run")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="where the model runs")
    parser.add_argument("--eager", action="store_true", help="on a GPU: launch kernel by kernel")
    parser.add_argument("--provider", default="tcp", help="of libfabric, for the arms that use one")
    parser.add_argument("--emulate", default="", metavar="SPEC", help="run those arms on an emulated EFA device")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    if BASELINE not in options.arms:
        parser.error(f"--arms needs {BASELINE}: it is what the others are compared with")
    if options.output.exists():
        parser.error(f"{options.output} exists; name another folder")
    experiment = Experiment(options)
    experiment.run()
    documents = {isl: tax_of(experiment, isl) for isl in options.isl}
    arms = [arm for arm in options.arms if arm != BASELINE]
    compared = {arm: compare(experiment.traces, documents, arm) for arm in arms}
    text = page(head_of(experiment), compared, documents)
    (options.output / "experiment.md").write_text(text)
    draw_layers(experiment)
    print(text)
    print(f"pictures and runs: {options.output}", file=sys.stderr)
    everything = [one for cells in compared.values() for one in cells]
    print(agreement(everything), file=sys.stderr)
    return int(any(one.agrees is False for one in everything))


if __name__ == "__main__":
    sys.exit(main())
