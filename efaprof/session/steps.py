"""Recording some of a program's steps: what its libraries are told, and what is said when there were too few."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from efaprof import env
from efaprof.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from efaprof.session.options import RecordOptions

LONGEST_PATTERN = 500
# Means the same in Python and to the C library, or is written so that it does.
_AS_POSIX = {r"\d": "[0-9]", r"\w": "[A-Za-z0-9_]", r"\s": "[[:space:]]"}
_ESCAPE = re.compile(r"\\[A-Za-z0-9]")


def posix_pattern(pattern: str) -> str:
    """A regular expression for names of steps as the C library understands it; UsageError for one that it does not."""
    try:
        re.compile(pattern)
    except re.error as error:
        raise UsageError(f"--step {pattern!r} is no regular expression: {error}", hint="--step 'decode.*'") from error
    translated = _ESCAPE.sub(lambda found: _AS_POSIX.get(found[0], found[0]), pattern)
    if "(?" in pattern or "*?" in pattern or "+?" in pattern or _ESCAPE.search(translated):
        raise UsageError(
            f"--step {pattern!r} says what only Python understands",
            hint="use groups ( ), | * + ? [ ] . and \\d \\w \\s only",
        )
    if len(translated.encode()) > LONGEST_PATTERN:
        raise UsageError(f"--step is longer than {LONGEST_PATTERN} bytes", hint="efaprof attribute --step takes any")
    return translated


def counting(options: RecordOptions) -> dict[str, str]:
    """Environment that makes the program's libraries count its steps."""
    told = {}
    if options.step is not None:
        told[env.STEP] = posix_pattern(options.step)
    if options.steps is not None:
        told[env.STEPS] = str(options.steps)
    if options.warmup_steps:
        told[env.WARMUP_STEPS] = str(options.warmup_steps)
    return told


def complaints(options: RecordOptions, begun: int) -> Iterator[str]:
    """What to say when the program had fewer steps than were asked for; `begun` is the most of any process."""
    if options.steps is None and not options.warmup_steps:
        return
    wanted = options.warmup_steps + (options.steps or 1)
    where = f"--step {options.step!r} matched" if options.step else "efaprof.step marked"
    if not begun:
        yield f"no step was seen ({where} none), so --steps and --warmup-steps had nothing to count"
    elif begun < wanted:
        yield f"the program had {begun:,} steps ({where} them) of the {wanted:,} that were asked for"
