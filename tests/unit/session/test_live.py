"""What the live view says, from sums that a test chooses."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from efaprof.native import DrainStats
from efaprof.session.live import LINES, LiveView


class NoTerminal:
    """A terminal that went away."""

    def show(self, _lines):
        raise OSError(5, "Input/output error")

    def close(self):
        raise OSError(5, "Input/output error")


@pytest.fixture
def view(tmp_path):
    counts = dict.fromkeys(DrainStats.__dataclass_fields__, 0) | {"slots": 1 << 15, "dropped": 3}
    return LiveView(tmp_path, lambda: DrainStats(**counts))


def text_of(view, now=10.0):
    view._start = 0.0
    console = Console(file=io.StringIO(), width=160)
    lines = view.lines(now)
    assert len(lines) == LINES
    for line in lines:
        console.print(line)
    return console.file.getvalue()


def saw(view, **ticks):
    seen = view._follower.seen
    seen.issued = 5000.0
    seen.ticks.update(ticks)


def test_rates_shares_and_losses_are_shown(view):
    saw(view, kernel=10.0, proxy=60.0, libfabric=20.0, nic=10.0)
    text = text_of(view)
    assert "1.0 MiB of records" in text
    assert "operations 5,000, now 500/s" in text
    assert "proxy 60.0% ██████████ libfabric 20.0% ███ nic 10.0% ██" in text
    assert "dropped 3" in text
    assert "operations 5,000, now 0/s" in text_of(view, 12.0)  # nothing came since


@pytest.mark.parametrize(
    ("ticks", "use", "words"),
    [
        (
            {"kernel": 1.0, "proxy": 6.0, "nic": 3.0},
            None,
            "points to issue-bound (70% before the doorbell, most in proxy)",
        ),
        ({"kernel": 1.0, "proxy": 6.0, "nic": 3.0}, 0.1, "most in proxy, the NIC at 10%)"),
        ({"kernel": 1.0, "proxy": 6.0, "nic": 3.0}, 0.5, "points nowhere yet (most time in proxy)"),
        ({"proxy": 1.0, "nic": 9.0}, 0.9, "points to wire-bound/bandwidth (a NIC sends at 90%"),
        ({"proxy": 1.0, "nic": 9.0}, 0.1, "points nowhere yet (most time in nic)"),
    ],
)
def test_where_the_sums_point_is_said_and_called_so_far(view, ticks, use, words):
    saw(view, **ticks)
    if use is not None:
        watch = view.watch(lambda *_args, **_options: None)
        watch("nic.efa0.rate_bytes_s", 1000, monotone=False)
        view.nics["efa0"].bytes_s = use * 1000
    said = view.verdict()
    assert said.startswith("so far: ")
    assert words in said
    assert said.endswith("efaprof attribute decides")


def test_little_data_has_no_verdict(view):
    assert "no verdict" in view.verdict()


def test_counters_are_passed_on_and_rates_taken_from_them(view, monkeypatch):
    now = iter([0.0, 1.0, 1.1, 2.0])
    monkeypatch.setattr("efaprof.session.live.time.monotonic", lambda: next(now))
    passed = []
    watch = view.watch(lambda name, value, *, monotone=True: passed.append((name, value, monotone)))
    for value in (100, 600, 650, 0):
        watch("nic.mlx5_0.port_xmit_data", value)
        if value == 600:
            assert view.nics["mlx5_0"].bytes_s == 2000
    assert view.nics["mlx5_0"].bytes_s == 0  # set back: that interval says nothing
    watch("cpu.run_delay_ns.7", 4)
    assert len(passed) == 5
    assert "mlx5_0 sends" in text_of(view)


def test_a_terminal_that_goes_away_ends_the_drawing_only(tmp_path):
    view = LiveView(tmp_path, lambda: None, NoTerminal())
    view.sample(lambda *_args, **_options: None)
    view.sample(lambda *_args, **_options: None)
    view.close()
