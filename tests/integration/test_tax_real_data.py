"""`efaprof tax` on real measurements: the published headline, recomputed. They are found through EFAPROF_REAL_DATA."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from efaprof import env

FOLDER = os.environ.get(env.REAL_DATA)
pytestmark = pytest.mark.skipif(
    not FOLDER or not (Path(FOLDER) / "aiperf").is_dir(),
    reason=f"{env.REAL_DATA} names no folder with aiperf/: the real measurements are not part of the project",
)


def tax(*arguments):
    done = subprocess.run(
        [sys.executable, "-m", "efaprof", "tax", *map(str, arguments), "--json"],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    return done, json.loads(done.stdout) if done.returncode == 0 else None


def arm(name, folder):
    return "--arm", f"{name}={Path(str(FOLDER)) / 'aiperf' / folder}"


def test_the_headline_pair():
    _, document = tax(
        *arm("deepep", "trtllm-20260623-deepep"), *arm("dense", "trtllm-20260623-dense"), "--moe-layers", 48
    )
    cell = document["cells"][0]
    value = cell["tax_ms"]
    assert (value["value"], value["lo"], value["hi"]) == pytest.approx((16.27, 16.04, 16.49), abs=0.02)
    assert cell["ratio"] == pytest.approx(0.687, abs=5e-4)
    assert cell["taxes"]["deepep"]["tax_per_layer_us"]["value"] == pytest.approx(339, abs=0.5)
    assert cell["arms"]["deepep"]["itl_ms"]["value"] == pytest.approx(51.900, abs=5e-4)
    assert cell["arms"]["dense"]["itl_ms"]["value"] == pytest.approx(35.635, abs=5e-4)
    assert (cell["arms"]["deepep"]["clusters"], cell["arms"]["deepep"]["icc_provenance"]) == (10, "assumed")
    assert document["invariance"] == {}


def test_the_two_sweeps_to_three_decimals():
    _, document = tax(*arm("shim", "trtllm-deepep-shim"), *arm("seam", "trtllm-deepep-seam"))
    speeds = {
        name: [round(cell["arms"][name]["per_user_tok_s"], 3) for cell in document["cells"]]
        for name in ("shim", "seam")
    }
    assert [cell["concurrency"] for cell in document["cells"]] == [4, 8, 32]
    assert speeds == {"shim": [19.309, 19.326, 19.157], "seam": [18.718, 18.713, 18.394]}


def test_flatness_of_the_two_sweeps():
    _, document = tax(*arm("shim", "trtllm-deepep-shim"), *arm("seam", "trtllm-deepep-seam"))
    shim, seam = (document["invariance"][name] for name in ("shim", "seam"))
    assert (shim["outcome"], shim["within_tight_margin"], shim["slope_significant"]) == ("flat", True, True)
    assert (seam["outcome"], seam["within_tight_margin"]) == ("flat", False)
    for one in (shim, seam):
        assert one["one_run_per_load"]
        assert not one["leverage"]["informative"]
        assert "proves nothing about the issue rate" in one["leverage"]["statement"]


def test_a_baseline_of_another_session_is_refused():
    done, _ = tax(*arm("deepep", "trtllm-deepep-shim"), *arm("dense", "trtllm-20260623-dense"))
    assert done.returncode == 5
    assert "days apart" in done.stderr
    assert "no cell at conc 8" in done.stderr
    _, document = tax(*arm("deepep", "trtllm-deepep-shim"), *arm("dense", "trtllm-20260623-dense"), "--extrapolate")
    assert all(cell["taxes"]["deepep"]["extrapolated"] for cell in document["cells"])


def test_records_and_summary_of_one_run_agree():
    folder = Path(str(FOLDER)) / "aiperf" / "trtllm-deepep-shim" / "c8"
    _, records = tax("--arm", f"a={folder / 'profile_export.jsonl'}")
    _, summary = tax("--arm", f"a={folder / 'profile_export_aiperf.json'}")
    one, other = (document["cells"][0]["arms"]["a"] for document in (records, summary))
    assert one["itl_ms"]["value"] == pytest.approx(other["itl_ms"]["value"], rel=1e-9)
    assert one["per_user_tok_s"] == pytest.approx(other["per_user_tok_s"], rel=1e-9)
    assert one["clusters"] == other["clusters"] == 8


@pytest.mark.parametrize("sweep", ["trtllm-deepep-shim", "trtllm-deepep-seam"])
def test_every_token_of_the_sweeps_is_placed(sweep):
    _, document = tax(*arm("a", sweep))
    for cell in document["cells"]:
        point = cell["arms"]["a"]
        records = map(json.loads, Path(point["sources"][0]).read_text().splitlines())
        decoded = sum(record["metrics"]["output_sequence_length"]["value"] - 1 for record in records)
        chunks = point["chunks"]
        placed = chunks["gaps"] + chunks["coalesced_tokens"] + chunks["unplaced_tokens"] - chunks["surplus_chunks"]
        assert placed == decoded
        assert chunks["unplaced_tokens"] < 10
