"""What recording costs a served model: tokens/s of the example server, bare and recorded, in turns (A B B A).

    python bench/serve.py [--arm dense] [--rounds 8] [--record "--python"]

Both servers run all the time, each without work while the other is asked; an idle one sleeps. The unit of the interval
is the round.
"""

from __future__ import annotations

import argparse
import asyncio
import math
import shlex
import statistics
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path[:0] = [str(ROOT / "examples"), str(ROOT / "tests")]

from load import Load, run  # noqa: E402
from serve_runs import Server, record  # noqa: E402

from efaprof.analyzers.batches import t_quantile  # noqa: E402
from efaprof.session import host  # noqa: E402


def tokens_per_s(server: Server, options: argparse.Namespace) -> float:
    """Of one turn."""
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
        sys.exit(f"{len(failed)} of {len(outcomes)} requests failed: {failed[0]}")
    return sum(one.measured.tokens for one in outcomes) / seconds


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--arm", choices=("proxy", "dense"), default="proxy")
    parser.add_argument("--rounds", type=int, default=8, help="of four turns each")
    parser.add_argument("--concurrency", type=int, default=4)
    parser.add_argument("--requests", type=int, default=8, help="of a turn")
    parser.add_argument("--osl", type=int, default=40, help="tokens of an answer")
    parser.add_argument("--record", default="", metavar="OPTIONS", help="more options of efaprof record")
    options = parser.parse_args()
    machine = host.describe()
    print(f"{machine.cpu_model}, {machine.cpus} cores; arm {options.arm}, 2 ranks, {options.rounds} rounds of A B B A")
    turns: dict[str, list[float]] = {"bare": [], "recorded": []}
    with tempfile.TemporaryDirectory() as folder:
        prefix = record(Path(folder) / "run", *shlex.split(options.record))
        with Server("--arm", options.arm) as bare, Server("--arm", options.arm, prefix=prefix) as recorded:
            servers = {"bare": bare, "recorded": recorded}
            for server in servers.values():
                tokens_per_s(server, options)  # warm-up
            ratios = []
            for _ in range(options.rounds):
                for name in ("bare", "recorded", "recorded", "bare"):
                    turns[name].append(tokens_per_s(servers[name], options))
                mine, theirs = (statistics.mean(turns[name][-2:]) for name in ("recorded", "bare"))
                ratios.append(math.log(mine / theirs))
    mean = statistics.mean(ratios)
    half = t_quantile(0.975, len(ratios) - 1) * statistics.stdev(ratios) / math.sqrt(len(ratios))
    for name, values in turns.items():
        print(f"{name:10}{statistics.mean(values):10.1f} tokens/s, mean of {len(values)} turns")
    low, middle, high = (100 * (math.exp(value) - 1) for value in (mean - half, mean, mean + half))
    print(f"recorded over bare {middle:+.1f} % tokens/s, 95 % [{low:+.1f}, {high:+.1f}] on {machine.cpus} cores")


if __name__ == "__main__":
    main()
