from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from efaprof.analyzers.steps import FoundBy, classified, find_steps
from efaprof.trace import reader
from efaprof.trace.layout import AnnotatedStep, Source, Span
from efaprof.trace.synth import SynthRun


@pytest.fixture
def synth(tmp_path):
    return SynthRun(tmp_path / "run")


def found(synth, pattern=None):
    return find_steps(reader.open_tables(synth.finish()).spans, pattern)


def only(synth, pattern=None):
    (steps,) = found(synth, pattern).processes
    return steps


def test_a_step_lasts_until_the_next_one_begins(synth):
    ring = synth.ring()
    for begin in (100, 200, 350):
        ring.step(begin, begin + 60, tokens=4, batch=2)
    steps = only(synth)
    assert steps.begin_ns.tolist() == [100, 200, 350]
    assert steps.end_ns.tolist() == [160, 260, 410]
    assert steps.until_ns.tolist() == [200, 350, 410]  # nothing says when the last one's successor began
    assert (steps.kind, steps.tokens, steps.batch) == (("decode",) * 3, (4,) * 3, (2,) * 3)


def test_a_step_that_only_began_ends_the_one_before_it(synth):
    ring = synth.ring()
    ring.step(100, 160)
    ring.put(*began(ring, 220))
    result = found(synth)
    (steps,) = result.processes
    assert (steps.until_ns.tolist(), result.unfinished) == ([220], 1)


def began(ring, at_ns):
    from efaprof.trace import layout
    from efaprof.trace.layout import Shape
    from efaprof.trace.synth import kind_of

    ring.name("step", at_ns)
    return layout.SPAN, kind_of(Shape.SPAN, Span.STEP_BEGAN), at_ns


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        (AnnotatedStep.UNSAID, None),
        (AnnotatedStep.DECODE, "decode"),
        (AnnotatedStep.PREFILL, "prefill"),
        (AnnotatedStep.MIXED, "mixed"),
        (AnnotatedStep.WARM_UP, "warm-up"),
        (AnnotatedStep.OTHER, "unclassified"),
        (99, None),
    ],
)
def test_kinds_are_those_that_the_program_says(synth, kind, said):
    synth.ring().step(100, 160, kind=kind)
    steps = only(synth)
    assert (steps.kind, steps.tokens, steps.batch) == ((said,), (None,), (None,))


def test_the_outermost_step_of_the_process_counts_on_whichever_thread(synth):
    outer, inner = synth.ring(tid=1), synth.ring(tid=2)
    inner.step(120, 150, name="inner")
    outer.step(100, 190)
    inner.step(195, 250, name="alone")  # ends after the outer one: no part of it
    result = found(synth)
    assert result.processes[0].begin_ns.tolist() == [100, 195]
    assert set(result.names) == {"inner", "step", "alone"}


def test_ranges_of_nvtx_are_steps_when_all_of_their_name_matches(synth):
    ring = synth.ring()
    for begin, name in ((100, "decode 1"), (200, "decode 2"), (300, "decode"), (400, "predecode 3"), (500, "other")):
        ring.named_range(name, begin, begin + 50)
    assert found(synth) is None
    result = found(synth, r"decode \d")
    (steps,) = result.processes
    assert (result.by, steps.begin_ns.tolist(), steps.kind) == ((FoundBy.NVTX,), [100, 200], (None, None))


def test_an_nvtx_category_is_no_kind_of_step(synth):
    ring = synth.ring()
    ring.named_range("decode", 100, 150, category=AnnotatedStep.PREFILL)
    assert only(synth, "decode").kind == (None,)


def test_annotations_and_ranges_are_steps_together_and_the_outer_one_counts(synth):
    ring = synth.ring()
    ring.step(110, 140)
    ring.named_range("decode", 100, 150)
    ring.step(200, 250)
    result = found(synth, "decode")
    (steps,) = result.processes
    assert (steps.begin_ns.tolist(), steps.kind) == ([100, 200], (None, "decode"))
    assert result.by == (FoundBy.ANNOTATION, FoundBy.NVTX)


def test_steps_are_numbered_from_the_programs_start_where_that_is_known(synth):
    ring = synth.ring()
    for number, begin in ((41, 100), (42, 200)):
        ring.put(*began(ring, begin - 1), payload=number)
        ring.named_range("step", begin, begin + 50, what=Span.STEP, source=Source.ANNOTATION)
    ring.put(*began(ring, 299), payload=50)
    ring.named_range("step", 300, 350, what=Span.STEP, source=Source.ANNOTATION)
    steps = only(synth)
    assert steps.number.tolist() == [41, 42, 50]
    assert steps.until_ns.tolist() == [200, 250, 350]  # what came after 42 was not recorded


def test_steps_of_each_process_are_its_own(synth):
    for pid, begin in ((7, 100), (8, 130)):
        ring = synth.ring(pid=pid, tid=pid)
        ring.step(begin, begin + 50)
        ring.step(begin + 100, begin + 150)
    assert [steps.begin_ns.tolist() for steps in found(synth).processes] == [[100, 200], [130, 230]]


def launches(ring, graphs, *, first=100, every=10):
    for number, graph in enumerate(graphs):
        at = first + number * every
        ring.named_range("cudaGraphLaunch", at, at + 3, what=Span.GRAPH, source=Source.CUDA, payload=graph)


def test_each_launch_of_a_graph_is_a_step_whatever_its_size(synth):
    launches(synth.ring(), [1] * 5 + [2] * 4)
    result = found(synth)
    (steps,) = result.processes
    assert (result.by, steps.count, steps.has_ends) == ((FoundBy.GRAPH,), 8, False)
    assert (steps.until_ns - steps.begin_ns).tolist() == [10] * 8


def test_graphs_that_follow_each_other_make_one_step(synth):
    launches(synth.ring(), [9, 5, 7] * 4)
    assert only(synth).begin_ns.tolist() == [100, 130, 160]


def test_launches_count_only_where_nothing_is_named(synth):
    ring = synth.ring()
    launches(ring, [1] * 5)
    ring.step(200, 250)
    assert found(synth).by == (FoundBy.ANNOTATION,)


def test_a_run_without_any_has_none(synth):
    synth.ring().named_range("work", 1, 2)
    assert found(synth) is None


def test_much_more_than_the_steps_around_is_no_decode_step():
    operations = np.array([100] * 20 + [401] + [100] * 20)
    kinds = classified((None,) * 41, operations)
    assert (kinds.count("decode"), kinds[20]) == (40, "unclassified")
    assert classified(("prefill", None), np.array([1, 1])) == ("prefill", "decode")
    first = classified((None,) * 41, np.array([401] + [100] * 40))
    assert (first[0], set(first[1:])) == ("unclassified", {"decode"})


@settings(deadline=None, max_examples=40)
@given(st.lists(st.tuples(st.integers(0, 60), st.integers(1, 20)), min_size=1, max_size=40))
def test_kept_steps_contain_all_others(tmp_path_factory, spans):
    synth = SynthRun(tmp_path_factory.mktemp("run") / "run")
    ring = synth.ring()
    for begin, length in spans:
        ring.step(begin + 1, begin + 1 + length)
    steps = only(synth)
    stretches = {(begin + 1, begin + 1 + length) for begin, length in spans}
    kept = {one for one in stretches if not any(o != one and o[0] <= one[0] and one[1] <= o[1] for o in stretches)}
    assert sorted(kept) == sorted(
        (begin, next(end for b, end in sorted(kept) if b == begin)) for begin in steps.begin_ns.tolist()
    )
    assert steps.count == len(kept)
