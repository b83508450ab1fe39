"""Synthetic runs say what they are and what is in them."""

from __future__ import annotations

import numpy as np
import pytest

from efaprof.trace import layout
from efaprof.trace.rawfile import chunks, open_raw
from efaprof.trace.synth import TSC_2100, TickClock
from efaprof.trace.traffic import Traffic, open_endpoint, write_traffic


def test_a_synthetic_run_never_passes_for_a_measurement(synth):
    assert synth.finish().manifest.emulated == ["synth"]


def test_ticks_of_many_times_are_those_of_each():
    times = np.array([0, 1, 999_999_999, 1_000_000_000, 7 * 86_400 * 1_000_000_000 + 12_345], np.int64)
    for clock in (TickClock(), TSC_2100, TickClock(num=1_000_003, den=999_999, offset=5)):
        assert clock.ticks_of(times).tolist() == [clock.ticks(int(t)) for t in times]


def test_a_name_is_written_once_and_cut_at_its_limit(synth):
    ring = synth.ring()
    text = "n" * 200
    assert ring.name(text) == ring.name(text) == layout.name_id(text.encode())
    assert ring.slots == 1 + layout.NAME_MAX // layout.SLOT_BYTES
    assert ring.name("") == 0


def test_raw_slots_must_be_whole(synth):
    with pytest.raises(ValueError, match="not whole slots"):
        synth.ring().raw(b"123")


def test_traffic_writes_as_many_records_as_it_says(synth):
    ring = synth.ring()
    open_endpoint(ring, 1, 2)
    traffic = Traffic(batches=30, batch=4, lag=3)
    write_traffic(ring, traffic, ep=1, cq=2)
    synth.finish()
    kinds = np.concatenate([chunk.kinds >> 8 for chunk in chunks(open_raw(ring.path), 1 << 16)])
    assert (kinds == layout.Shape.OP).sum() == traffic.operations == 120
    assert (kinds == layout.Shape.CQ).sum() == traffic.completed // 4 == 27


@pytest.mark.parametrize("shape", [{"batch": 65}, {"batch": 0}, {"period_ns": 100}])
def test_traffic_that_does_not_fit_its_records_or_period_is_refused(shape):
    with pytest.raises(ValueError, match="must fit"):
        Traffic(batches=1, **shape)
