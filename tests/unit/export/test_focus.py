"""Showing the longest decode step: which one, and what the UI is told."""

from __future__ import annotations

import json
from contextlib import ExitStack
from urllib.parse import parse_qs, urlsplit

import pytest
from synth_runs import traffic_run
from trace_processor import load

from efaprof.errors import NothingToAnalyse, UsageError
from efaprof.export import focus, request, view
from efaprof.export.focus import Focus, worst_step
from efaprof.export.serve import TraceServer
from efaprof.trace.layout import AnnotatedStep
from efaprof.trace.steady import Steady, write_steady
from efaprof.trace.synth import SynthRun
from efaprof.trace.widerow import DispatchChunk

STEADY = Steady(steps=40, commands=4, ranks=2)


@pytest.fixture
def run(tmp_path):
    return write_steady(tmp_path / "efaprof-steady", STEADY)


def test_the_longest_decode_step_of_any_rank_and_chunk_is_found(run, monkeypatch):
    chunks = list(focus.dispatch.chunks(focus.survey(run.raw_files), chunk_ops=80))
    assert len(chunks) > 2
    slow = chunks[1].steps.to_dicts()
    slow[3]["end_ns"] += 777  # longer than all others …
    slow[4] |= {"kind": "warm-up", "end_ns": slow[4]["end_ns"] + 999}  # … but for one that is no decode step
    steps = chunks[1].steps.clear().vstack(type(chunks[1].steps)(slow, schema=chunks[1].steps.schema))
    chunks[1] = DispatchChunk(steps, chunks[1].operations, chunks[1].waits, chunks[1].computes)
    monkeypatch.setattr(focus.dispatch, "chunks", lambda _survey: iter(chunks))
    found = worst_step(run)
    assert (found.step, found.rank, found.dur_ns) == (slow[3]["step"], slow[3]["rank"], STEADY.wall_ns + 777)
    assert found.ranks == 2


def test_a_run_without_steps_has_none(tmp_path):
    with pytest.raises(NothingToAnalyse, match="no marked decode steps"):
        worst_step(traffic_run(tmp_path / "efaprof-a"))


def test_steps_that_the_program_names_are_looked_at_where_none_are_marked(tmp_path):
    synth = SynthRun(tmp_path / "efaprof-a")
    ring = synth.ring()
    for begin, end, kind in ((100, 190, AnnotatedStep.DECODE), (200, 900, AnnotatedStep.PREFILL), (1000, 1150, None)):
        ring.step(begin, end, kind=kind or AnnotatedStep.UNSAID)
    ring.step(1200, 1250)
    found = worst_step(synth.finish())
    assert found == Focus(2, 0, 1000, 1200, 1, has_split=False)
    assert found.commands == []  # nothing on record that could be split


def test_a_file_has_no_worst_step(tmp_path):
    (tmp_path / "x.pftrace").write_bytes(b"")
    with ExitStack() as stack, pytest.raises(UsageError, match="needs one"):
        view.viewing_of(tmp_path / "x.pftrace", stack, print, is_worst_step=True)


def test_the_url_zooms_to_the_step_and_its_commands_say_what_it_is_made_of(run):
    said = []
    with ExitStack() as stack:
        viewing = view.viewing_of(run.path, stack, said.append, is_worst_step=True)
        assert viewing.focus is not None
        server = stack.enter_context(TraceServer(view.service_of(viewing, is_local=False), port=0))
        told = parse_qs(urlsplit(view.page_url(viewing, server, is_local=False)).fragment.partition("?")[2])
        engine = stack.enter_context(load(viewing.file))
        step = viewing.focus
        assert "the longest decode step is" in said[0]
        assert int(told["visStart"][0]) < int(told["ts"][0]) == step.begin_ns
        assert int(told["visEnd"][0]) > step.end_ns
        assert int(told["dur"][0]) == STEADY.wall_ns
        commands = json.loads(told["startupCommands"][0])
        assert [one["id"].rpartition(".")[2] for one in commands] == [
            "ExpandTracksByRegex", "PinTracksByRegex", "RunQuery", "RunQueryAndShowTab",
        ]  # fmt: skip
        engine.query(commands[2]["args"][0])
        rows = engine.rows(commands[3]["args"][0].rstrip(";"))
    assert sum(row["us"] for row in rows if row["rank"] == step.rank) == pytest.approx(STEADY.wall_ns / 1e3)


def test_of_a_large_run_only_what_lies_around_the_step_is_exported(run, monkeypatch):
    monkeypatch.setattr(request, "MANY_SLICES", 100)
    with ExitStack() as stack:
        viewing = view.viewing_of(run.path, stack, lambda _line: None, is_worst_step=True)
        assert viewing.focus is not None
        assert viewing.file.parent != run.path
        with load(viewing.file) as engine:
            shown = engine.rows(
                "select extract_arg(arg_set_id, 'debug.step') as step from slice where name = 'decode step'"
            )
    steps = {row["step"] for row in shown}
    assert viewing.focus.step in steps
    assert 5 <= len(steps) <= 13
    assert not viewing.file.exists()


def test_many_ranks_are_not_pinned():
    names = [one["id"].rpartition(".")[2] for one in Focus(1, 2, 0, 10, 16).commands]
    assert "PinTracksByRegex" not in names
