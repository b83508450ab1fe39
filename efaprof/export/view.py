"""Showing a trace in a Perfetto UI: which file, under which URL, for how long."""

from __future__ import annotations

import json
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from efaprof.errors import EfaprofError, UsageError
from efaprof.export import bundled_ui
from efaprof.export.focus import Focus, worst_step
from efaprof.export.formats import Format
from efaprof.export.serve import ADDRESS, UI_ORIGIN, Service, TraceServer
from efaprof.trace import manifest, rundir

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import ExitStack

    from efaprof.trace.rundir import Run

_TRACE_NAMES = ("trace.pftrace", "trace.pftrace.gz")
_STEPS_AROUND = 5  # lengths of the step that are exported on both sides of it
_FEW_THREADS = 16  # recorded ones, up to which everything is shown expanded


@dataclass(frozen=True, slots=True)
class Viewing:
    """A trace file and how a viewer shows it."""

    file: Path
    name: str
    expands: str | None = None  # regular expression of the track groups that are shown expanded
    focus: Focus | None = None  # the step that is shown


def viewing_of(path: Path, stack: ExitStack, say: Callable[[str], None], *, is_worst_step: bool = False) -> Viewing:
    """The trace to show for a run directory or a file; a run's is made when it is missing or older than the run.

    With `is_worst_step` the longest decode step is shown, and of a large run only what lies around it is exported.
    """
    if path.is_dir():
        run = rundir.open_run(path)
        name = run.path.resolve().name
        focus = worst_step(run) if is_worst_step else None
        if focus is not None:
            say(focus.words())
        file = _current_trace(run) or _export(run, stack, say, focus)
        expands = ".*" if len(run.raw_files) <= _FEW_THREADS else "^(efaprof|NIC counters .*)$"
        return Viewing(file, name + "".join(file.suffixes), expands, focus)
    if is_worst_step:
        raise UsageError(f"{path} is no run directory: --worst-step needs one", hint="efaprof open RUN --worst-step")
    if not path.exists():
        raise UsageError(f"{path} does not exist", hint="give a run directory or a trace file")
    if not path.is_file():
        raise UsageError(f"{path} is not a regular file", hint="give a run directory or a trace file")
    return Viewing(path, path.name)


def _current_trace(run: Run) -> Path | None:
    made_from = [run.path / manifest.FILE_NAME, *run.raw_files]
    newest_ns = max(path.stat().st_mtime_ns for path in made_from)
    traces = [path for path in (run.path / name for name in _TRACE_NAMES) if path.is_file()]
    return next((path for path in traces if path.stat().st_mtime_ns >= newest_ns), None)


def _export(run: Run, stack: ExitStack, say: Callable[[str], None], focus: Focus | None) -> Path:
    from efaprof.export.request import Request, export_run, is_large

    if focus is not None and is_large(run):
        around = (focus.begin_ns - _STEPS_AROUND * focus.dur_ns, focus.end_ns + _STEPS_AROUND * focus.dur_ns)
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="efaprof-open-")))
        outcome = export_run(Request(run, Format.PERFETTO, output=folder / _TRACE_NAMES[1], span_ns=around))
        for remark in (*outcome.remarks, "only what lies around that step is shown; all of it: efaprof export"):
            say(remark)
        return outcome.paths[0]
    try:
        outcome = export_run(Request(run, Format.PERFETTO, force=True))
    except UsageError:
        # Somebody else's run: what cannot be written beside it lives as long as we serve.
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="efaprof-open-")))
        outcome = export_run(Request(run, Format.PERFETTO, output=folder / _TRACE_NAMES[1]))
    for remark in outcome.remarks:
        say(remark)
    return outcome.paths[0]


def service_of(viewing: Viewing, *, is_local: bool) -> Service:
    """What a server offers: the trace alone to ui.perfetto.dev, or the trace and the bundled UI."""
    if is_local:
        files = bundled_ui.files()
        return Service(viewing.file, viewing.name, files, origin=None, page_policy=bundled_ui.POLICY)
    return Service(viewing.file, viewing.name)


def page_url(viewing: Viewing, server: TraceServer, *, is_local: bool) -> str:
    """What the browser opens."""
    page = f"http://{ADDRESS}:{server.port}/" if is_local else f"{UI_ORIGIN}/"
    url = f"{page}#!/?url={server.trace_url}&referrer=efaprof"
    commands: list[dict[str, Any]] = []
    if viewing.expands is not None:
        commands.append({"id": "dev.perfetto.ExpandTracksByRegex", "args": [viewing.expands]})
    if viewing.focus is not None:
        url += viewing.focus.parameters
        commands += viewing.focus.commands
    if commands:
        url += f"&startupCommands={quote(json.dumps(commands, separators=(',', ':')))}"
    return url


def serve_until_done(
    server: TraceServer, viewing: Viewing, *, is_local: bool, keep: bool, timeout_s: float | None
) -> None:
    """Return once the trace was fetched; EfaprofError when nobody came within `timeout_s`.

    With `keep`, or with the UI itself on the server, requests are answered until `timeout_s` pass without one.
    """
    if server.wait(timeout_s, once=not (keep or is_local)):
        return
    elsewhere = f"drag {viewing.file} onto {UI_ORIGIN}, or use efaprof open --local"
    denied = f"a browser may deny a page access to {ADDRESS}: it asks, or fails without a word"
    hint = "open the printed URL in a browser on this machine" if is_local else f"{elsewhere} ({denied})"
    raise EfaprofError(f"nobody fetched the trace within {timeout_s:g} s", hint=hint)
