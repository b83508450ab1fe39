"""What recording costs a served model: the example server bare and recorded, asked in turns (A B B A).

    python bench/serve.py [--arm dense] [--rounds 8] [--record "--python"] [--device cuda [--eager]] [-o RUN]

Both servers run all the time, each without work while the other is asked; an idle one sleeps. Two figures: the time
between the tokens of an answer (median of a turn), and tokens/s. The unit of the intervals is the round.
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
from pathlib import Path

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


def change(ratios: list[float]) -> str:
    """Mean of log ratios as percent, with its 95 % interval."""
    mean = statistics.mean(ratios)
    half = t_quantile(0.975, len(ratios) - 1) * statistics.stdev(ratios) / math.sqrt(len(ratios))
    low, middle, high = (100 * (math.exp(value) - 1) for value in (mean - half, mean, mean + half))
    return f"{middle:+.1f} %, 95 % [{low:+.1f}, {high:+.1f}]"


def turns(bare: Server, recorded: Server, options: argparse.Namespace) -> list[dict[str, list[Turn]]]:
    """Two turns of each in every round; at Ctrl-C those that are complete, when two of them are."""
    servers = {"bare": bare, "recorded": recorded}
    for server in servers.values():
        asked(server, options)  # warm-up
    rounds: list[dict[str, list[Turn]]] = []
    try:
        for _ in range(options.rounds):
            found: dict[str, list[Turn]] = {"bare": [], "recorded": []}
            for name in ("bare", "recorded", "recorded", "bare"):
                found[name].append(asked(servers[name], options))
            rounds.append(found)
    except KeyboardInterrupt:
        if len(rounds) < 2:
            raise
    return rounds


def report(rounds: list[dict[str, list[Turn]]]) -> None:
    """Means of each server, and the ratios of the rounds."""
    for name in ("bare", "recorded"):
        all_of = [turn for one in rounds for turn in one[name]]
        gap = statistics.mean(turn.gap_ms for turn in all_of)
        speed = statistics.mean(turn.tokens_per_s for turn in all_of)
        print(f"{name:10}{gap:9.3f} ms between tokens (p50){speed:10.1f} tokens/s, mean of {len(all_of)} turns")
    for what, word in (("gap_ms", "between tokens"), ("tokens_per_s", "tokens/s")):
        each = [{name: statistics.mean(getattr(turn, what) for turn in of) for name, of in one.items()}
                for one in rounds]  # fmt: skip
        print(f"recorded over bare, {word}: {change([math.log(one['recorded'] / one['bare']) for one in each])}")
    print(f"aim: at most {AIM:+.0f} % between tokens; {len(rounds)} rounds of A B B A")


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--arm", choices=("proxy", "dense"), default="proxy")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="where the model runs")
    parser.add_argument("--eager", action="store_true", help="with --device cuda: without CUDA graphs")
    parser.add_argument("--rounds", type=int, default=8, help="of four turns each, at least 2")
    parser.add_argument("--concurrency", type=int, default=4)
    parser.add_argument("--requests", type=int, default=8, help="of a turn")
    parser.add_argument("--osl", type=int, default=40, help="tokens of an answer")
    parser.add_argument("--serve", default="", metavar="OPTIONS", help="more options of the server")
    parser.add_argument("--record", default="", metavar="OPTIONS", help="more options of efaprof record")
    parser.add_argument("-o", "--output", type=Path, metavar="RUN", help="keep the recorded run there")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    is_cuda = options.device == "cuda"
    words = ["--arm", options.arm, "--device", options.device, *(["--eager"] if options.eager else [])]
    words += shlex.split(options.serve)
    machine = host.describe()
    how = "" if not is_cuda else ", launched kernel by kernel" if options.eager else ", decode by CUDA graphs"
    print(f"{machine.cpu_model}, {machine.cpus} cores; arm {options.arm} on {options.device}{how}, {RANKS} ranks")
    with tempfile.TemporaryDirectory() as folder:
        prefix = record(options.output or Path(folder) / "run", *shlex.split(options.record))
        # One MPS daemon for both: a GPU that two daemons share is switched between them.
        with contextlib.ExitStack() as stack:
            if is_cuda:
                stack.enter_context(shared_gpus(2 * RANKS))
            both = [Server(*words, prefix=way) for way in ((), prefix)]  # they start together
            for server in both:
                stack.push(server)
            rounds = turns(*(server.__enter__() for server in both), options)
    report(rounds)


if __name__ == "__main__":
    main()
