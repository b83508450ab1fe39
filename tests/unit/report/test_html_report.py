"""The HTML report: every string escaped, nothing fetched, pictures that show what the run holds."""

from __future__ import annotations

import re
from html.parser import HTMLParser

import polars as pl
import pytest
from ci_runs import changed
from operation_runs import every_outcome

from efaprof.analyzers.profile import LoopRow, profile_of
from efaprof.report.attribution_report import report_on
from efaprof.report.html_report import html_report
from efaprof.report.plotting import HOST_PATH
from efaprof.report.step_figures import drawn_layers, spread_figure, steps_figure
from efaprof.report.svg import COLOURS, Drawing, colours
from efaprof.report.worst_step import worst_step
from efaprof.trace.layers import Layer
from efaprof.trace.reader import open_tables
from efaprof.trace.steady import Steady, write_steady

STEADY = Steady(steps=40, commands=9, proxy_ns=7_000)
VILE = '"><script>alert(1)</script><img src=x onerror=alert(1)>&'
VOID = {"meta"}


class Checker(HTMLParser):
    """Collects tags and attributes; fails on what does not nest."""

    def __init__(self):
        super().__init__()
        self.open, self.tags, self.attributes = [], [], []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def parsed(page):
    found = Checker()
    found.feed(page)
    found.close()
    assert found.open == []
    return found


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    made = write_steady(tmp_path_factory.mktemp("html") / "a <b> & c", STEADY)
    return changed(made, command=["serve", VILE], host=VILE, warnings=[VILE], fingerprint={"ranks": 2, VILE: VILE})


@pytest.fixture(scope="module")
def costs(run):
    return report_on([(run, open_tables(run))]).decode.decode.step_costs.filter(pl.col("kind") == "decode")


def test_strings_of_the_run_stay_strings(run):
    page = html_report(run)
    found = parsed(page)
    assert {"script", "img", "b"} & set(found.tags) == set()
    assert page.count("&lt;script&gt;alert(1)&lt;/script&gt;") >= 3
    assert "a &lt;b&gt; &amp; c" in page


def test_nothing_is_fetched_and_nothing_runs(run):
    page = html_report(run)
    found = parsed(page)
    assert {name for name, _ in found.attributes} & {"src", "href", "xlink:href", "srcset", "action"} == set()
    assert [name for name, _ in found.attributes if name.startswith("on")] == []
    assert "url(" not in page
    assert "@import" not in page
    assert "default-src &#x27;none&#x27;" in page


def test_it_has_the_pictures_and_all_tables(run):
    page = html_report(run)
    found = parsed(page)
    assert found.tags.count("svg") == 4
    titles = re.findall(r"<h2>(.*?)</h2>", page)
    assert titles[:6] == [
        "per token", "verdict", "layers over steps", "per layer", "longest step", "message roofline",
    ]  # fmt: skip
    assert "ceilings unknown: efaprof calibrate" in page
    assert {"layer", "rules", "origin", "warnings"} <= set(titles)
    assert len(page) < 200_000


def test_with_a_profile_the_run_stands_under_what_its_fabric_reaches(tmp_path):
    made = write_steady(tmp_path / "run", STEADY)
    made = changed(made, fingerprint={**made.manifest.fingerprint, "provider": "tcp"}, emulated=["kernel: <a thread>"])
    rows = [LoopRow(64, 1, 1000, 10**9, 9 * 10**8), LoopRow(1 << 20, 64, 10**6, 10**9, 5 * 10**8)]
    page = html_report(made, profile_of(rows, {"provider": "tcp"}))
    (figure,) = re.findall(r"<h2>message roofline</h2>(.*?)</figure>", page, re.DOTALL)
    assert figure.count("<polyline") == 2 * 3  # curves, and their places in the key
    assert HOST_PATH[0] in figure
    assert "calibrated, at best" in figure
    assert "emulated: kernel: &lt;a thread&gt;" in figure
    assert "ceilings unknown" not in page
    parsed(page)


def test_a_run_without_steps_has_tables_and_the_roofline_only(tmp_path):
    page = html_report(every_outcome(tmp_path / "client"))
    assert parsed(page).tags.count("svg") == 1
    assert "<h2>outcomes</h2>" in page


def test_the_longest_step_is_drawn_with_what_was_open(run, costs):
    found = worst_step(run, costs)
    assert (found.step, found.rank) == (0, 0)  # all alike: the first
    assert found.end_ns - found.begin_ns == STEADY.wall_ns
    compute = next(lane for lane in found.lanes if (lane.rank, lane.layer) == (1, Layer.COMPUTE))
    assert compute.stretches == ((STEADY.start_ns, STEADY.start_ns + STEADY.compute_ns),)
    assert {lane.rank for lane in found.lanes} == {0, 1}
    for lane in found.lanes:
        for begin, end in lane.stretches:
            assert found.begin_ns <= begin < end <= found.end_ns


def test_a_later_longer_step_is_found(run, costs):
    longer = costs.with_columns(wall_ns=pl.col("wall_ns") + (pl.col("step") == 31).cast(pl.Int64))
    found = worst_step(run, longer)
    assert found.step == 31
    assert found.begin_ns == STEADY.start_ns + 31 * STEADY.wall_ns


def steps(count):
    return pl.DataFrame(
        {
            "step": range(count), "rank": [0] * count, "begin_ns": [step * 10 for step in range(count)],
            "compute_ns": [6_000] * count, "proxy_ns": [4_000] * (count - 1) + [14_000], "skew_ns": [0] * count,
        }
    )  # fmt: skip


def test_layers_of_a_step_are_stacked_to_its_height():
    costs = steps(3)
    layers = drawn_layers(costs, [Layer.COMPUTE, Layer.PROXY, Layer.SKEW])
    assert layers == [Layer.COMPUTE, Layer.PROXY]
    drawn = re.findall(r'height="([\d.]+)" fill="(#\w+)"', steps_figure(costs, layers))
    heights = [float(high) for high, fill in drawn if fill == COLOURS[Layer.PROXY]]
    assert heights == pytest.approx([50, 50, 175], abs=0.01)
    assert "step 2: proxy 14.0 µs" in steps_figure(costs, layers)


def test_many_steps_become_few_bars():
    text = steps_figure(steps(1_000), [Layer.COMPUTE, Layer.PROXY])
    assert text.count("<rect") == 2 * 200
    assert "each bar: mean of 5 steps" in text
    assert "steps 0 to 4: compute 6.00 µs" in text


def test_percentiles_stand_beside_each_distribution():
    text = spread_figure(steps(100), [Layer.PROXY])
    assert re.findall(r">([\d.]+ µs)</text>", text)[0] == "4.00 µs"
    assert ">14.0 µs</text>" in text


def test_words_in_a_picture_are_escaped():
    drawing = Drawing(10, 10, VILE)
    drawing.rect(0, 0, 1, 1, "red", title=VILE)
    drawing.text(0, 0, VILE)
    assert set(parsed(drawing.svg()).tags) == {"svg", "rect", "title", "text"}


def test_a_kernel_that_posts_by_itself_is_violet():
    posted = colours([Layer.COMPUTE, Layer.KERNEL, Layer.NIC])
    assert posted[Layer.KERNEL] == "#7b3fe4"
    assert {layer: colour for layer, colour in posted.items() if layer is not Layer.KERNEL}.items() <= COLOURS.items()
    assert colours([Layer.KERNEL, Layer.RING, Layer.NIC]) == colours([Layer.NIC]) == COLOURS
