from __future__ import annotations

import json
from dataclasses import replace
from importlib import resources

import jsonschema
import pytest

from efaprof.analyzers.load_points import load_points
from efaprof.analyzers.tax import TaxOptions, compare
from efaprof.errors import UsageError
from efaprof.ingest import synth
from efaprof.ingest.exports import read_arm
from efaprof.report import tax_plot
from efaprof.report.sections import as_markdown, as_terminal
from efaprof.report.tax_json import tax_document
from efaprof.report.tax_sections import tax_heading, tax_sections

START = "2026-05-28T20:26:40"


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    """Two arms of three loads, 52 against 36 ms, with a stall, coalesced chunks and a failure; and the real shapes."""
    folder = tmp_path_factory.mktemp("exports")
    for arm, base in (("deepep", 52.0), ("dense", 36.0)):
        for load in (4, 8, 32):
            steps = [base + 0.01 * ((7 * wave) % 5) for wave in range(6)]
            requests = synth.waves(steps, concurrency=load, tokens=32, first_ttft_ms=900.0)
            synth.write_cell(folder / arm / f"c{load}", requests, concurrency=load, start_time=START)
    broken = folder / "deepep" / "c4" / "profile_export.jsonl"
    failure = json.dumps(synth.aiperf_failure(synth.Scripted(synth.EPOCH_NS, 160.0, (50.0,))))
    broken.write_text(broken.read_text() + failure + "\n{cut\n")
    arms = {name: load_points(read_arm([folder / name]).cells) for name in ("deepep", "dense")}
    return compare(arms, TaxOptions(moe_layers=48))


def schema(name):
    return json.loads(resources.files("efaprof.report").joinpath("schemas", name).read_text(encoding="utf-8"))


def test_json_fits_the_shipped_schema(report):
    definition = schema("efaprof.tax.1.json")
    jsonschema.Draft202012Validator.check_schema(definition)
    jsonschema.validate(json.loads(json.dumps(tax_document(report))), definition)
    no_tax = compare({"a": report.arms["deepep"][:1]}, TaxOptions())
    jsonschema.validate(json.loads(json.dumps(tax_document(no_tax))), definition)


def test_the_schema_refuses_a_document_of_another_shape(report):
    document = tax_document(report)
    del document["cells"][0]["arms"]["deepep"]["itl_ms"]
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(document, schema("efaprof.tax.1.json"))


def test_cells_hold_both_arms_and_the_tax(report):
    cells = tax_document(report)["cells"]
    assert [cell["concurrency"] for cell in cells] == [4, 8, 32]
    for cell in cells:
        assert set(cell["arms"]) == {"deepep", "dense"}
        assert cell["tax_ms"]["value"] == pytest.approx(16.0)
        assert cell["tax_ms"]["lo"] < 16.0 < cell["tax_ms"]["hi"]
        assert cell["ratio"] == pytest.approx(36.02 / 52.02, abs=1e-3)
        assert cell["taxes"]["deepep"]["tax_per_layer_us"]["value"] == pytest.approx(16000 / 48)


def test_what_was_lost_stands_in_the_document_and_in_the_text(report):
    requests = tax_document(report)["cells"][0]["arms"]["deepep"]["requests"]
    assert (requests["failed"], requests["malformed"], requests["read"]) == (1, 1, 25)
    text = as_terminal(tax_heading(report), tax_sections(report))
    assert "1 failed, 1 malformed lines" in text
    assert "profile_export.jsonl:26" in text


def test_the_terminal_report_says_the_tax_the_outcome_and_the_marks(report):
    text = as_terminal(tax_heading(report), tax_sections(report))
    assert "deepep − dense" in text
    assert "16.00 [15." in text
    assert "flat within ±2%" in text
    assert "flatness proves nothing about the issue rate" in text
    assert "measured ● derived ○ assumed △" in text
    assert "extrapolated" not in text


def test_markdown_has_the_same_tables(report):
    text = as_markdown(tax_heading(report), tax_sections(report))
    assert text.startswith("### efaprof tax · deepep, dense")
    assert "| deepep − dense | 4 |" in text


def test_the_plot_is_written_as_svg_and_png(report, tmp_path):
    pytest.importorskip("matplotlib", reason="the plot extra is not installed")
    tax_plot.write_plot(report, tmp_path / "x.svg")
    svg = (tmp_path / "x.svg").read_text()
    assert tax_plot.HOST_PATH[0] in svg
    assert tax_plot.NEUTRAL[0] in svg
    tax_plot.write_plot(report, tmp_path / "x.png")
    assert (tmp_path / "x.png").read_bytes().startswith(b"\x89PNG")


def test_a_point_without_interval_is_drawn_too(report, tmp_path):
    pytest.importorskip("matplotlib", reason="the plot extra is not installed")
    bare = [replace(point, mean=replace(point.mean, error=None)) for point in report.arms["deepep"]]
    tax_plot.write_plot(replace(report, arms={"deepep": tuple(bare)}), tmp_path / "x.svg")
    assert (tmp_path / "x.svg").stat().st_size > 1000


@pytest.mark.parametrize("name", ["x.pdf", "x", "nowhere/x.svg"])
def test_a_plot_that_cannot_be_written_is_a_usage_error(report, tmp_path, name):
    with pytest.raises(UsageError):
        tax_plot.write_plot(report, tmp_path / name)


def test_colours_follow_the_path():
    colours = tax_plot.arm_colours(["deepep-proxy", "deepep-gdaki", "seam", "dense", "other"], "dense")
    assert (colours["deepep-proxy"], colours["seam"]) == tax_plot.HOST_PATH[:2]
    assert colours["deepep-gdaki"] == tax_plot.KERNEL_POSTED[0]
    assert colours["dense"] == tax_plot.NEUTRAL[0]
