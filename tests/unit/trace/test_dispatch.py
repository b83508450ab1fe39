"""Wide rows of dispatch operations: every stage in its place, however the run is cut into chunks."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest

from efaprof.trace import dispatch, layout, schema
from efaprof.trace.layout import Shape, Stage
from efaprof.trace.marks import read_marks
from efaprof.trace.steady import Steady, write_steady
from efaprof.trace.survey import survey


def operations(run, **options):
    return pl.concat([chunk.operations for chunk in dispatch.chunks(survey(run.raw_files), **options)])


def drop_records(run, is_dropped):
    """Zero out is no record; so shift the rest up and cut the file."""
    for path in run.raw_files:
        raw = bytearray(path.read_bytes())
        header, slots = raw[: layout.HEADER_BYTES], np.frombuffer(bytes(raw[layout.HEADER_BYTES :]), layout.STAGE)
        kept = slots[~is_dropped(slots)]
        head = np.frombuffer(bytes(header), layout.HEADER).copy()
        head["head"] = head["tail"] = len(kept)
        path.write_bytes(head.tobytes() + kept.tobytes())


@pytest.mark.parametrize("chunk_ops", [1, 7, 100, 1 << 18])
def test_every_stamp_is_where_the_closed_form_puts_it(tmp_path, chunk_ops):
    steady = Steady(steps=30, commands=6, ranks=3)
    found = operations(write_steady(tmp_path / "run", steady), chunk_ops=chunk_ops).sort("rank", "seq")
    assert dict(found.schema) == schema.DISPATCH
    assert len(found) == steady.operations
    assert found.drop("fenced_ns").null_count().sum_horizontal().item() == 0
    begin = steady.start_ns + found["step"].cast(pl.Int64) * steady.wall_ns
    number = (found["seq"] % steady.commands).to_numpy()
    columns = {"enter": "enter_ns", "publish": "publish_ns", "seen": "seen_ns", "call": "call_ns",
               "return": "return_ns", "done": "done_ns", "signal": "signal_ns"}  # fmt: skip
    for stamp, column in columns.items():
        assert (found[column] - begin).to_numpy().tolist() == steady.times()[stamp][number].tolist(), column
    assert found["arrival_ns"].to_list() == found["done_ns"].to_list()
    assert found["wire_seq"].to_list() == found["seq"].to_list()


@pytest.mark.parametrize("chunk_ops", [1, 7, 1 << 18])
def test_rings_of_a_rank_stand_side_by_side_in_the_same_steps(tmp_path, chunk_ops):
    steady = Steady(steps=30, commands=6, ranks=3, proxies=2)
    run = write_steady(tmp_path / "run", steady)
    surveyed = survey(run.raw_files)
    rings = [(marks.ring, marks.rank, marks.is_first) for marks in read_marks(surveyed)]
    assert rings == [(256 * proxy + rank, rank, proxy == 0) for proxy in range(2) for rank in range(3)]
    chunks = list(dispatch.chunks(surveyed, chunk_ops=chunk_ops))
    for frames in ("steps", "waits", "computes"):
        assert sum(len(getattr(chunk, frames)) for chunk in chunks) == steady.steps * steady.ranks, frames
    found = pl.concat([chunk.operations for chunk in chunks]).sort("ring", "seq")
    assert len(found) == steady.operations
    assert found.drop("fenced_ns").null_count().sum_horizontal().item() == 0
    proxy = (found["ring"] // layout.RINGS_APART).to_numpy()
    assert (found["ring"] % layout.RINGS_APART == found["rank"]).all()
    assert found["channel"].to_list() == proxy.tolist()
    assert (found["seq"] // steady.of_ring == found["step"]).all()
    assert found["wire_seq"].to_list() == found["seq"].to_list()
    begin = steady.start_ns + found["step"].cast(pl.Int64) * steady.wall_ns
    number = (found["seq"] % steady.of_ring).to_numpy() * steady.proxies + proxy
    for stamp in ("publish", "seen", "return", "signal"):
        assert (found[f"{stamp}_ns"] - begin).to_numpy().tolist() == steady.times()[stamp][number].tolist(), stamp


def test_operations_stand_in_their_step_and_are_named(tmp_path):
    steady = Steady(steps=5, commands=4)
    found = operations(write_steady(tmp_path / "run", steady))
    assert (found["seq"] // steady.commands == found["step"]).all()
    assert found["phase"].unique().to_list() == ["dispatch"]
    assert found.filter(pl.col("kind") == "signal").height == steady.steps * steady.ranks
    assert found.filter(pl.col("rank") == 0)["peer"].unique().to_list() == [1]


def test_a_stage_that_was_lost_is_null_and_the_others_stay(tmp_path):
    steady = Steady(steps=20, commands=4)
    run = write_steady(tmp_path / "run", steady)

    def is_lost(slots):
        return ((slots["kind"] >> 8) == Shape.STAGE) & ((slots["kind"] & 0xFF) == Stage.LIBFABRIC) & (slots["op"] == 9)

    drop_records(run, is_lost)
    found = operations(run).filter(pl.col("rank") == 0)
    assert found["return_ns"].null_count() == 1
    assert found.filter(pl.col("return_ns").is_null())["seq"].to_list() == [9]
    assert found["call_ns"].null_count() == 0


def test_an_operation_that_never_completes_does_not_hold_its_step_back(tmp_path):
    steady = Steady(steps=50, commands=4)
    run = write_steady(tmp_path / "run", steady)
    drop_records(
        run,
        lambda slots: (
            ((slots["kind"] >> 8) == Shape.STAGE)
            & np.isin(slots["kind"] & 0xFF, [Stage.NIC, Stage.TOLD])
            & (slots["op"] == 11)
        ),
    )
    found = operations(run, chunk_ops=20)
    assert len(found) == steady.operations
    assert found["done_ns"].null_count() == 1


def test_steps_that_a_rank_did_not_finish_are_left_out(tmp_path):
    steady = Steady(steps=10, commands=4)
    run = write_steady(tmp_path / "run", steady)
    last = 10 + np.arange(1)
    drop_records(
        run,
        lambda slots: (
            ((slots["kind"] >> 8) == Shape.MARK)
            & np.isin(slots.view(layout.MARK)["step"], last)
            & (slots.view(layout.MARK)["ring"] == 1)
        ),
    )
    chunks = list(dispatch.chunks(survey(run.raw_files)))
    assert pl.concat([chunk.steps for chunk in chunks])["step"].max() == 8


def test_a_flipped_bit_in_a_mark_costs_no_more_than_its_step(tmp_path):
    steady = Steady(steps=20, commands=4)
    run = write_steady(tmp_path / "run", steady)
    lane = next(path for path in run.raw_files if ".100.100." in path.name)
    raw = bytearray(lane.read_bytes())
    marks = np.frombuffer(raw, layout.MARK, offset=layout.HEADER_BYTES)
    row = np.flatnonzero(((marks["kind"] >> 8) == Shape.MARK) & (marks["step"] == 7))[0]
    raw[layout.HEADER_BYTES + int(row) * layout.SLOT_BYTES + layout.MARK.fields["first_seq"][1] + 5] ^= 0x40
    lane.write_bytes(raw)
    found = operations(run)
    assert len(found) == steady.operations
    assert found.filter(pl.col("step") != 7).group_by("rank", "step").len()["len"].max() <= 2 * steady.commands


def tables(run, *, part_slots):
    chunks = list(dispatch.chunks(survey(run.raw_files, part_slots=part_slots), chunk_ops=64))
    names = ("steps", "operations", "waits", "computes")
    return {name: pl.concat([getattr(chunk, name) for chunk in chunks]) for name in names}


def test_parts_of_any_size_say_the_same(tmp_path):
    run = write_steady(tmp_path / "run", Steady(steps=40, commands=6, ranks=3))
    whole = tables(run, part_slots=1 << 16)
    assert len(whole["waits"]) == len(whole["computes"]) == 120
    for size in (1, 97, 1000):  # no part is smaller than the longest record
        cut = tables(run, part_slots=size)
        assert all(cut[name].equals(whole[name]) for name in whole), size


def test_damage_in_one_part_leaves_what_the_others_say(tmp_path):
    steady = Steady(steps=40, commands=6)
    run = write_steady(tmp_path / "run", steady)
    proxy = run.raw_files[2]
    raw = bytearray(proxy.read_bytes())
    slots = np.frombuffer(memoryview(raw)[layout.HEADER_BYTES :], layout.STAGE)
    which = np.flatnonzero((slots["kind"] == Shape.STAGE << 8 | Stage.PROXY) & (slots["op"] == 20))
    slots["t_end"][which] += 1 << 50  # a time that cannot be: the record is left out
    proxy.write_bytes(raw)
    surveyed = survey(run.raw_files, part_slots=100)
    assert surveyed.losses.bad_slots == 1
    found = tables(run, part_slots=100)["operations"].sort("rank", "seq")
    assert len(found) == steady.operations
    lacks = found.filter(pl.col("call_ns").is_null())
    assert lacks.select("rank", "seq").rows() == [(0, 20)]
    assert lacks["seen_ns"].null_count() == lacks["return_ns"].null_count() == 0
