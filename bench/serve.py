"""What recording costs a served model: the example server bare and recorded, asked in turns (A B B A).

    python bench/serve.py [--arm dense] [--pairs 1] [--rounds 8] [--record OPTIONS] [--device cuda [--eager]] [-o RUN]

Both servers run all the time, each without work while the other is asked; an idle one sleeps. Two figures: the time
between the tokens of an answer (median of a turn), and tokens/s. The unit of the intervals is the pair of servers, as
two that do the same differ; of one pair it is the round.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import math
import shlex
import signal
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

ROOT = Path(__file__).parent.parent
sys.path[:0] = [str(ROOT / "examples"), str(ROOT / "tests")]

from load import Load, run  # noqa: E402
from serve_runs import Server, record  # noqa: E402

from efaprof.analyzers.batches import t_quantile  # noqa: E402
from efaprof.instrument.mps import shared_gpus  # noqa: E402
from efaprof.session import host  # noqa: E402

RANKS = 2  # of a server
AIM = 3.0  # percent


@dataclass(frozen=True, slots=True)
class Turn:
    """One load of one server."""

    gap_ms: float  # between two tokens of an answer, median
    tokens_per_s: float


def asked(server: Server, options: argparse.Namespace) -> Turn:
    """Ask it; every request must be answered."""
    load = Load(
        host="127.0.0.1", port=int(server.url.rsplit(":", 1)[1]), model="efaprof-moe",
        concurrency=options.concurrency, requests=options.requests, warmup=0, isl=16, osl=options.osl, seed=1,
        timeout_s=300.0,
    )  # fmt: skip
    begin = time.perf_counter()
    outcomes = asyncio.run(run(load, 0, load.requests))
    seconds = time.perf_counter() - begin
    failed = [one.error for one in outcomes if one.error is not None]
    if failed:
        sys.exit(f"{len(failed)} of {len(outcomes)} requests failed: {failed[0]}; {server.said[-3:]}")
    gaps = [gap for one in outcomes for gap in one.measured.gaps_ms]
    return Turn(statistics.median(gaps), sum(one.measured.tokens for one in outcomes) / seconds)


@dataclass(frozen=True, slots=True)
class Round:
    """Two turns of each server."""

    pair: int  # of servers
    bare: list[Turn]
    recorded: list[Turn]

    def ratio(self, what: str) -> float:
        """Logarithm of recorded over bare."""
        mine, theirs = (statistics.mean(getattr(turn, what) for turn in of) for of in (self.recorded, self.bare))
        return math.log(mine / theirs)


def change(rounds: list[Round], what: str) -> str:
    """Recorded over bare as percent, with its 95 % interval."""
    each = [statistics.mean(one.ratio(what) for one in of) for of in by_pair(rounds)]
    if len(each) < 2:  # what two servers differ by anyway is in it then
        each = [one.ratio(what) for one in rounds]
    mean = statistics.mean(each)
    half = t_quantile(0.975, len(each) - 1) * statistics.stdev(each) / math.sqrt(len(each))
    low, middle, high = (100 * (math.exp(value) - 1) for value in (mean - half, mean, mean + half))
    return f"{middle:+.1f} %, 95 % [{low:+.1f}, {high:+.1f}]"


def by_pair(rounds: list[Round]) -> list[list[Round]]:
    """Rounds of each pair of servers."""
    return [list(of) for _, of in groupby(rounds, key=lambda one: one.pair)]


def measure(start: Callable[[int], Sequence[Server]], options: argparse.Namespace) -> list[Round]:
    """All rounds of all pairs; at Ctrl-C those that are complete, when two of them are."""
    rounds: list[Round] = []
    try:
        for pair in range(options.pairs):
            with contextlib.ExitStack() as stack:
                both = start(pair)
                for server in both:
                    stack.push(server)
                bare, recorded = (server.__enter__() for server in both)
                for server in both:
                    asked(server, options)  # warm-up
                for _ in range(options.rounds):
                    each = [asked(server, options) for server in (bare, recorded, recorded, bare)]
                    rounds.append(Round(pair, [each[0], each[3]], each[1:3]))
    except KeyboardInterrupt:
        if len(rounds) < 2:
            raise
    return rounds


def report(rounds: list[Round]) -> None:
    """Means of both ways, and the ratios."""
    for name in ("bare", "recorded"):
        all_of = [turn for one in rounds for turn in getattr(one, name)]
        gap = statistics.mean(turn.gap_ms for turn in all_of)
        speed = statistics.mean(turn.tokens_per_s for turn in all_of)
        print(f"{name:10}{gap:9.3f} ms between tokens (p50){speed:10.1f} tokens/s, mean of {len(all_of)} turns")
    for what, word in (("gap_ms", "between tokens"), ("tokens_per_s", "tokens/s")):
        print(f"recorded over bare, {word}: {change(rounds, what)}")
    pairs = len(by_pair(rounds))
    print(f"aim: at most {AIM:+.0f} % between tokens; {len(rounds)} rounds of A B B A, {pairs} pairs of servers")


def start(words: Sequence[str], prefix: tuple[str, ...], pair: int) -> tuple[Server, Server]:
    """A bare and a recorded server, started together, now the one first and now the other."""
    first, second = (Server(*words, prefix=way) for way in (((), prefix) if pair % 2 == 0 else (prefix, ())))
    return (first, second) if pair % 2 == 0 else (second, first)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--arm", choices=("proxy", "dense"), default="proxy")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="where the model runs")
    parser.add_argument("--eager", action="store_true", help="with --device cuda: without CUDA graphs")
    parser.add_argument("--pairs", type=int, default=1, help="of servers, started anew; the unit of the intervals")
    parser.add_argument("--rounds", type=int, default=8, help="of four turns each, with every pair")
    parser.add_argument("--concurrency", type=int, default=4)
    parser.add_argument("--requests", type=int, default=8, help="of a turn")
    parser.add_argument("--osl", type=int, default=40, help="tokens of an answer")
    parser.add_argument("--serve", default="", metavar="OPTIONS", help="more options of the server")
    parser.add_argument("--record", default="", metavar="OPTIONS", help="more options of efaprof record")
    parser.add_argument("-o", "--output", type=Path, metavar="RUN", help="keep the last recorded run there")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    is_cuda = options.device == "cuda"
    words = ["--arm", options.arm, "--device", options.device, *(["--eager"] if options.eager else [])]
    words += shlex.split(options.serve)
    machine = host.describe()
    how = "" if not is_cuda else ", launched kernel by kernel" if options.eager else ", decode by CUDA graphs"
    print(f"{machine.cpu_model}, {machine.cpus} cores; arm {options.arm} on {options.device}{how}, {RANKS} ranks")
    with tempfile.TemporaryDirectory() as folder:
        prefix = record(options.output or Path(folder) / "run", "-f", *shlex.split(options.record))
        # One MPS daemon for both: a GPU that two daemons share is switched between them.
        with shared_gpus(2 * RANKS) if is_cuda else contextlib.nullcontext():
            rounds = measure(lambda pair: start(words, prefix, pair), options)
    report(rounds)


if __name__ == "__main__":
    main()
