from __future__ import annotations

import pytest

from efaprof.errors import TraceError, UsageError
from efaprof.ingest import lines
from efaprof.ingest.lines import Malformed, document, json_lines


class Watched:
    def __init__(self):
        self.total = self.done = 0

    def start(self, name, total_bytes):
        self.total += total_bytes

    def advance(self, done_bytes):
        self.done += done_bytes


def read(path, malformed=None):
    malformed = malformed or Malformed(path)
    return list(json_lines(path, malformed, Watched())), malformed


def test_bad_lines_are_named_and_the_rest_is_read(tmp_path):
    path = tmp_path / "records.jsonl"
    path.write_bytes(b'{"a": 1}\n{"a": \n\n\xff\xfe\n{"a": 2}\n{"a": 3')
    values, malformed = read(path)
    assert values == [(1, {"a": 1}), (5, {"a": 2})]
    assert malformed.count == 3
    assert [name.split(": ")[0] for name in malformed.named] == [f"{path}:2", f"{path}:4", f"{path}:6"]


def test_only_the_first_bad_lines_are_named(tmp_path):
    path = tmp_path / "records.jsonl"
    path.write_text("broken\n" * 40)
    malformed = Malformed(path)
    read(path, malformed)
    assert malformed.count == 40
    assert malformed.warning().endswith("and 35 more")


def test_an_endless_line_costs_bounded_memory(tmp_path, monkeypatch):
    monkeypatch.setattr(lines, "MAX_LINE_BYTES", 100)
    path = tmp_path / "records.jsonl"
    path.write_text('{"a": "' + "x" * 950 + '"}\n{"a": 2}\n')
    values, malformed = read(path)
    assert values == [(2, {"a": 2})]
    assert "longer than" in malformed.named[0]


def test_deep_nesting_is_a_bad_line(tmp_path):
    path = tmp_path / "records.jsonl"
    path.write_text("[" * 200_000 + "\n[1]\n")
    values, malformed = read(path)
    assert (values, malformed.count) == ([(2, [1])], 1)


def test_progress_reaches_the_size_of_the_file(tmp_path):
    path = tmp_path / "records.jsonl"
    path.write_text('{"a": 1}\n' * 200_000)
    watched = Watched()
    assert sum(1 for _ in json_lines(path, Malformed(path), watched)) == 200_000
    assert watched.done == watched.total == path.stat().st_size


def test_a_file_that_cannot_be_opened_is_named(tmp_path):
    with pytest.raises(UsageError, match="nothing"):
        read(tmp_path / "nothing.jsonl")


def test_a_document_that_is_no_json_or_too_large_is_refused(tmp_path, monkeypatch):
    path = tmp_path / "x.json"
    path.write_text("{")
    with pytest.raises(TraceError, match="not JSON"):
        document(path)
    monkeypatch.setattr(lines, "MAX_DOCUMENT_BYTES", 0)
    with pytest.raises(TraceError, match="one JSON document"):
        document(path)
