from __future__ import annotations

import pytest

from efaprof.cli.quantities import parse_percent, parse_rate, parse_seconds
from efaprof.errors import UsageError


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("300us", 3e-4),
        ("300 µs", 3e-4),
        ("1.5ms", 1.5e-3),
        ("24h", 86400.0),
        ("2d", 172800.0),
        ("90m", 5400.0),
        ("0s", 0.0),
    ],
)
def test_times_are_seconds(text, seconds):
    assert parse_seconds(text) == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["", "3", "3 weeks", "-1s", "s", "1e999s", "nan s"])
def test_what_is_no_time_is_refused(text):
    with pytest.raises(UsageError, match="no time"):
        parse_seconds(text)


@pytest.mark.parametrize(("text", "rate"), [("400Gbps", 50e9), ("50GB/s", 50e9), ("1Tbit/s", 125e9), ("8bps", 1.0)])
def test_rates_are_bytes_per_second(text, rate):
    assert parse_rate(text) == pytest.approx(rate)


@pytest.mark.parametrize("text", ["", "400", "0Gbps", "400 Gb", "-1Gbps", "1e999Gbps"])
def test_what_is_no_rate_is_refused(text):
    with pytest.raises(UsageError, match="no rate"):
        parse_rate(text)


@pytest.mark.parametrize(("text", "share"), [("5%", 0.05), ("5", 0.05), (" 0.5 % ", 0.005), ("0%", 0.0)])
def test_percentages_are_shares(text, share):
    assert parse_percent(text) == pytest.approx(share)


@pytest.mark.parametrize("text", ["", "%", "-5%", "5 pct", "5%%", "1e999%"])
def test_what_is_no_percentage_is_refused(text):
    with pytest.raises(UsageError, match="no percentage"):
        parse_percent(text)
