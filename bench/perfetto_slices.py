"""Perfetto slices written per second: ours beside the official Python builder on the same input, one table.

    python bench/perfetto_slices.py [SLICES] [--large SLICES]

Each line runs in a process of its own; memory is the peak above what stood before writing. Ratios are to the official
streaming builder with the same arguments, in the same run.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import IO, TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

    from efaprof.export.timeline import Slices

TRACKS, NAMES, CHUNK = 64, 48, 200_000
DURATION_NS = 1500
REPEATS = 3
START_NS = 312_000_000_000_000


@dataclass(frozen=True)
class Case:
    """One line of the table."""

    writer: str
    arguments: int = 0
    flows: bool = False
    absent: bool = False  # every third argument is absent
    table: str = ""  # parquet file of operations, of a whole export

    @property
    def label(self) -> str:
        parts = [f"{self.arguments} argument{'s' * (self.arguments != 1)}" if self.arguments else "plain"]
        if self.flows:
            parts.append("flow")
        if self.absent:
            parts.append("a third absent")
        return ", ".join(parts)


SHAPES = ((0, False, False), (1, False, False), (3, False, False), (3, True, False), (3, True, True))
CASES = [
    *(Case("efaprof", *shape) for shape in SHAPES),
    *(Case(writer, *shape) for writer in ("official, streaming", "official, in memory") for shape in SHAPES[:4]),
]


def chunk_of(case: Case, first: int, count: int) -> Slices:
    from efaprof.export.timeline import Argument, Slices

    row = np.arange(first, first + count)
    absent = row % 3 == 0 if case.absent else None
    return Slices(
        track=(row % TRACKS + 1).astype(np.uint64),
        start_ns=START_NS + row // TRACKS * 2000,
        dur_ns=np.full(count, DURATION_NS),
        name=(row % NAMES).astype(np.uint32),
        names=tuple(f"operation {n}" for n in range(NAMES)),
        arguments=tuple(Argument(f"argument {n}", row * (n + 1), absent) for n in range(case.arguments)),
        flow=row.astype(np.uint64) + np.uint64(1 << 40) if case.flows else None,
    )


def write_ours(case: Case, slices: int, out: IO[bytes]) -> None:
    from efaprof.export.perfetto.tracks import ClockReading
    from efaprof.export.perfetto.writer import PerfettoWriter
    from efaprof.export.timeline import Track

    writer = PerfettoWriter(out, clocks=ClockReading(START_NS))
    for track in range(TRACKS):
        writer.track(Track(track + 1, f"track {track}"))
    for first in range(0, slices, CHUNK):
        writer.slices(chunk_of(case, first, min(CHUNK, slices - first)))


def write_official(case: Case, slices: int, out: IO[bytes]) -> None:
    """As the builder's own examples do: a packet for each begin and end, names interned, one sequence."""
    from perfetto.trace_builder.proto_builder import StreamingTraceProtoBuilder, TraceProtoBuilder

    is_streaming = case.writer.endswith("streaming")
    builder = StreamingTraceProtoBuilder(out) if is_streaming else TraceProtoBuilder()
    new: Callable[[], object] = builder.create_packet if is_streaming else builder.add_packet
    done = builder.write_packet if is_streaming else lambda _: None
    for track in range(TRACKS):
        packet = new()
        packet.track_descriptor.uuid, packet.track_descriptor.name = track + 1, f"track {track}"
        done(packet)
    packet = new()
    packet.trusted_packet_sequence_id, packet.sequence_flags = 1, 3
    for number in range(NAMES):
        name = packet.interned_data.event_names.add()
        name.iid, name.name = number + 1, f"operation {number}"
    for number in range(case.arguments):
        name = packet.interned_data.debug_annotation_names.add()
        name.iid, name.name = number + 1, f"argument {number}"
    done(packet)
    for first in range(0, slices, CHUNK):
        chunk = chunk_of(case, first, min(CHUNK, slices - first))
        columns = [chunk.track, chunk.start_ns, chunk.dur_ns, chunk.name]
        values = [argument.values.tolist() for argument in chunk.arguments]
        flows = chunk.flow.tolist() if chunk.flow is not None else None
        for row, (track, start, duration, name) in enumerate(
            zip(*(column.tolist() for column in columns), strict=True)
        ):
            packet = new()
            packet.timestamp, packet.trusted_packet_sequence_id, packet.sequence_flags = start, 1, 2
            event = packet.track_event
            event.type, event.track_uuid, event.name_iid = 1, track, name + 1
            for number, column in enumerate(values):
                annotation = event.debug_annotations.add()
                annotation.name_iid, annotation.uint_value = number + 1, column[row]
            if flows is not None:
                event.flow_ids.append(flows[row])
            done(packet)
            packet = new()
            packet.timestamp, packet.trusted_packet_sequence_id = start + duration, 1
            packet.track_event.type, packet.track_event.track_uuid = 2, track
            done(packet)
    if not is_streaming:
        out.write(builder.serialize())


