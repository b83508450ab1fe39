"""What is said about the times of GPUs, in words and as JSON."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import pytest

from efaprof import report
from efaprof.analyzers.device_clock import Bounds, DeviceClock, Stretch
from efaprof.report.gpu_times import GpuTimes, times_document, times_error, times_lines, times_warnings

SCHEMAS = Path(report.__file__).parent / "schemas"
RIGHT, EARLY, LATE = Bounds(-7100, 5100), Bounds(2000, 2400), Bounds(-2400, -2000)
OPEN, APART = Bounds(-7100, None), Bounds(3000, -1000)


def times(bounds, device=0):
    return GpuTimes("rank0", 17, DeviceClock(0, device, 5276, 250, bounds, ()))


@pytest.mark.parametrize(
    ("bounds", "words"),
    [
        (RIGHT, "at most 7.10 µs late and 5.10 µs early (±6.10 µs)"),
        (EARLY, "early by 2.00 µs or more and 2.40 µs at most (±200 ns)"),
        (LATE, "late by 2.00 µs or more and 2.40 µs at most (±200 ns)"),
        (Bounds(2000, None), "early by 2.00 µs or more"),
        (OPEN, "at most 7.10 µs late, how early is not known: nothing was seen to wait for them"),
        (APART, "wandering by 4.00 µs or more against the host's"),
    ],
)
def test_bounds_are_said_in_a_sentence_with_what_they_come_from(bounds, words):
    assert times_lines([times(bounds)]) == (f"GPU 0 of rank0[17]: {words}, by 5 276 launches and 250 waits ○",)


def test_the_worst_is_said_first_and_the_rest_is_counted():
    many = [times(Bounds(-10 * number, 0), number) for number in range(9)]
    lines = times_lines([*many, times(OPEN, 9)])
    assert [line.split(" of ")[0] for line in lines] == [*(f"GPU {one}" for one in (9, 8, 7, 6, 5, 4, 3, 2)), "2 more"]


@pytest.mark.parametrize(
    ("found", "words"),
    [
        ([RIGHT, Bounds(-10, 10)], "±6.10 µs"),
        ([RIGHT, OPEN], "at most 7.10 µs late"),
        ([RIGHT, LATE, OPEN], "off by 2.00 µs or more"),
        ([LATE, APART], "wander by 4.00 µs or more"),
    ],
)
def test_the_worst_of_all_stands_for_them(found, words):
    assert times_error([times(one) for one in found]) == words


def test_times_that_cannot_be_as_they_are_told_are_warned_of():
    assert times_warnings([times(RIGHT), times(OPEN), times(EARLY), times(APART)]) == [
        "times of GPU 0 of rank0[17] are early by 2.00 µs or more and 2.40 µs at most (±200 ns)",
        "times of GPU 0 of rank0[17] are wandering by 4.00 µs or more against the host's",
    ]


@pytest.mark.parametrize("name", ["info", "attribution"])
def test_the_document_has_its_schema(name):
    schema = json.loads((SCHEMAS / f"efaprof.{name}.1.json").read_text())["properties"]["gpu_times"]
    clock = DeviceClock(0, 1, 3, 2, RIGHT, (Stretch(0, 5, OPEN), Stretch(5, 9, EARLY)))
    made = times_document([GpuTimes("rank0", 17, clock), times(APART), times(OPEN)])
    jsonschema.validate(made, schema)
    first, apart, one_sided = made
    assert (first["lowest_shift_ns"], first["highest_shift_ns"], first["error_ns"], first["off_ns"]) == (
        -7100, 5100, 6100, 0,
    )  # fmt: skip
    assert [part["off_ns"] for part in first["stretches"]] == [0, 2000]
    assert (apart["error_ns"], apart["wander_ns"], one_sided["highest_shift_ns"]) == (None, 4000, None)
