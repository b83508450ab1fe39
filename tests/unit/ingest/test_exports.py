from __future__ import annotations

import json

import pytest

from efaprof.analyzers.serving import Format
from efaprof.errors import NothingToAnalyse, TraceError, UsageError
from efaprof.ingest import synth
from efaprof.ingest.exports import read_arm

START = "2026-06-23T00:30:37"


def requests(concurrency=4):
    return synth.waves([50.0, 52.0, 51.0], concurrency=concurrency, tokens=64)


def summary(concurrency=4):
    return synth.aiperf_summary(requests(concurrency), concurrency=concurrency, start_time=START)


def formats(*paths):
    return [cell.format for cell in read_arm(paths).cells]


def test_a_folder_of_cells_is_read_once_each(tmp_path):
    for load in (4, 8, 32):
        folder = synth.write_cell(tmp_path / f"c{load}", requests(load), concurrency=load, start_time=START)
        (folder / "profile_export_aiperf.csv").write_text(synth.aiperf_csv(summary(load)))
    found = read_arm([tmp_path])
    assert sorted(cell.key.concurrency for cell in found.cells) == [4, 8, 32]
    assert {cell.format for cell in found.cells} == {Format.AIPERF_RECORDS}
    assert found.ignored == ()


def test_formats_are_told_from_content_not_from_names(tmp_path):
    lines = synth.write_lines(tmp_path / "a.data", synth.records(requests()))
    compact = tmp_path / "b.data"
    compact.write_text(json.dumps(summary()))
    indented = synth.write_document(tmp_path / "c.data", summary())
    table = tmp_path / "d.data"
    table.write_text(synth.aiperf_csv(summary()))
    vllm = synth.write_document(
        tmp_path / "e.data", synth.vllm_result(requests(), concurrency=4, date="20260623-003200")
    )
    sglang = synth.write_lines(
        tmp_path / "f.data", [synth.sglang_result(requests(load), concurrency=load) for load in (4, 8)]
    )
    assert formats(lines) == [Format.AIPERF_RECORDS]
    assert formats(compact) == formats(indented) == [Format.AIPERF_SUMMARY]
    assert formats(table) == [Format.AIPERF_CSV]
    assert formats(vllm) == [Format.VLLM]
    assert formats(sglang) == [Format.SGLANG, Format.SGLANG]


def test_appended_vllm_results_are_a_cell_each(tmp_path):
    results = [synth.vllm_result(requests(load), concurrency=load, date="20260623-003200") for load in (4, 8)]
    path = synth.write_lines(tmp_path / "openai-infqps.json", results)
    assert [cell.key.concurrency for cell in read_arm([path]).cells] == [4, 8]


def test_a_broken_result_line_is_named_and_the_rest_used(tmp_path):
    path = synth.write_lines(tmp_path / "r.jsonl", ["{", synth.sglang_result(requests(), concurrency=4), {"x": 1}])
    cell = read_arm([path]).cells[0]
    assert f"{path}:1" in cell.warnings[0]
    assert f"{path}:3" in cell.warnings[0]


def test_records_with_a_broken_first_line_are_still_records(tmp_path):
    path = synth.write_lines(tmp_path / "r.jsonl", ['{"cut', *synth.records(requests())])
    cell = read_arm([path]).cells[0]
    assert (cell.format, cell.counts.malformed, cell.counts.used) == (Format.AIPERF_RECORDS, 1, 12)


def test_two_runs_in_one_folder_are_told_apart_by_name(tmp_path):
    for load in (4, 8):
        synth.write_lines(tmp_path / f"c{load}.jsonl", synth.records(requests(load)))
        synth.write_document(tmp_path / f"c{load}_aiperf.json", summary(load))
    found = read_arm([tmp_path])
    assert [(cell.key.concurrency, cell.format) for cell in found.cells] == [
        (4, Format.AIPERF_RECORDS),
        (8, Format.AIPERF_RECORDS),
    ]


def test_a_summary_that_is_named_is_read_even_beside_its_records(tmp_path):
    folder = synth.write_cell(tmp_path, requests(), concurrency=4, start_time=START)
    assert formats(folder / "profile_export_aiperf.json") == [Format.AIPERF_SUMMARY]


def test_other_files_of_a_folder_are_listed_not_lost(tmp_path):
    synth.write_cell(tmp_path, requests(), concurrency=4, start_time=START)
    (tmp_path / "inputs.json").write_text('{"data": []}')
    (tmp_path / "notes.txt").write_text("no export")
    (tmp_path / "empty.jsonl").write_text("")
    assert [path.name for path in read_arm([tmp_path]).ignored] == ["empty.jsonl", "inputs.json"]


def test_our_own_runs_are_cells(tmp_path):
    document = {
        "schema": "efaprof.attribution/1",
        "run": {"fingerprint": {"load": 8}},
        "wall_us": {"value": 12000.0, "lo": None, "hi": None},
        "tokens_per_step": 1,
    }
    synth.write_document(tmp_path / "efaprof-x" / "attribution.json", document)
    assert formats(tmp_path) == formats(tmp_path / "efaprof-x") == [Format.EFAPROF]


def test_an_empty_file_is_nothing_to_analyse(tmp_path):
    path = tmp_path / "profile_export.jsonl"
    path.touch()
    with pytest.raises(NothingToAnalyse, match="is empty"):
        read_arm([path])


@pytest.mark.parametrize(
    "content",
    [b"hello\n", b"\x7fELF\x00\x01", b"{}\n", b"[1, 2]\n", b'{"a": 1}\n{"b": 2}\n', b"{", b"a,b\n1,2\n", b"\n\n"],
)
def test_an_alien_file_is_one_clear_error(tmp_path, content):
    path = tmp_path / "profile_export.jsonl"
    path.write_bytes(content)
    with pytest.raises(TraceError, match="no benchmark export that efaprof knows") as error:
        read_arm([path])
    assert error.value.exit_code == 3


def test_a_folder_without_exports_is_nothing_to_analyse(tmp_path):
    (tmp_path / "other.json").write_text("[]")
    with pytest.raises(NothingToAnalyse, match="1 other files"):
        read_arm([tmp_path])


def test_a_path_that_is_not_there_is_a_usage_error(tmp_path):
    with pytest.raises(UsageError, match="does not exist"):
        read_arm([tmp_path / "nothing"])
