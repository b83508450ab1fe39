"""The dispatch path over libfabric's efa provider on an emulated device that delivers out of order."""

from __future__ import annotations

import json

import numpy as np
import pytest
from raw_files import of, raw_files
from recording import efaprof, manifest
from softefa_runs import need_softefa, wheel_folder

from efaprof.instrument.dispatch import DispatchOptions, SignalMode
from efaprof.libfabric.find import find_libfabrics
from efaprof.trace.layout import RX_HELD, Shape

OPTIONS = DispatchOptions(provider="efa", layers=2, tokens=6, hidden=256, steps=8, warmup=1, compute_us=0)


@pytest.mark.parametrize("signal", list(SignalMode))
def test_data_is_right_whatever_order_the_wire_delivers_in(signal, tmp_path):
    words = [*OPTIONS.arguments(), "--signal", signal.value, "--emulate", "latency=12us,reorder=0.5", "--json"]
    done = efaprof("bench", "dispatch", *words, "-o", "run", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout)
    assert (summary["provider"], summary["immediate"]) == ("efa", True)
    assert summary["verified_tokens"] == 2 * 6 * 2 * 9
    said = manifest(tmp_path / "run")
    assert [label.partition(":")[0] for label in said["emulated"]] == ["device", "kernel"]
    arrivals = np.concatenate([of(file, Shape.RX) for file in raw_files(tmp_path / "run" / "raw", "dispatch")])
    held = int((arrivals["x"] & RX_HELD).sum())
    if signal is SignalMode.IMM:
        assert held > 0  # the wire did reorder, and the receiver put it right
    else:
        assert held == 0  # no two signals of a channel are in flight at once


@pytest.mark.parametrize("more", [("--no-record",), ()], ids=["bare", "recorded"])
def test_a_provider_that_the_systems_libfabric_lacks_is_found_in_a_wheel(tmp_path, more):
    """Debian 12's libfabric has no efa-direct and refuses it; nothing but the provider is said here."""
    need_softefa()
    folder = wheel_folder()
    words = [*DispatchOptions(provider="efa-direct", layers=1, steps=3, warmup=1, compute_us=0).arguments(), *more]
    done = efaprof("bench", "dispatch", *words, "--emulate", "latency=12us", "--json", "-o", "run", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout)
    assert (summary["provider"], summary["verified_tokens"] > 0) == ("efa-direct", True)
    if not more and any("1.17" in found.version for found in find_libfabrics()[:1]):
        assert manifest(tmp_path / "run")["options"]["libfabric"] == str(folder / "libfabric.so.1")
