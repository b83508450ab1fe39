"""Ground truth: a delay put into one layer comes out of the walk as that layer, in its size, and out of the replay.

On few cores with other work, a thread now and then waits for a core, and then any layer takes longer than what was put
into it. Sizes are therefore read gate by gate, from the quieter half of the gates: a gate has few operations behind it.
"""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass, replace

import polars as pl
import pytest

from efaprof.analyzers.critical import WALKED, CriticalPath
from efaprof.analyzers.stamps import Limits
from efaprof.instrument.dispatch import INJECTABLE, DispatchOptions, Injection, SignalMode
from efaprof.trace import dispatch
from efaprof.trace.layers import Layer
from efaprof.trace.survey import survey

DELAY_US = 200
SECONDS = 120
SHORT = DispatchOptions(
    provider="shm", layers=2, tokens=1, topk=1, experts=2, hidden=64, channels=1, steps=50, warmup=5, compute_us=50,
    threads=2,
)  # fmt: skip
QUIET = 0.1
MOST_PAIRS = 4
COSTS = [f"{layer}_ns" for layer in WALKED]


@dataclass(frozen=True)
class Arm:
    """Decode steps of one or more runs: one row per (rank, step), and one per gate."""

    steps: pl.DataFrame
    windows: pl.DataFrame

    def quiet(self, column: str) -> float:
        """Mean over the quietest steps, µs."""
        wall = self.steps["wall_ns"]
        return float(self.steps.filter(wall <= wall.quantile(QUIET))[column].mean()) / 1000

    def median(self, column: str) -> float:
        """Over all steps, µs."""
        return float(self.steps[column].median()) / 1000

    def per_operation(self, layer: Layer) -> float:
        """Time of the layer per operation on the path there, at the quieter gates, µs."""
        walked = self.windows.filter(pl.col(f"{layer}_walked") > 0.5)
        return float((walked[f"{layer}_ns"] / walked[f"{layer}_walked"]).quantile(0.25)) / 1000


def recorded(options, folder):
    """Raw files of a recorded run."""
    argv = [sys.executable, "-m", "efaprof", "bench", "dispatch", *options.arguments(), "-o", str(folder)]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=SECONDS, check=False)
    assert done.returncode == 0, done.stderr
    return sorted((folder / "raw").iterdir())


def measured(options, folder):
    return analysed(options, recorded(options, folder))


def analysed(options, files, chunk_ops=1 << 18):
    path = CriticalPath(Limits(ring=options.ring, window=options.window))
    found, gates = [], []
    for chunk in dispatch.chunks(survey(files), chunk_ops=chunk_ops):
        steps = chunk.steps.filter(pl.col("kind") == "decode").select(
            pl.col("rank", "step").cast(pl.Int64), wall_ns=pl.col("end_ns") - pl.col("begin_ns")
        )
        costs, windows, _ = path.split(chunk)
        found.append(costs.join(steps, on=["rank", "step"]))
        gates.append(windows.join(steps, on=["rank", "step"], how="semi"))
    assert path.cut_edges == 0
    return Arm(pl.concat(found).sort("rank", "step"), pl.concat(gates))


@pytest.fixture(scope="module")
def arms(tmp_path_factory):
    folder = tmp_path_factory.mktemp("truth")
    found = {None: measured(SHORT, folder / "none")}
    for layer in INJECTABLE:
        injected = replace(SHORT, inject=(Injection(layer, DELAY_US * 1000),))
        found[layer] = measured(injected, folder / layer.value)
    return found


@pytest.mark.parametrize("layer", INJECTABLE)
def test_an_injected_delay_is_the_top_change_of_the_path_in_its_size(arms, layer):
    check(arms[None], arms[layer], layer)


def check(base, arm, layer):
    """The layer changed most, by the delay of each operation walked over, and without it the step is that shorter."""
    costs = arm.steps.select(pl.sum_horizontal(COSTS)).to_series()
    assert (costs == arm.steps["wall_ns"]).all()
    change = {one: arm.quiet(f"{one}_ns") - base.quiet(f"{one}_ns") for one in WALKED if one is not Layer.SKEW}
    assert max(change, key=change.get) is layer, change
    assert arm.per_operation(layer) - base.per_operation(layer) == pytest.approx(DELAY_US, rel=0.15)
    # Removing the layer saves what was added to the path, but for what was nearly as late for want of a core.
    added = arm.median(f"{layer}_ns") - base.median(f"{layer}_ns")
    assert arm.median(f"{layer}_recoverable_ns") >= 0.7 * added


def test_a_run_is_walked_the_same_however_it_is_cut(tmp_path):
    files = recorded(replace(SHORT, signal=SignalMode.FENCE), tmp_path / "run")
    whole, cut = (analysed(SHORT, files, chunk_ops).steps for chunk_ops in (1 << 18, 1))
    exact = ["rank", "step", *COSTS, "true_skew_ns", "walk_clip_ns"]
    assert whole.select(exact).equals(cut.select(exact))


def test_the_replay_without_fences_predicts_what_immediates_save(tmp_path):
    """The same workload twice, its signals ordered by fences and by immediates; completions take 1 ms.

    The least step of each is what the machine does when nobody disturbs it; more pairs until it was seen.
    """
    slow = replace(SHORT, tokens=2, topk=2, inject=(Injection(Layer.NIC, 1_000_000),))
    least = dict.fromkeys((SignalMode.IMM, SignalMode.FENCE), float("inf"))
    predicted = []
    for pair in range(MOST_PAIRS):
        for mode in least:
            steps = measured(replace(slow, signal=mode), tmp_path / f"{mode}{pair}").steps
            least[mode] = min(least[mode], steps["wall_ns"].min())
            if mode is SignalMode.FENCE:
                predicted.append(steps["fence_recoverable_ns"].median())
            else:
                assert steps["fence_recoverable_ns"].max() == 0
        difference = least[SignalMode.FENCE] - least[SignalMode.IMM]
        if difference == pytest.approx(min(predicted), rel=0.2):
            return
    pytest.fail(f"fences cost {difference} ns, the replay says {predicted}")


@pytest.mark.slow
@pytest.mark.parametrize("provider", ["tcp", "shm"])
def test_medians_of_interleaved_runs_name_the_layer_too(provider, tmp_path):
    """220 steps an arm, in palindromic order: A, every layer, every layer backwards, A."""
    options = replace(SHORT, provider=provider, steps=220, warmup=20)
    order = [None, *INJECTABLE, *reversed(INJECTABLE), None]
    found = {}
    for number, layer in enumerate(order):
        inject = () if layer is None else (Injection(layer, DELAY_US * 1000),)
        found.setdefault(layer, []).append(measured(replace(options, inject=inject), tmp_path / str(number)))
    arms = {
        layer: Arm(pl.concat(one.steps for one in parts), pl.concat(one.windows for one in parts))
        for layer, parts in found.items()
    }
    for layer in INJECTABLE:
        check(arms[None], arms[layer], layer)
        medians = {
            one: arms[layer].median(f"{one}_ns") - arms[None].median(f"{one}_ns")
            for one in WALKED
            if one is not Layer.SKEW
        }
        assert max(medians, key=medians.get) is layer, medians
