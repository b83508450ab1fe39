from __future__ import annotations

import pytest

from efaprof.trace.layout import AnnotatedStep, Clock, Payload, Source, Span
from efaprof.trace.synth import TSC_2100

SECOND = 1_000_000_000


def rows(tables, *columns):
    return tables().spans.collect().select(columns).rows()


def test_a_range_says_whose_it_is_and_what_it_carries(synth, tables):
    ring = synth.ring()
    ring.named_range("work", 10, 40, domain="lib", category=3, payload=9, payload_type=Payload.U32, flags=1, x=2)
    ring.named_range("here", 50, 50, what=Span.INSTANT)
    ring.span("old", 60, 70)
    found = rows(tables, "name", "begin_ns", "end_ns", "what", "source", "domain", "category", "payload_type", "depth")
    assert found == [
        ("work", 10, 40, "range", "nvtx", "lib", 3, Payload.U32, 2),
        ("here", 50, 50, "instant", "nvtx", None, 0, 0, 0),
        ("old", 60, 70, "range", "none", None, 0, 0, 0),
    ]
    assert rows(tables, "is_unordered", "payload", "correlation") == [(True, 9, 0), (False, 0, 0), (False, 0, 0)]


def test_a_step_carries_its_kind_tokens_and_sequences(synth, tables):
    ring = synth.ring()
    ring.step(100, 300, kind=AnnotatedStep.PREFILL, tokens=512, batch=4)
    found = rows(tables, "what", "begin_ns", "end_ns", "is_step", "category", "payload", "payload_type", "source")
    assert found == [
        ("step began", 100, 100, False, 0, 0, 0, "none"),
        ("step", 100, 300, True, AnnotatedStep.PREFILL, 4 << 32 | 512, Payload.STEP, "annotation"),
    ]


def test_a_range_keeps_its_begin_however_long_it_was(synth, tables):
    synth.clock = TSC_2100
    ring = synth.ring()
    ring.clock_sample(0)
    ring.clock_sample(100 * SECOND)
    ring.named_range("long", 7 * SECOND, 90 * SECOND)
    ((begin, end),) = rows(tables, "begin_ns", "end_ns")
    assert (begin, end) == (pytest.approx(7 * SECOND, abs=2), pytest.approx(90 * SECOND, abs=2))
    assert ring.header["clock"] == Clock.TSC


def test_kinds_and_sources_of_a_later_version_are_unknown(synth, tables):
    synth.ring().named_range("odd", 1, 2, what=99, source=Source.CUDA + 40)
    assert rows(tables, "what", "source") == [("unknown", "none")]
