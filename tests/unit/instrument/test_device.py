"""What a GPU adds to a dispatch run: its type of tokens, what its proxies can be told, what is said of it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from efaprof.cli.bench_ring import gpu_table
from efaprof.errors import UsageError
from efaprof.instrument.device import Tuning, dtype_for
from efaprof.instrument.dispatch import Completion, DispatchOptions, Injection, Posting, SignalMode
from efaprof.trace.layers import DispatchPath, Layer


def test_each_device_has_its_types():
    assert dtype_for("cpu", None) == "f32"
    assert dtype_for("cuda", None) == "bf16"
    assert dtype_for("cuda", "fp8") == "fp8"
    for device, dtype in (("cpu", "bf16"), ("cuda", "f32"), ("gpu", None)):
        with pytest.raises(UsageError):
            dtype_for(device, dtype)


def test_a_run_on_a_gpu_says_where_its_payload_lies_and_no_longer_that_its_kernel_is_emulated():
    said = DispatchOptions(device="cuda", dtype="bf16", provider="efa-direct").emulated()
    assert said == ("payload: in pinned host memory, not in the GPU's",)
    assert DispatchOptions(provider="efa-direct").emulated() == ("kernel: a CPU thread",)


def test_the_program_is_told_the_device_and_only_what_is_not_as_usual():
    words = DispatchOptions(device="cuda", dtype="fp8").arguments()
    assert words[words.index("--device") + 1] == "cuda"
    assert words[words.index("--dtype") + 1] == "fp8"
    assert not {"--drain", "--more", "--pin", "--no-stamps"} & set(words)
    tuning = Tuning(drain=4, more=True, pin=True, stamps=False)
    assert DispatchOptions(device="cuda", dtype="bf16", tuning=tuning).arguments()[-5:] == [
        "--drain", "4", "--more", "--pin", "--no-stamps",
    ]  # fmt: skip


def test_tuning_is_part_of_what_makes_runs_comparable_and_comes_back():
    tuned = DispatchOptions(device="cuda", dtype="bf16", tuning=Tuning(more=True))
    fingerprint = json.loads(json.dumps(tuned.fingerprint()))
    assert DispatchOptions.from_fingerprint(fingerprint) == tuned
    assert "tuning" not in DispatchOptions().fingerprint()


POSTING: dict[str, Any] = {
    "path": DispatchPath.GDAKI, "provider": "efa-direct", "device": "cuda", "dtype": "bf16",
}  # fmt: skip


def test_kernels_of_a_gpu_post_by_themselves():
    words = DispatchOptions(**POSTING).arguments()
    given = dict(zip(words[::2], words[1::2], strict=True))
    assert (given["--path"], given["--device"]) == ("gdaki", "cuda")


def test_they_count_completions_where_they_are_asked_to():
    options = {"signal": SignalMode.FENCE, "posting": Posting(completion=Completion.COUNTER)}
    assert "counter" in DispatchOptions(**POSTING | options).arguments()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"provider": "tcp"}, "not through provider tcp"),
        ({"inject": (Injection(Layer.NIC, 1),)}, "into nic where a GPU posts"),
    ],
)
def test_what_kernels_of_a_gpu_cannot_do_when_they_post_is_refused(options, said):
    with pytest.raises(UsageError, match=said) as error:
        DispatchOptions(**POSTING | options)
    assert error.value.hint


def test_the_rings_table_has_a_ratio_to_each_figure_and_names_what_was_published_elsewhere():
    rates = ("thread", "warp", "warp_batch", "drain", "drain_eager_tail", "warp_uncached_tail", "warp_host_head")
    result = {
        "gpu": "A card", "driver": 13010, "timer_step_ns": 32, "commands": 1000, "wrong": 0,
        "round_trip_ns": {"p50": 2900, "p99": 4000, "p999": 9000}, "relaxed_round_trip_ns": {"p50": 2320},
        "nearest_core": {"core": 3, "round_trip_ns": {"p50": 2600}},
        "commands_per_s": {name: 2e6 * (1 + i) for i, name in enumerate(rates)},
    }  # fmt: skip
    text = "\n".join(gpu_table(result))
    assert text.startswith("A card, driver 13.1 · ")
    assert "a command and its answer, p50               2.90  1.25" in text
    assert "… taken on core 3, the nearest, p50         2.60  1.12" in text
    assert "one warp, a command a lane                  4.00  2.0" in text
    assert "1,000 commands verified, 0 wrong; clock step 32 ns" in text
    assert text.count("published, not measured here") == 2
