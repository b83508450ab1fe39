"""Tables of whole runs: closed forms, a slow matcher, chunks of any size, what is kept and what is made again."""

from __future__ import annotations

import os
from collections import Counter

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from efaprof.errors import NothingToAnalyse, TraceError
from efaprof.trace import fabric as fi
from efaprof.trace import layout, reader, schema
from efaprof.trace.layout import Shape
from efaprof.trace.synth import TSC_2100, Cqe, SynthRun, kind_of
from efaprof.trace.traffic import Traffic, open_endpoint, write_traffic

EP, CQ = 0x1000, 0x2000


def traffic_run(path, traffic, *, rings=1, clock=TSC_2100):
    synth = SynthRun(path, clock=clock)
    for number in range(rings):
        ring = synth.ring(tid=100 + number)
        open_endpoint(ring, EP + 0x10 * number, CQ + 0x10 * number)
        write_traffic(ring, traffic, ep=EP + 0x10 * number, cq=CQ + 0x10 * number)
    parent = synth.ring(pid=9, producer="parent")
    for at in range(0, traffic.end_ns + 100_000_000, 100_000_000):
        parent.clock_sample(at, realtime_ns=at + 7)
    return synth.finish()


@pytest.mark.parametrize("lag", [0, 2])
def test_sums_of_steady_traffic_are_those_of_its_closed_form(tmp_path, lag):
    traffic = Traffic(batches=200, lag=lag)
    tables = reader.open_tables(traffic_run(tmp_path / "run", traffic, rings=2))
    found = tables.ops.select(
        count=pl.len(),
        bytes=pl.col("bytes").cast(pl.Int64).sum(),
        libfabric=(pl.col("return_ns") - pl.col("post_ns")).sum(),
        nic=(pl.col("done_ns") - pl.col("doorbell_ns")).sum(),
        in_flight=(pl.col("match") == "in-flight").sum(),
        exact=(pl.col("match") == "exact").sum(),
    ).collect().to_dicts()[0]  # fmt: skip
    open_ops = traffic.operations - traffic.completed
    # A tick is 0.48 ns: each of the two ends of a duration is right to one nanosecond.
    assert abs(found["libfabric"] - 2 * traffic.libfabric_sum_ns) <= 2 * traffic.operations
    assert abs(found["nic"] - 2 * traffic.nic_sum_ns) <= 2 * traffic.operations
    assert (found["count"], found["bytes"]) == (2 * traffic.operations, 2 * traffic.operations * 4096)
    assert (found["exact"], found["in_flight"]) == (2 * traffic.completed, 2 * open_ops)
    assert tables.reads.select(pl.sum("empties")).collect().item() == 2 * 3 * (traffic.completed // 16)
    assert tables.arrivals.collect().height == 0


def test_more_operations_in_flight_than_contexts_are_first_in_first_out(tmp_path):
    traffic = Traffic(batches=100, batch=8, lag=3, contexts=8)
    ops = reader.open_tables(traffic_run(tmp_path / "run", traffic)).ops.collect()
    counted = Counter(ops["match"].to_list())
    assert counted == {"fifo": traffic.completed, "in-flight": 24}
    summed = (ops["done_ns"] - ops["doorbell_ns"]).sum()
    assert abs(summed - traffic.nic_sum_ns) <= traffic.operations


def test_the_table_is_in_order_of_posts_and_has_the_schema(tmp_path):
    tables = reader.open_tables(traffic_run(tmp_path / "run", Traffic(batches=300), rings=3))
    ops = tables.ops.collect()
    assert dict(ops.schema) == schema.OPS
    assert ops["post_ns"].is_sorted()
    assert ops["op"].to_list() == list(range(ops.height))
    for name, expected in (("arrivals", schema.ARRIVALS), ("reads", schema.READS), ("counters", schema.COUNTERS)):
        assert dict(getattr(tables, name).collect_schema()) == expected
    assert dict(tables.objects.schema) == schema.OBJECTS
    assert dict(tables.threads.schema) == schema.THREADS
    assert dict(tables.processes.schema) == schema.PROCESSES


def test_memory_for_one_part_of_each_ring_gives_the_same_table(tmp_path):
    run = traffic_run(tmp_path / "run", Traffic(batches=120, lag=4), rings=3)
    whole = reader.open_tables(run).ops.collect()
    for part_slots in (65, 200, 1024):
        assert reader.open_tables(run, part_slots=part_slots).ops.collect().equals(whole)


@st.composite
def programs(draw):
    """Calls and reads of up to three threads; every instant is used once, calls of a thread do not overlap."""
    threads = draw(st.integers(1, 3))
    free = [0] * threads
    now, events = 0, []
    for _ in range(draw(st.integers(1, 120))):
        now += 2
        thread = draw(st.integers(0, threads - 1))
        begin = max(now, free[thread]) // 2 * 2 + 2
        end = begin + 1 + 2 * draw(st.integers(0, 30))
        now, free[thread] = max(now, begin if draw(st.booleans()) else now), end
        context, is_rx = draw(st.integers(0, 3)), draw(st.booleans())
        kind = draw(st.sampled_from(["post", "post", "read"]))
        entries = draw(st.integers(1, 3)) if kind == "read" else 0
        found = [(draw(st.integers(0, 3)), draw(st.booleans())) for _ in range(entries)]
        events.append((kind, thread, begin, end, context, is_rx, found))
    return threads, events


def slow_matcher(events):
    """Done time and exactness of each post, taking one event at a time; and how many completions found no post."""
    moments = []
    for at, (kind, thread, begin, end, context, is_rx, entries) in enumerate(events):
        if kind == "post":
            moments.append((begin, 0, thread, at, (is_rx, context), None))
        for number, (entry_context, entry_rx) in enumerate(entries):
            moments.append((end, 1, thread, number, (entry_rx, entry_context), end))
    queues, lonely, done, orphans = {}, {}, {}, 0
    for _, _, _, at, key, end in sorted(moments, key=lambda m: m[:4]):
        queue = queues.setdefault(key, [])
        if end is None:
            queue.append(at)
            for post in queue if len(queue) > 1 else ():
                lonely[post] = False
            lonely.setdefault(at, True)
        elif queue:
            post = queue.pop(0)
            done[post] = (end, "exact" if lonely[post] else "fifo")
        else:
            orphans += 1
    return done, orphans


@settings(max_examples=40, deadline=None)
@given(program=programs(), part_slots=st.sampled_from([65, 90, 4096]))
def test_random_programs_are_paired_as_by_a_slow_matcher(tmp_path_factory, program, part_slots):
    threads, events = program
    synth = SynthRun(tmp_path_factory.mktemp("random") / "run")
    rings = [synth.ring(tid=100 + number) for number in range(threads)]
    open_endpoint(rings[0], EP, CQ)
    for kind, thread, begin, end, context, is_rx, entries in sorted(events, key=lambda event: event[3]):
        if kind == "post":
            rings[thread].op("msg.recv" if is_rx else "msg.send", begin, end, ep=EP, ctx=context, len=1)
        else:
            found = [Cqe(c, fi.FI_RECV if rx else fi.FI_SEND) for c, rx in entries]
            rings[thread].cq(CQ, begin, end, found)
    tables = reader.open_tables(synth.finish(), part_slots=part_slots)
    done, orphans = slow_matcher(events)
    posts = sorted((event[2], event[1], at) for at, event in enumerate(events) if event[0] == "post")
    rows = tables.ops.collect().to_dicts()
    assert len(rows) == len(posts)
    by_post = {(row["post_ns"], row["thread"]): row for row in rows}
    for begin, thread, at in posts:
        row = by_post[begin, thread]
        if at in done:
            assert (row["done_ns"], row["match"]) == done[at]
        else:
            assert row["done_ns"] is None
            assert row["match"] in ("in-flight", "unexplained")
    assert tables.arrivals.collect().height == orphans
    assert_balance(tables, entries=sum(len(event[6]) for event in events))


def assert_balance(tables, *, entries):
    """Posts = completions + every other outcome, and completions read = paired + arrivals."""
    ops = tables.ops.collect()
    paired = ops.filter(pl.col("done_ns").is_not_null()).height
    others = ops.filter(pl.col("done_ns").is_null())
    assert paired + others.height == tables.facts.records.get("op", 0)
    assert set(others["match"].to_list()) <= {"expected-none", "in-flight", "cancelled", "failed-post", "unexplained"}
    assert paired + tables.arrivals.collect().height == entries


def test_threads_come_from_thread_records_and_processes_from_their_identity(synth, tables):
    ring = synth.ring(pid=5, tid=5, comm="main")
    open_endpoint(ring, EP, CQ)
    ring.op("msg.send", 10, 11, ep=EP)
    ring.thread(77, "worker", 20)
    ring.op("msg.send", 30, 31, ep=EP)
    synth.ring(pid=5, process_start=2).op("msg.send", 40, 41, ep=EP)  # the pid again, in another process
    read = tables()
    assert read.threads.select("process", "tid", "comm").rows() == [(0, 5, "main"), (0, 77, "worker"), (1, 5, "main")]
    assert read.ops.collect().select("process", "thread").rows() == [(0, 0), (0, 1), (1, 2)]


def test_the_rank_of_the_run_is_that_of_its_program_not_of_the_recorder(synth):
    synth.ring(pid=5)
    synth.ring(pid=6, producer="parent")
    synth.rings[0].counter("a", 1, 1)
    tables = reader.open_tables(synth.finish(rank=3))
    assert tables.processes.select("pid", "rank").rows() == [(5, 3), (6, None)]


def test_counters_and_spans_carry_names_written_anywhere(synth, tables):
    first, second = synth.ring(), synth.ring(tid=2)
    found = first.name("late")
    second._names.add(found)
    second.counter("late", 50, 7, is_monotone=False)
    first.span("step", 10, 40, depth=2, is_step=True, payload=9)
    read = tables()
    assert read.counters.collect().select("name", "value", "is_monotone").rows() == [("late", 7, False)]
    (span,) = read.spans.collect().to_dicts()
    assert (span["name"], span["begin_ns"], span["end_ns"], span["is_step"]) == ("step", 10, 40, True)
    assert (span["depth"], span["payload"]) == (2, 9)


def test_time_is_monotonic_nanoseconds_and_its_offset_to_realtime_is_known(tmp_path):
    tables = reader.open_tables(traffic_run(tmp_path / "run", Traffic(batches=10)))
    assert tables.facts.realtime_offset_ns == 7
    assert abs(tables.ops.collect()["post_ns"][0] - 1_000_000) <= 1
    assert tables.facts.clock_error_ns == 20


def test_the_bound_of_a_gpus_clock_is_added_to_the_clock_error(synth):
    ring = synth.ring()
    name = ring.name("gpu.clock_error_ns")
    ring.put(layout.NOTE, kind_of(Shape.NOTE, 1), 1_000, name=name, value=1200)
    assert reader.open_tables(synth.finish()).facts.clock_error_ns == 1200


def test_ticks_without_clock_samples_cannot_be_read(tmp_path):
    synth = SynthRun(tmp_path / "run", clock=TSC_2100)
    synth.ring().counter("a", 1, 1)
    with pytest.raises(TraceError, match="0 clock samples"):
        reader.open_tables(synth.finish())


def test_a_run_without_raw_files_holds_nothing(synth):
    with pytest.raises(NothingToAnalyse, match="nothing was recorded"):
        reader.open_tables(synth.finish())


def test_tables_are_kept_and_made_again_only_when_a_raw_file_changed(synth, ring):
    ring.op("msg.send", 10, 11, ep=EP)
    run = synth.finish()
    reader.open_tables(run)
    made = (run.path / "ops.parquet").stat().st_mtime_ns
    reader.open_tables(run)
    assert (run.path / "ops.parquet").stat().st_mtime_ns == made
    ring.op("msg.send", 20, 21, ep=EP)
    ring.flush()
    assert reader.open_tables(run).ops.collect().height == 2


def test_a_missing_or_half_written_table_is_made_again(synth, ring):
    ring.op("msg.send", 10, 11, ep=EP)
    run = synth.finish()
    reader.open_tables(run)
    (run.path / "reads.parquet").unlink()
    assert reader.open_tables(run).reads.collect().height == 0
    (run.path / "tables.json").write_text("{")
    assert reader.open_tables(run).ops.collect().height == 1


def test_no_draft_stays_behind(synth, ring):
    ring.op("msg.send", 10, 11, ep=EP)
    run = synth.finish()
    reader.open_tables(run)
    assert [path.name for path in run.path.iterdir() if path.name.startswith(".")] == []


def test_where_nothing_can_be_written_tables_are_made_elsewhere(synth, ring, monkeypatch):
    ring.op("msg.send", 10, 11, ep=EP)
    run = synth.finish()
    monkeypatch.setattr(os, "access", lambda *_: False)
    tables = reader.open_tables(run)
    assert tables.ops.collect().height == 1
    assert tables.folder != run.path
    assert not (run.path / "ops.parquet").exists()
    folder = tables.folder
    del tables
    assert not folder.exists()


def test_strict_refuses_any_loss_and_says_which(synth):
    synth.ring(dropped=3).counter("a", 1, 1)
    run = synth.finish()
    assert reader.open_tables(run).facts.losses.dropped == 3
    with pytest.raises(TraceError, match="3 records could not be written"):
        reader.open_tables(run, is_strict=True)


def test_calls_that_take_seconds_do_not_disturb_the_order(synth):
    slow, quick = synth.ring(tid=1), synth.ring(tid=2)
    open_endpoint(slow, EP, CQ)
    second = 1_000_000_000
    for i in range(100):
        quick.op("msg.send", 10_000 + 1000 * i, 10_100 + 1000 * i, ep=EP, ctx=i)
    slow.op("msg.send", 50, 3 * second, ep=EP, ctx=1000, eagain=500)
    quick.op("msg.send", 4 * second, 4 * second + 1, ep=EP, ctx=2000)
    ops = reader.open_tables(synth.finish(), part_slots=65).ops.collect()
    assert ops["post_ns"].is_sorted()
    assert ops["context"][0] == 1000
    assert ops["eagain"][0] == 500


def test_a_table_comes_in_chunks_that_add_up(tmp_path, monkeypatch):
    monkeypatch.setattr(reader, "CHUNK_ROWS", 100)
    tables = reader.open_tables(traffic_run(tmp_path / "run", Traffic(batches=20)))
    chunks = list(tables.chunks("ops", ["op"]))
    assert [chunk.height for chunk in chunks] == [100, 100, 100, 20]
    assert np.array_equal(pl.concat(chunks)["op"].to_numpy(), np.arange(320))
