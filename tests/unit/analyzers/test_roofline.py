"""The message roofline has its three ceilings where the formula puts them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from efaprof.analyzers.roofline import Ceiling, Fabric, roof

FABRIC = Fabric(peak_bytes_s=50e9, rate_ops_s=2e6, latency_us=12, gap_us=0.4)


@pytest.mark.parametrize(
    ("messages", "size", "bytes_s", "ceiling"),
    [
        (1, 4096, 4096 / 12e-6, Ceiling.LATENCY),
        (16, 4096, 16 * 4096 / 18e-6, Ceiling.LATENCY),
        (1000, 4096, 4096 * 2e6, Ceiling.RATE),
        (1000, 1 << 20, 50e9, Ceiling.BANDWIDTH),
    ],
)
def test_each_ceiling_holds_where_it_is_lowest(messages, size, bytes_s, ceiling):
    found = roof(FABRIC, messages=messages, size_bytes=size)
    assert found.bytes_s == pytest.approx(bytes_s)
    assert found.ceiling is ceiling


@given(messages=st.floats(1, 1e5), more=st.floats(1, 100), size=st.floats(1, 1e8))
def test_more_or_larger_messages_never_lower_the_roof(messages, more, size):
    here = roof(FABRIC, messages=messages, size_bytes=size).bytes_s
    assert roof(FABRIC, messages=messages * more, size_bytes=size).bytes_s >= here * (1 - 1e-12)
    assert roof(FABRIC, messages=messages, size_bytes=size * more).bytes_s >= here * (1 - 1e-12)
    assert here <= FABRIC.peak_bytes_s


@pytest.mark.parametrize(("messages", "size"), [(0, 100), (1, 0)])
def test_nothing_sent_has_no_roof(messages, size):
    with pytest.raises(ValueError, match="have no roof"):
        roof(FABRIC, messages=messages, size_bytes=size)
