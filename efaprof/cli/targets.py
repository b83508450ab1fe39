"""Where a report goes: text to stdout, and JSON or markdown to stdout or a file."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

from efaprof.cli.optional_value import STDOUT, write_text
from efaprof.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from efaprof.report.sections import Section


@dataclass(frozen=True, slots=True)
class Targets:
    """Values of --json and --markdown: a file, "-" for stdout, or None."""

    json: str | None
    markdown: str | None
    is_quiet: bool = False  # the terminal form is never shown

    def __post_init__(self) -> None:
        if self.json == STDOUT and self.markdown == STDOUT:
            raise UsageError("--json and --markdown cannot both go to stdout", hint="give one of them a FILE")

    def write(self, document: dict[str, Any], heading: str, sections: Sequence[Section]) -> None:
        """Write what was asked for; the terminal form is shown unless something else goes to stdout or quiet."""
        from efaprof.report.sections import as_markdown, as_terminal

        forms: tuple[tuple[str | None, Callable[[], str]], ...] = (
            (self.json, lambda: json.dumps(document, indent=1, ensure_ascii=False) + "\n"),
            (self.markdown, lambda: as_markdown(heading, sections)),
        )
        for target, text in forms:
            if target == STDOUT:
                sys.stdout.write(text())
            elif target is not None:
                write_text(text(), target)
        if STDOUT not in (self.json, self.markdown) and not self.is_quiet:
            sys.stdout.write(as_terminal(heading, sections))
