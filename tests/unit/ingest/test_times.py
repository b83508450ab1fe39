from __future__ import annotations

import pytest

from efaprof.ingest.times import unix_ns


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1970-01-02T00:00:00.000001", 86_400_000_001_000),
        ("1970-01-01T02:00:00+02:00", 0),
        ("1970-01-01T01:00:00Z", 3_600_000_000_000),
        ("19700102-000001", 86_401_000_000_000),
        ("yesterday", None),
        ("", None),
        (None, None),
        (12, None),
    ],
)
def test_start_times_are_unix_nanoseconds(text, expected):
    assert unix_ns(text) == expected
