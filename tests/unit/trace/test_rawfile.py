"""Raw files that are whole, cut, damaged or none at all."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from efaprof.errors import TraceError
from efaprof.trace import layout, reader
from efaprof.trace.rawfile import chunks, open_raw
from efaprof.trace.synth import Cqe, SynthRun
from efaprof.trace.traffic import open_endpoint

EP, CQ = 0x1000, 0x2000


@pytest.fixture(scope="module")
def small_run(tmp_path_factory):
    """A run of one file with every table-making kind of record in it."""
    synth = SynthRun(tmp_path_factory.mktemp("small") / "run")
    ring = synth.ring()
    open_endpoint(ring, EP, CQ)
    ring.thread(101, "worker", 10)
    for i in range(4):
        ring.op("rma.write", 100 + 10 * i, 105 + 10 * i, ep=EP, ctx=0x40 * i, fi_addr=0, len=8, flags=1 << 24)
    ring.cq(CQ, 140, 150, [Cqe(0x40 * i, flags=1 << 9) for i in range(4)])
    ring.counter("nic.eth0.tx_bytes", 160, 32)
    ring.span("step", 90, 170)
    return synth.finish()


def write_header(path, **fields):
    data = bytearray(path.read_bytes())
    header = np.frombuffer(data, layout.HEADER, 1)
    for name, value in fields.items():
        header[name] = value
    path.write_bytes(bytes(data))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"magic": 0x1234}, "not a raw trace file"),
        ({"version": 99}, "is trace format 99, this efaprof reads 0-1"),
        ({"slot_bytes": 64}, "slots of 64 bytes"),
        ({"clock": 9}, "unknown clock"),
    ],
)
def test_an_unusable_header_names_the_file_and_what_is_wrong(synth, fields, message):
    path = synth.ring().path
    synth.finish()
    write_header(path, **fields)
    with pytest.raises(TraceError, match=message) as error:
        open_raw(path)
    assert str(path) in error.value.message
    assert error.value.hint
    assert error.value.exit_code == 3


def test_a_file_cut_inside_its_header_is_refused(synth):
    path = synth.ring().path
    path.write_bytes(path.read_bytes()[:1000])
    with pytest.raises(TraceError, match=r"cut inside its header \(1000 bytes\)"):
        open_raw(path)


def test_a_file_that_is_not_there_is_a_trace_error(tmp_path):
    with pytest.raises(TraceError, match="No such file"):
        open_raw(tmp_path / "gone.efr")


def test_slots_before_first_are_not_read_and_are_counted(synth, tables):
    ring = synth.ring()
    for i in range(10):
        ring.counter("nic.a.tx_bytes", 100 + i, i)
    synth.finish()
    skipped = 2 + 4  # the name, and the first four values
    data = bytearray(ring.path.read_bytes())
    data[layout.HEADER_BYTES : layout.HEADER_BYTES + 32 * skipped] = bytes(32 * skipped)
    ring.path.write_bytes(bytes(data))
    ring.header["first"] = skipped
    write_header(ring.path, first=skipped)
    read = reader.open_tables(synth_run(synth))
    assert read.counters.collect()["value"].to_list() == [4, 5, 6, 7, 8, 9]
    assert read.facts.losses.discarded_slots == skipped
    assert read.facts.losses.bad_slots == 0


def synth_run(synth):
    from efaprof.trace.rundir import open_run

    return open_run(synth.path)


def test_records_are_the_same_in_chunks_of_any_size(small_run):
    raw = open_raw(small_run.raw_files[0])

    def read(size):
        return [
            (chunk.base + int(start), int(kind))
            for chunk in chunks(raw, size)
            for start, kind in zip(chunk.starts, chunk.kinds, strict=True)
        ]

    whole = read(1 << 16)
    assert len(whole) > 15
    for size in range(6, 40):
        assert read(size) == whole


def test_a_file_cut_anywhere_gives_the_whole_records_before_the_cut(small_run, tmp_path):
    source = small_run.raw_files[0]
    data = source.read_bytes()
    whole = open_raw(source)
    ends = record_ends(whole)
    target = tmp_path / source.name
    for size in range(layout.HEADER_BYTES, len(data) + 1):
        target.write_bytes(data[:size])
        raw = open_raw(target)
        read = list(chunks(raw, 1 << 16))
        records = sum(len(chunk.starts) for chunk in read)
        bad = sum(chunk.bad_slots for chunk in read)
        slots = (size - layout.HEADER_BYTES) // 32
        expected = sum(end <= slots for end in ends)
        assert records == expected
        last = max([end for end in ends if end <= slots], default=0)
        assert bad == slots - last, "slots of a record that is not whole are counted"
        assert raw.cut_bytes == len(data) - size


def record_ends(raw):
    (chunk,) = chunks(raw, 1 << 16)
    return [*(int(start) for start in chunk.starts[1:]), raw.slots]


def test_every_cut_of_a_run_makes_tables_and_says_what_is_missing(small_run, tmp_path):
    data = small_run.raw_files[0].read_bytes()
    synth = SynthRun(tmp_path / "cut")
    path = synth.ring().path
    run = synth.finish()
    for size in range(layout.HEADER_BYTES, len(data), 32):
        path.write_bytes(data[:size])
        tables = reader.open_tables(run)
        assert not tables.facts.losses.is_lossless
        assert any("missing" in warning for warning in tables.facts.warnings())


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_flipped_bits_never_crash_the_reader(small_run, tmp_path_factory, data):
    original = small_run.raw_files[0].read_bytes()
    damaged = bytearray(original)
    flips = data.draw(st.lists(st.tuples(st.integers(0, len(original) - 1), st.integers(0, 7)), min_size=1, max_size=8))
    for at, bit in flips:
        damaged[at] ^= 1 << bit
    synth = SynthRun(tmp_path_factory.mktemp("flip") / "run")
    path = synth.ring().path
    run = synth.finish()
    path.write_bytes(bytes(damaged))
    try:
        tables = reader.open_tables(run)
    except TraceError as error:
        assert error.hint
        return
    frame = tables.ops.collect()
    assert frame.height == tables.facts.records.get("op", 0) or tables.facts.losses.bad_slots
    assert frame["post_ns"].is_sorted()


def test_a_record_thrown_far_away_in_time_is_damage_and_does_not_move_the_others(synth, tables):
    ring = synth.ring()
    open_endpoint(ring, EP, CQ)
    for i in range(5):
        ring.op("rma.write", 100 + 10 * i, 105 + 10 * i, ep=EP, ctx=0x40 * i)
    run = synth.finish()
    raw = open_raw(ring.path)
    (chunk,) = chunks(raw, 1 << 16)
    third = int(chunk.starts[chunk.kinds >> 8 == layout.Shape.OP][2])
    data = bytearray(ring.path.read_bytes())
    data[layout.HEADER_BYTES + 32 * third + 6] ^= 0x10  # bit 52 of t_end
    ring.path.write_bytes(bytes(data))
    read = reader.open_tables(run)
    assert read.ops.collect()["post_ns"].to_list() == [100, 110, 130, 140]
    assert read.facts.losses.bad_slots == 2


def test_an_unusable_file_among_others_is_named_and_the_others_are_read(synth):
    good, broken = synth.ring(), synth.ring(tid=2)
    good.counter("a", 5, 1)
    run = synth.finish()
    write_header(broken.path, magic=1)
    tables = reader.open_tables(run)
    assert tables.counters.collect().height == 1
    assert tables.facts.losses.unusable_files == 1
    assert any(str(broken.path) in warning for warning in tables.facts.warnings())


def test_when_no_file_is_usable_the_error_of_one_is_raised(synth):
    ring = synth.ring()
    run = synth.finish()
    write_header(ring.path, version=7)
    with pytest.raises(TraceError, match="format 7"):
        reader.open_tables(run)
