"""The decode split adds up, keeps decode steps only, and says what it left out."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest

from efaprof.analyzers.attribution import decode_split
from efaprof.analyzers.features import run_features
from efaprof.trace.layers import Layer


def costs(steps=400, ranks=2, *, kinds=None, seed=3):
    """Per-step costs of `ranks` ranks with random layers; wall is their sum."""
    rng = np.random.default_rng(seed)
    count = steps * ranks
    layers = {f"{name}_ns": rng.integers(1_000, 9_000, count) for name in ("compute", "proxy", "nic", "idle")}
    wall = sum(layers.values())
    return pl.DataFrame(
        {
            "rank": np.tile(np.arange(ranks), steps), "step": np.repeat(np.arange(steps), ranks),
            "kind": kinds or ["decode"] * count, "begin_ns": np.repeat(np.arange(steps), ranks) * 40_000,
            "wall_ns": wall, **layers, "proxy_overlapped_ns": np.full(count, 500), "queue_ns": np.zeros(count, int),
            "proxy_busy_ns": layers["proxy_ns"], "operations": np.full(count, 10), "bytes": np.full(count, 40_960),
            "eagain": np.full(count, 1), "unfinished": np.zeros(count, int), "clip_ns": np.zeros(count, int),
            "served": np.full(count, 10), "waiting": np.full(count, 5),
        }
    )  # fmt: skip


def test_layers_sum_to_the_wall_time():
    split = decode_split(costs())
    assert sum(row.us.value for row in split.layers) == pytest.approx(split.wall_us.value, rel=1e-12)
    assert sum(row.share for row in split.layers) == pytest.approx(1)
    assert split.conservation_error_ns == 0
    assert split.coverage == pytest.approx(1 - split.of(Layer.IDLE).share)
    assert split.of(Layer.RING) is None


def test_other_kinds_of_step_are_counted_and_left_out():
    kinds = ["warm-up"] * 20 + ["prefill"] * 10 + ["decode"] * 770
    split = decode_split(costs(kinds=kinds))
    assert split.steps == 385
    assert split.steps_excluded == {"warm-up": 10, "prefill": 5}


def test_no_decode_step_gives_no_split():
    assert decode_split(costs(steps=4, kinds=["prefill"] * 8)) is None


def test_a_step_that_a_rank_lacks_is_left_out():
    frame = costs(steps=50)
    assert decode_split(frame.filter(~((pl.col("step") == 7) & (pl.col("rank") == 1)))).steps == 49


def test_a_planted_drift_is_found_and_noise_is_not():
    assert decode_split(costs()).drift is None
    frame = costs().with_columns(compute_ns=pl.col("compute_ns") + pl.col("step") * 40)
    frame = frame.with_columns(wall_ns=pl.sum_horizontal("compute_ns", "proxy_ns", "nic_ns", "idle_ns"))
    assert decode_split(frame).drift > 0.5


def test_features_are_ratios_of_the_sums():
    frame = costs()
    features = run_features(frame, decode_split(frame).batching, line_rate_bytes_s=1e9)
    communication = frame["wall_ns"].sum() - frame["compute_ns"].sum()
    assert features["proxy_share"].value == pytest.approx(frame["proxy_ns"].sum() / communication)
    assert features["waiting_at_dequeue"].value == 0.5
    assert features["eagain_per_post"].value == pytest.approx(0.1)
    assert features["utilisation_active"].value == pytest.approx(frame["bytes"].sum() / communication)
    assert features["proxy_share"].lo < features["proxy_share"].value < features["proxy_share"].hi


def test_without_a_line_rate_utilisation_is_unknown():
    frame = costs()
    assert "utilisation_active" not in run_features(frame, decode_split(frame).batching)
