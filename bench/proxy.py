"""Operations per second of the proxy path by provider and signal mode, what recording costs, what a second proxy buys.

Runs of all arms are interleaved forwards and backwards (A B C C B A); each ratio is taken to tcp or shm with
immediates, unrecorded, in the same round.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path

from efaprof import native
from efaprof.instrument.dispatch import DispatchOptions, SignalMode, binary
from efaprof.session import host

ROUNDS = 2
BASE = DispatchOptions(layers=4, tokens=32, hidden=1024, channels=4, compute_us=0, steps=100, warmup=10)


@dataclass(frozen=True)
class Arm:
    """One kind of run."""

    provider: str
    signal: SignalMode = SignalMode.IMM
    is_recorded: bool = False
    proxies: int = 1

    @property
    def label(self) -> str:
        """As the table names it."""
        more = f", {self.proxies} proxies" if self.proxies > 1 else ", recorded" if self.is_recorded else ""
        return f"{self.provider} {self.signal}{more}"


ARMS = [
    *(Arm(provider, signal) for provider in ("tcp", "shm") for signal in SignalMode),
    *(Arm(provider, is_recorded=True) for provider in ("tcp", "shm")),
    *(Arm(provider, proxies=2) for provider in ("tcp", "shm")),
]


def operations(options: DispatchOptions) -> int:
    """Of all ranks, in the steps that count."""
    steps = range(options.warmup, options.warmup + options.steps)
    return sum(counts.total for step in steps for counts in options.step_counts(step))


def measure(arm: Arm, count: int) -> float:
    """Operations per second of one run; it verifies every token."""
    options = replace(BASE, provider=arm.provider, signal=arm.signal, proxies=arm.proxies)
    env = {name: value for name, value in os.environ.items() if not name.startswith("EFAPROF_")}
    shm = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(dir=shm) as rings, tempfile.TemporaryDirectory() as raw:
        Path(f"{rings}/rings").mkdir(mode=0o700)
        if arm.is_recorded:
            env |= {"EFAPROF_RING_DIR": f"{rings}/rings", "EFAPROF_BUFFER": str(64 << 20)}
        out = subprocess.run(
            [binary(), *options.arguments(), "--json"], env=env, check=True, capture_output=True, text=True
        ).stdout
        if arm.is_recorded:
            dropped = native.RingDrain(Path(f"{rings}/rings"), Path(raw)).close().dropped
            assert dropped == 0, f"{dropped} records dropped: the figure would be too good"
    return count * 1e9 / json.loads(out)["wall_ns"]


def main() -> None:
    """Print the table."""
    machine = host.describe()
    count = operations(BASE)
    rates: dict[Arm, list[float]] = {arm: [] for arm in ARMS}
    for _ in range(ROUNDS):
        for arm in [*ARMS, *reversed(ARMS)]:
            rates[arm].append(measure(arm, count))
    print(
        f"{machine.cpu_model}, {machine.cpus} cores; {BASE.ranks} ranks, {BASE.hidden * 4} B tokens,"
        f" {count:,} operations a run, medians of {2 * ROUNDS} runs"
    )
    print(f"{'':24}{'operations/s':>14}{'us/operation':>14}{'× imm':>8}")
    for arm in ARMS:
        base = rates[Arm(arm.provider)]
        ratio = statistics.median(rate / floor for rate, floor in zip(rates[arm], base, strict=True))
        rate = statistics.median(rates[arm])
        print(f"{arm.label:24}{rate:14,.0f}{1e6 * BASE.ranks / rate:14.2f}{ratio:8.3f}")


if __name__ == "__main__":
    sys.exit(main())
