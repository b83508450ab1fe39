"""Everything that efaprof raises on purpose. The message says what and which file; the hint, what to type next."""

from __future__ import annotations


class EfaprofError(Exception):
    """Root of our errors; `exit_code` is what the command line ends with."""

    exit_code = 1

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class UsageError(EfaprofError):
    """The call is wrong: flags, paths, combinations."""

    exit_code = 2


class TraceError(EfaprofError):
    """The trace cannot be used, or is incomplete under --strict."""

    exit_code = 3


class GateError(EfaprofError):
    """A gate that the user asked for failed."""

    exit_code = 4


class NothingToAnalyse(EfaprofError):
    """The input is sound but holds nothing to analyse, or the inputs are not comparable."""

    exit_code = 5


class RecordError(EfaprofError):
    """`efaprof record` itself failed (the program's own exit code is never this)."""

    exit_code = 125


class NotExecutable(RecordError):
    """The command was found but cannot be executed."""

    exit_code = 126


class CommandNotFound(RecordError):
    """There is no such command."""

    exit_code = 127