def prepared(case: Case, slices: int) -> Callable[[IO[bytes]], None]:
    """What is timed; imports, templates and input tables are there before."""
    if case.writer == "efaprof export":
        sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
        import polars as pl
        from run_samples import run_tables

        from efaprof.export.draw import draw
        from efaprof.export.perfetto.writer import PerfettoWriter

        tables = replace(run_tables(), ops=pl.scan_parquet(case.table))
        return lambda out: draw(tables, PerfettoWriter(out, clocks=tables.clocks)) and None
    write = write_ours if case.writer == "efaprof" else write_official
    with tempfile.TemporaryFile() as out:
        write(case, 1000, out)
    return lambda out: write(case, slices, out)


def measure_here(case: Case, slices: int) -> None:
    """Run one case in this process and print its figures."""
    write = prepared(case, slices)
    with tempfile.TemporaryFile() as out:
        before_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        started = time.perf_counter()
        write(out)
        seconds = time.perf_counter() - started
        out.flush()
        size = os.fstat(out.fileno()).st_size
    peak_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(json.dumps({"seconds": seconds, "rss_mb": (peak_kb - before_kb) / 1024, "bytes": size}))


def in_own_process(option: str, value: str, slices: int) -> str:
    """What this script prints when called with that option."""
    command = [sys.executable, __file__, option, value, str(slices)]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


def measure(jobs: list[tuple[Case, int]]) -> list[dict[str, float]]:
    """Figures of each job: the fastest of some runs, which take turns so that a busy minute hits all alike."""
    runs = [
        [json.loads(in_own_process("--one", json.dumps(asdict(case)), slices)) for case, slices in jobs]
        for _ in range(REPEATS)
    ]
    return [min(column, key=lambda figures: figures["seconds"]) for column in zip(*runs, strict=True)]


def make_table(path: str, slices: int) -> None:
    """Operations that become this many slices, as the reader keeps them."""
    sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
    from run_samples import steady_ops

    steady_ops(slices // 2).write_parquet(path, row_group_size=1 << 18)


def cpu_model() -> str:
    """Name of the processor, as the kernel has it."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("slices", type=int, nargs="?", default=200_000)
    parser.add_argument("--large", type=int, default=5_000_000, help="slices of the last lines (memory must stay flat)")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    parser.add_argument("--make", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        measure_here(Case(**json.loads(options.one)), options.slices)
    elif options.make:
        make_table(options.make, options.slices)
    else:
        print_table(options.slices, options.large)


def print_table(slices: int, large: int) -> None:
    """Measure everything and print it."""
    print(f"{cpu_model()}, {os.cpu_count()} cores; Python {platform.python_version()}, numpy {np.__version__}")
    with tempfile.TemporaryDirectory() as folder:
        table = f"{folder}/ops.parquet"
        in_own_process("--make", table, large)
        jobs = [(case, slices) for case in CASES]
        jobs += [(Case("efaprof"), large), (Case("efaprof", 3, flows=True), large)]
        jobs += [(Case("efaprof export", 5, flows=True, table=table), large)]
        results = measure(jobs)
    seconds = {job: figures["seconds"] for job, figures in zip(jobs, results, strict=True)}
    print(f"{'writer':20} {'slices of':34} {'slices':>10} {'M/s':>7} {'ratio':>7} {'peak MB':>8} {'B/slice':>8}")
    for (case, count), figures in zip(jobs, results, strict=True):
        beside = seconds.get((replace(case, writer="official, streaming"), count))
        ratio = f"{beside / figures['seconds']:.1f}" if beside else "-"
        print(
            f"{case.writer:20} {case.label:34} {count:10,} {count / figures['seconds'] / 1e6:7.2f} {ratio:>7}"
            f" {figures['rss_mb']:8.1f} {figures['bytes'] / count:8.1f}"
        )


if __name__ == "__main__":
    main()
