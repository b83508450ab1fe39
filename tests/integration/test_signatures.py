"""Layers and steps from operations alone, against the marks of the same runs."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import jsonschema
import numpy as np
import polars as pl
import pytest
from raw_files import read_raw
from recording import efaprof

from efaprof import report
from efaprof.analyzers.signatures import segment
from efaprof.instrument.dispatch import DispatchOptions, SignalMode
from efaprof.trace import dispatch
from efaprof.trace.reader import open_tables
from efaprof.trace.rundir import open_run
from efaprof.trace.survey import survey

SCHEMA = json.loads((Path(report.__file__).parent / "schemas" / "efaprof.attribution.1.json").read_text())
LAYERS, STEPS, WARMUP = 3, 12, 2
OPTIONS = DispatchOptions(provider="shm", layers=LAYERS, hidden=64, steps=STEPS, warmup=WARMUP, compute_us=50)
VARIANTS = {
    "immediates": (),
    "fences": ("--signal", SignalMode.FENCE.value),
    "tcp": ("--provider", "tcp"),
    "three ranks": ("--ranks", "3", "--experts", "6", "--channels", "2"),
    "one token": ("--tokens", "1", "--topk", "1", "--channels", "1"),
}
PAUSE_NS = 5_000_000


def recorded(folder, *more):
    done = efaprof("bench", "dispatch", *OPTIONS.arguments(), *more, "-o", "run", cwd=folder)
    assert done.returncode == 0, done.stderr
    return folder / "run"


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return recorded(tmp_path_factory.mktemp("signatures"))


def marked(run):
    """Per rank, when each layer's first barrier was posted, and how many operations each layer has."""
    chunks = dispatch.chunks(survey(sorted((run / "raw").iterdir())))
    operations = pl.concat(chunk.operations for chunk in chunks).sort("rank", "seq")
    layers = operations.group_by("rank", "step", "layer", maintain_order=True).agg(pl.first("call_ns"), pl.len())
    return [own for _, own in layers.group_by("rank", maintain_order=True)]


def check_layers(found, marks):
    """Processes stand in another order than ranks do."""
    assert len(found.processes) == len(marks)
    for one in found.processes:
        own = min(marks, key=lambda layers: np.abs(layers["call_ns"].to_numpy() - one.begin_ns[:-1]).sum())
        assert one.layers == len(own) == LAYERS * (STEPS + WARMUP)
        assert one.writes.tolist() == own["len"].to_list()  # so each boundary lies at the same operation


@pytest.mark.parametrize("more", VARIANTS.values(), ids=VARIANTS)
def test_layers_begin_where_the_marks_say(more, tmp_path):
    run = recorded(tmp_path, *more)
    found = segment(open_tables(open_run(run)).ops)
    check_layers(found, marked(run))
    assert found.layers_per_step is None  # nothing in this traffic tells one step from the next


def evenly(run):
    """The run's writes in the order in which they were posted, on an even clock, and the rows that begin steps."""
    ops = open_tables(open_run(run)).ops.filter(pl.col("kind").cast(pl.String) == "rma.writedata").collect()
    found = segment(ops.lazy())
    ops = ops.sort("process", "post_ns").with_columns(row=pl.int_range(pl.len()).over("process"))
    begins = {
        one.process: np.cumsum([0, *one.writes[:-1]])[::LAYERS]  # rows; as the marks say, see above
        for one in found.processes
    }
    steps = [
        own.with_columns(step=pl.Series(np.searchsorted(begins[process], own["row"].to_numpy(), side="right") - 1))
        for (process,), own in ops.group_by("process", maintain_order=True)
    ]
    post = pl.col("row") * 1000 + pl.col("step") * PAUSE_NS
    return pl.concat(steps).with_columns(post_ns=post, return_ns=post + 500, done_ns=post + 3000)


def test_pauses_tell_as_many_steps_as_were_marked(run):
    found = segment(evenly(run).lazy())
    check = (found.layers_per_step, found.first, found.decode, found.unclassified)
    assert check == (LAYERS, 0, STEPS + WARMUP, 0)
    for one in found.processes:
        assert (np.diff(one.begin_ns[:-1:LAYERS]) >= PAUSE_NS).all()
    wall, libfabric, nic = found.step_ns
    assert wall == pytest.approx(LAYERS * found.layer_ns[0])
    writes = np.mean([one.writes.sum() for one in found.processes]) / (STEPS + WARMUP)
    assert libfabric == pytest.approx(500 * writes)
    assert 500 * writes < nic < 2500 * writes  # the next write is posted before this one is done


def test_a_step_with_much_more_data_is_no_decode_step(run):
    ops = evenly(run)
    data = ops.filter(pl.col("step") == 7, pl.col("bytes") > 64)
    found = segment(pl.concat([ops, *[data] * 8]).lazy())
    assert (found.decode, found.unclassified) == (STEPS + WARMUP - 1, 1)


def without_marks(run, to):
    """The run as a recording of libfabric alone."""
    shutil.copytree(run, to)
    for path in (to / "raw").iterdir():
        if read_raw(path).producer == "dispatch":
            path.unlink()
    for path in to.glob("*.parquet"):
        path.unlink()
    (to / "tables.json").unlink(missing_ok=True)
    return to


def test_a_run_of_libfabric_alone_is_reported_by_layers(run, tmp_path):
    bare = without_marks(run, tmp_path / "bare")
    done = efaprof("attribute", bare, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert f"layers  {LAYERS * (STEPS + WARMUP)} ○ a process, segmentation: signature" in done.stdout
    assert "steps unknown: no pause between layers repeats" in done.stdout
    document = json.loads(efaprof("attribute", bare, "--json", "-", cwd=tmp_path).stdout)
    jsonschema.validate(document, SCHEMA)
    found = document["segmentation"]
    assert found["layers"] == [LAYERS * (STEPS + WARMUP)] * 2
    assert 0 < found["layer"]["libfabric_us"] + found["layer"]["nic_us"] < found["layer"]["wall_us"]
    assert found["step"] is None
    assert document["steps"] == 0
