"""Raw records as text."""

from __future__ import annotations

import pytest
from operation_runs import every_outcome

from efaprof.errors import UsageError
from efaprof.report.dump_text import dump_lines, limited, shapes_named
from efaprof.trace import layout
from efaprof.trace.layout import RECORDS, Shape
from efaprof.trace.rawfile import open_raw
from efaprof.trace.synth import kind_of

ALL = shapes_named(())


def test_the_text_of_every_outcome_reads_as_its_golden(tmp_path, golden):
    raw = open_raw(every_outcome(tmp_path / "run").raw_files[0])
    golden("dump.txt", "\n".join(dump_lines(raw, ALL)) + "\n")


def test_every_shape_of_record_can_be_printed(synth_ring):
    for shape, dtype in RECORDS.items():
        if shape not in (Shape.NAME, Shape.CQ):
            synth_ring.put(dtype, kind_of(shape, 1), 10)
    synth_ring.flush()
    lines = list(dump_lines(open_raw(synth_ring.path), ALL))
    words = {line.split()[3] for line in lines[1:]}
    assert words == {shape.name.lower() for shape in RECORDS} - {"name", "cq"}


@pytest.fixture
def synth_ring(tmp_path):
    from efaprof.trace.synth import SynthRun

    return SynthRun(tmp_path / "run").ring()


def test_only_the_kinds_asked_for_are_printed_and_counted(tmp_path):
    raw = open_raw(every_outcome(tmp_path / "run").raw_files[0])
    lines = list(limited(dump_lines(raw, shapes_named(["op"])), 3))
    assert [line.split()[3] for line in lines[1:]] == ["op", "op", "op"]
    assert list(limited(dump_lines(raw, ALL), 0)) == lines[:1]


def test_an_unknown_kind_lists_the_known_ones():
    with pytest.raises(UsageError, match="--kind foo is no kind") as error:
        shapes_named(["foo"])
    assert "op, cq" in error.value.hint


def test_what_was_not_read_is_said_at_the_end(tmp_path):
    path = every_outcome(tmp_path / "run").raw_files[0]
    path.write_bytes(path.read_bytes()[: layout.HEADER_BYTES + 33])
    last = list(dump_lines(open_raw(path), ALL))[-1]
    assert last.startswith("# 1 damaged slots and ")
    assert last.endswith(" missing bytes were not read")


def test_entries_of_a_read_are_printed_with_it(tmp_path):
    raw = open_raw(every_outcome(tmp_path / "run").raw_files[0])
    reads = [line for line in dump_lines(raw, shapes_named(["cq"])) if " n=3 " in line]
    assert len(reads) == 1
    assert reads[0].count("[ctx=") == 3
    assert "err=113" in reads[0]
