"""Lines of a large file, one at a time, with progress and a limit on what one line may cost."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from efaprof.errors import TraceError, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

MAX_LINE_BYTES = 64 << 20  # a longer "line" is not a record of anything we read
MAX_DOCUMENT_BYTES = 256 << 20  # a JSON document is parsed whole (several times its size in memory); larger is refused
NAMED_LINES = 5
_REPORT_BYTES = 1 << 20


class Progress(Protocol):
    """What wants to know how far reading is."""

    def start(self, name: str, total_bytes: int) -> None:
        """A file of `total_bytes` is about to be read."""

    def advance(self, done_bytes: int) -> None:
        """So many further bytes were read."""


class Quiet:
    """Progress that nobody watches."""

    def start(self, name: str, total_bytes: int) -> None:
        """Nothing."""

    def advance(self, done_bytes: int) -> None:
        """Nothing."""


class MalformedLine(Exception):
    """A line that is no record; the text says why."""


@dataclass(slots=True)
class Malformed:
    """Lines that were not used: how many, and the first few by name."""

    path: Path
    count: int = 0
    named: tuple[str, ...] = ()

    def add(self, line: int, why: str) -> None:
        """Count one line."""
        self.count += 1
        if len(self.named) < NAMED_LINES:
            self.named = (*self.named, f"{self.path}:{line}: {why}")

    def warning(self) -> str | None:
        """One sentence for the report; None when every line was good."""
        if not self.count:
            return None
        more = f" and {self.count - len(self.named)} more" if self.count > len(self.named) else ""
        lines = "1 malformed line" if self.count == 1 else f"{self.count} malformed lines"
        return f"{lines} not used: {'; '.join(self.named)}{more}"


def json_lines(path: Path, malformed: Malformed, progress: Progress) -> Iterator[tuple[int, Any]]:
    """(line number, parsed value) of every non-empty line; what does not parse goes to `malformed`."""
    pending = 0
    try:
        with path.open("rb") as file:
            progress.start(path.name, path.stat().st_size)
            number = 0
            while raw := file.readline(MAX_LINE_BYTES):
                number += 1
                pending += len(raw)
                if pending >= _REPORT_BYTES:
                    progress.advance(pending)
                    pending = 0
                if len(raw) == MAX_LINE_BYTES and not raw.endswith(b"\n"):
                    _skip_line(file)
                    malformed.add(number, f"longer than {MAX_LINE_BYTES >> 20} MiB")
                    continue
                if raw.isspace():
                    continue
                try:
                    yield number, json.loads(raw)
                except (ValueError, RecursionError) as error:
                    malformed.add(number, _why(error))
    except OSError as error:
        raise unreadable(path, error) from error
    progress.advance(pending)


def _skip_line(file: Any) -> None:
    while (rest := file.readline(MAX_LINE_BYTES)) and not rest.endswith(b"\n"):
        pass


def _why(error: Exception) -> str:
    if isinstance(error, json.JSONDecodeError):
        return f"not JSON ({error.msg} at column {error.colno})"
    if isinstance(error, UnicodeDecodeError):
        return "not UTF-8"
    return "not JSON"


def document(path: Path) -> Any:
    """The one JSON value of a file; TraceError when it is none or too large to be parsed whole."""
    try:
        size = path.stat().st_size
        if size > MAX_DOCUMENT_BYTES:
            raise TraceError(
                f"{path} is one JSON document of {size >> 20} MiB; only {MAX_DOCUMENT_BYTES >> 20} MiB are read whole",
                hint="export per-request records as JSON lines, which are read in bounded memory",
            )
        return json.loads(path.read_bytes())
    except OSError as error:
        raise unreadable(path, error) from error
    except (ValueError, RecursionError) as error:
        raise TraceError(f"{path} is not JSON: {error}", hint="export it again, or restore the file") from error


def unreadable(path: Path, error: OSError) -> UsageError:
    """The error for a path that cannot be opened."""
    return UsageError(f"{path} cannot be read: {error.strerror}", hint="check the path and its permissions")
