"""The bundled Perfetto UI in a real browser shows a run's tracks in our order."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from chromium import Page, find_chromium
from synth_runs import traffic_run

from efaprof.trace.steady import Steady, write_steady

CHROMIUM = find_chromium()
TRACKS = "[...document.querySelectorAll('.pf-track')].map(track => track.getAttribute('ref'))"


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on PATH: apt-get install chromium")
def test_a_run_opens_with_its_tracks_in_the_order_of_the_path(tmp_path: Path) -> None:
    traffic_run(tmp_path / "efaprof-a")
    opening = subprocess.Popen(
        [sys.executable, "-m", "efaprof", "open", "--local", "--keep", "efaprof-a"],
        cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
    )  # fmt: skip
    try:
        url = opening.stdout.readline().strip()
        with Page(CHROMIUM, tmp_path / "profile") as page:
            page.go(url)
            page.wait_for(f"JSON.stringify({TRACKS}).includes('/efaprof/nic')")
            refs = json.loads(page.evaluate(f"JSON.stringify({TRACKS})"))
    finally:
        opening.send_signal(signal.SIGINT)
        opening.communicate(timeout=60)
    assert [ref.removeprefix("rank0 100/efaprof/") for ref in refs if ref.startswith("rank0 100/efaprof/")] == [
        "outstanding operations", "bytes in flight", "empty polls", "libfabric", "completion queue reads · rank0 100",
        "nic",
    ]  # fmt: skip
    assert "Global Track Events/efaprof run" in refs
    assert opening.returncode == 0


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on PATH: apt-get install chromium")
def test_the_worst_step_is_shown_with_its_split_in_a_tab(tmp_path: Path) -> None:
    write_steady(tmp_path / "efaprof-a", Steady(steps=12, commands=3))
    opening = subprocess.Popen(
        [sys.executable, "-m", "efaprof", "open", "--local", "--keep", "--worst-step", "efaprof-a"],
        cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
    )  # fmt: skip
    try:
        url = opening.stdout.readline().strip()
        with Page(CHROMIUM, tmp_path / "profile") as page:
            page.go(url)
            page.wait_for("document.body.innerText.includes('efaprof_step_layers')")
            page.wait_for("document.body.innerText.includes('compute')")
    finally:
        opening.send_signal(signal.SIGINT)
        opening.communicate(timeout=60)
    assert opening.returncode == 0
