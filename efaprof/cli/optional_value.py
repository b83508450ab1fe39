"""Options whose FILE may be left out: `--json` alone means standard output."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from typer.core import TyperCommand

if TYPE_CHECKING:
    from collections.abc import Iterable

STDOUT = "-"


def command_with(*options: str, base: type[TyperCommand] = TyperCommand) -> type[TyperCommand]:
    """A command class that gives these options the value "-" where none follows.

    What follows is no value when it is another option or a directory: `--json RUN` means the run, not a file.
    """

    class Command(base):  # type: ignore[misc, valid-type]  # a class that the caller chose
        def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
            parsed: list[str] = super().parse_args(ctx, list(_filled(args, options)))
            return parsed

    return Command


def _filled(args: list[str], options: tuple[str, ...]) -> Iterable[str]:
    for at, word in enumerate(args):
        yield word
        if word in options:
            after = args[at + 1] if at + 1 < len(args) else None
            if after is None or (after != STDOUT and after.startswith("-")) or Path(after).is_dir():
                yield STDOUT


def filled_before_command(args: list[str], option: str, value: str, with_value: frozenset[str]) -> list[str]:
    """`option` alone becomes `option=value`, among the words before a command line that follows the options.

    `with_value` are the options whose value may be the next word.
    """
    filled, at = [], 0
    while at < len(args) and args[at].startswith("-") and args[at] != "--":
        filled.append(f"{option}={value}" if args[at] == option else args[at])
        if args[at] != option and args[at] in with_value and at + 1 < len(args):
            at += 1
            filled.append(args[at])
        at += 1
    return filled + args[at:]


def write_text(text: str, target: str) -> None:
    """Write to a file; UsageError when that cannot be done."""
    from efaprof.errors import UsageError

    try:
        Path(target).write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{target} cannot be written: {error.strerror}", hint="give another FILE") from error
