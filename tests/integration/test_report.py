"""`efaprof report` writes one file, which a real browser shows whole at the width of a desk and of a phone."""

from __future__ import annotations

import pytest
from chromium import Page, find_chromium
from ci_runs import BASE
from recording import efaprof

from efaprof.trace.steady import write_steady

CHROMIUM = find_chromium()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("report")
    write_steady(made / "efaprof-run", BASE)
    return made


def test_the_file_is_named_on_stdout_and_lies_in_the_run(folder):
    done = efaprof("report", cwd=folder)
    assert (done.returncode, done.stdout) == (0, "efaprof-run/report.html\n"), done.stderr
    assert (folder / "efaprof-run" / "report.html").read_text().startswith("<!doctype html>")


def test_a_file_that_cannot_be_written_is_named(folder):
    done = efaprof("report", "efaprof-run", "-o", "no/such/x.html", cwd=folder)
    assert done.returncode == 2
    assert "no/such/x.html cannot be written" in done.stderr


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on PATH: apt-get install chromium")
@pytest.mark.parametrize("size", [(1280, 900), (500, 900)])  # a browser's window is no narrower
def test_a_browser_shows_it_without_scrolling_sideways(folder, tmp_path, size):
    assert efaprof("report", "efaprof-run", "-o", tmp_path / "x.html", cwd=folder).returncode == 0
    with Page(CHROMIUM, tmp_path / "profile", size) as page:
        page.go((tmp_path / "x.html").as_uri())
        page.wait_for("document.readyState == 'complete' && document.querySelectorAll('svg').length == 4")
        wide = page.evaluate("innerWidth")
        assert wide <= size[0]
        assert page.evaluate("document.documentElement.scrollWidth") <= wide
        assert page.evaluate("performance.getEntriesByType('resource').length") == 0
        # Every picture has an extent, and the words in it are of a size that can be read.
        assert page.evaluate(
            "[...document.querySelectorAll('svg')].every(svg => svg.getBoundingClientRect().height > 100)"
        )
        assert page.evaluate("document.querySelector('svg text').getBoundingClientRect().height") >= 8
