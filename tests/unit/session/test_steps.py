from __future__ import annotations

import re

import pytest

from efaprof import env
from efaprof.errors import UsageError
from efaprof.session.options import RecordOptions
from efaprof.session.steps import complaints, counting, posix_pattern


def options(**changes) -> RecordOptions:
    return RecordOptions(argv=("x",), **changes)


@pytest.mark.parametrize(
    ("given", "posix"),
    [
        ("decode.*", "decode.*"),
        (r"step \d+", "step [0-9]+"),
        (r"\w+\.\s", r"[A-Za-z0-9_]+\.[[:space:]]"),
        ("(a|b)?", "(a|b)?"),
        ("[a-z]{2}", "[a-z]{2}"),
    ],
)
def test_a_pattern_is_said_as_the_c_library_understands_it(given, posix):
    assert posix_pattern(given) == posix
    assert re.fullmatch(given, "") is None or given == "(a|b)?"


@pytest.mark.parametrize("given", ["(?:a)", "(?P<n>a)", "a*?", "a+?", r"\bstep", r"(a)\1", r"\D", "(", "x" * 600])
def test_a_pattern_that_only_python_understands_is_refused(given):
    with pytest.raises(UsageError) as caught:
        posix_pattern(given)
    assert caught.value.hint


def test_the_program_is_told_only_what_was_asked_for():
    assert counting(options()) == {}
    asked = options(step="s", steps=3, warmup_steps=2)
    assert counting(asked) == {env.STEP: "s", env.STEPS: "3", env.WARMUP_STEPS: "2"}


def test_too_few_steps_are_said():
    assert list(complaints(options(), 0)) == []
    assert list(complaints(options(steps=3), 3)) == []
    assert "no step was seen (efaprof.step marked none)" in next(complaints(options(steps=3), 0))
    assert "had 4 steps (--step 'x' matched them) of the 5" in next(
        complaints(options(step="x", steps=3, warmup_steps=2), 4)
    )
    assert list(complaints(options(warmup_steps=2), 3)) == []
    assert len(list(complaints(options(warmup_steps=2), 2))) == 1
