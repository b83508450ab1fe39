"""What a kernel that posts by itself stamps becomes the records of the CPU's poster (tests/native/gpu_posts.cpp)."""

from __future__ import annotations

import os
import subprocess

import pytest
from dispatch_runs import begin, drain
from raw_files import of, read_raw

from efaprof.trace.layout import Shape, Stage

PARTS = ("order", "slot", "space", "build", "turn", "fence", "doorbell")


def ticks(ns):
    """The program's clock: 2 ticks a ns of the GPU's, from (10000 ns, 21000 ticks)."""
    return 21000 + 2 * (ns - 10000)


@pytest.fixture(scope="module")
def records(build_dir, tmp_path_factory):
    program = build_dir / "bin" / "gpu_posts"
    if not program.is_file():
        pytest.skip(f"{program} is missing: make native")
    folder = tmp_path_factory.mktemp("posts")
    (folder / "rings").mkdir(mode=0o700)
    subprocess.run([program], env=os.environ | {"EFAPROF_RING_DIR": str(folder / "rings")}, check=True, timeout=60)
    (file,) = drain(folder)
    return read_raw(file)


def test_each_operation_is_written_once_with_parts_that_abut(records):
    posts = of(records, Shape.POST)
    assert (posts["op"] & 0xFFFFFFFF).tolist() == list(range(10))
    assert begin(posts).tolist() == [ticks(10000 + 100 * number) for number in range(10)]
    for number, part in enumerate(PARTS):
        assert (posts[part] == 2 * (number + 1)).all(), part
    assert (posts["dur"] == sum(2 * (number + 1) for number in range(7))).all()
    assert (posts["batch"] == 5).all()
    assert posts["depth"].tolist() == [0, 1, 2, 2, 3, 3, 3, 3, 4, 4]


def test_ends_follow_once_they_were_seen_from_the_doorbell_on(records):
    stages = of(records, Shape.STAGE)
    ends = stages[(stages["kind"] & 0xFF) == Stage.NIC]
    assert (ends["op"] & 0xFFFFFFFF).tolist() == list(range(10))
    assert begin(ends).tolist() == [ticks(10028 + 100 * number) for number in range(10)]
    assert ends["t_end"][:4].tolist() == [ticks(ns) for ns in (12000, 13000, 14000, 12003)]


def test_arrivals_keep_when_they_were_seen_and_why_they_waited(records):
    arrivals = of(records, Shape.RX)
    assert arrivals["x"].tolist() == [0, 1, 2]  # the second was held, the third is a signal
    assert begin(arrivals).tolist() == [ticks(ns) for ns in (12000, 11960, 12100)]
    assert arrivals["t_end"].tolist() == [ticks(ns) for ns in (12007, 12007, 12109)]
    assert (arrivals["src"].tolist(), arrivals["channel"].tolist()) == ([0] * 3, [1] * 3)
