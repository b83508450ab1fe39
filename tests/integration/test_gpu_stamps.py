"""What a GPU's kernels stamp becomes marks, gates and computing of the common format (tests/native/gpu_stamps.cpp)."""

from __future__ import annotations

import os
import subprocess

import numpy as np
import pytest
from dispatch_runs import begin, drain
from raw_files import of, read_raw

from efaprof.trace.layout import Phase, Shape, Stage

BASE = 0xFFFFFFFF - 3
STEP = 2  # two calls stand before it


def ticks(ns):
    """The program's clock: 2 ticks a ns of the GPU's, from (10000 ns, 21000 ticks)."""
    return 21000 + 2 * (np.asarray(ns) - 10000)


@pytest.fixture(scope="module")
def records(build_dir, tmp_path_factory):
    program = build_dir / "bin" / "gpu_stamps"
    if not program.is_file():
        pytest.skip(f"{program} is missing: make native")
    folder = tmp_path_factory.mktemp("stamps")
    (folder / "rings").mkdir(mode=0o700)
    environment = os.environ | {"EFAPROF_RING_DIR": str(folder / "rings")}
    subprocess.run([program], env=environment, check=True, timeout=60)
    (file,) = drain(folder)
    return read_raw(file)


def test_marks_cut_the_step_into_layers_and_phases_with_whole_command_numbers(records):
    marks = of(records, Shape.MARK)
    first = [int.from_bytes(bytes(one), "little") for one in marks["first_seq"]]
    assert marks["phase"].tolist() == [
        Phase.STEP, *[Phase.COMPUTE, Phase.DISPATCH, Phase.COMPUTE, Phase.COMBINE, Phase.COMPUTE] * 2, Phase.STEP,
    ]  # fmt: skip
    assert marks["layer"].tolist() == [0] * 6 + [1] * 5 + [0]
    assert marks["step"].tolist() == [STEP] * 11 + [9]
    assert [at - BASE for at in first[2:]] == [0, 5, 5, 10, 10, 10, 15, 15, 20, 20]
    assert (marks["ring"] == 1).all()
    assert marks["t_end"][:3].tolist() == ticks([10100, 10100, 10650]).tolist()


def test_gates_are_let_go_by_what_was_ready_last(records):
    waits = of(records, Shape.WAIT)
    assert (waits["kind"] & 0xFF).tolist() == [3, 1, 3, 2, 1] * 2  # barrier, poll; barrier, flush, poll
    assert waits["polls"].tolist() == [7, 9, 1, 5, 3] * 2
    # Barriers by rank 2 on the barriers' channel, polls by rank 2 on its last channel, flushes by the own completion.
    assert waits["src"].tolist() == [2, 2, 2, 1, 2] * 2
    assert waits["channel"].tolist() == [2, 1, 2, 1, 1] * 2
    signals = waits[(waits["kind"] & 0xFF) != 2]
    assert signals["seq"].tolist() == [10, 10, 20, 20, 30, 30, 40, 40]
    flushes = waits[(waits["kind"] & 0xFF) == 2]
    assert flushes["seq"].astype(np.int64).tolist() == [BASE + 7, BASE + 17]
    assert begin(waits)[0] == ticks(10660)
    assert waits["t_end"][0] == ticks(10750)


def test_computing_has_its_kinds_and_times(records):
    stages = of(records, Shape.STAGE)
    computes = stages[(stages["kind"] & 0xFF) == Stage.COMPUTE]
    assert computes["x"].tolist() == [1, 3, 4, 5] * 2  # stand-in, experts, reduce, verify
    assert computes["dur"].tolist() == [1000, 600, 160, 80] * 2
