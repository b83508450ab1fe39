"""A server for one trace on the loopback, for a Perfetto UI in the browser of the same person.

Every path that is answered stands in a table made at the start; nothing is looked up by what a request says. The
trace's path holds a random token, so that other users of the machine cannot ask for it.
"""

from __future__ import annotations

import errno
import re
import secrets
import socket
import threading
import time
from dataclasses import dataclass, field
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from efaprof.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

ADDRESS = "127.0.0.1"
HOST_NAMES = (ADDRESS, "localhost")
UI_ORIGIN = "https://ui.perfetto.dev"
UI_PORT = 9001  # the only one that the UI's own content policy lets it fetch from
_REQUEST_TIMEOUT_S = 30.0
_COPY_BYTES = 1 << 20
_TYPES = {
    ".css": "text/css",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript",
    ".json": "application/json",
    ".png": "image/png",
    ".wasm": "application/wasm",
    ".woff2": "font/woff2",
}


@dataclass(frozen=True, slots=True)
class Service:
    """What is served, and to whom."""

    trace: Path
    name: str  # of the trace, as the viewer shows it; characters that a URL would have to escape become "_"
    files: Mapping[str, Path] = field(default_factory=dict)  # other paths: the pages of a bundled UI
    origin: str | None = UI_ORIGIN  # the one foreign origin that may read the trace
    page_policy: str | None = None  # Content-Security-Policy of every answer
    token: str = field(default_factory=lambda: secrets.token_urlsafe(16))

    @property
    def trace_path(self) -> str:
        """The trace's path on the server."""
        return f"/{self.token}/{re.sub(r'[^A-Za-z0-9._-]', '_', self.name)}"


class TraceServer:
    """Serves in a thread of its own, between `with` and the end of the block; `port` 0 takes a free one."""

    def __init__(self, service: Service, *, port: int = UI_PORT) -> None:
        self.service = service
        self.delivered = threading.Event()  # the whole trace went to a client
        self.last_activity = time.monotonic()
        try:
            self._server = _Server((ADDRESS, port), self)
        except (OSError, OverflowError) as error:
            raise _bind_error(port, error) from error
        self.port: int = self._server.server_address[1]
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.05,), name="efaprof-open", daemon=True
        )

    def __enter__(self) -> TraceServer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    @property
    def trace_url(self) -> str:
        """Where the trace is."""
        return f"http://{ADDRESS}:{self.port}{self.service.trace_path}"

    def wait(self, idle_s: float | None, *, once: bool) -> bool:
        """Whether the trace was delivered, when nothing was sent for `idle_s`; with `once` as soon as it was.

        `idle_s` None: never idle.
        """
        while not (once and self.delivered.is_set()):
            rest_s = threading.TIMEOUT_MAX if idle_s is None else self.last_activity + idle_s - time.monotonic()
            if rest_s <= 0:
                break
            if once:
                self.delivered.wait(rest_s)
            else:
                time.sleep(min(rest_s, 3600.0))
        return self.delivered.is_set()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def __init__(self, address: tuple[str, int], owner: TraceServer) -> None:
        self.owner = owner
        super().__init__(address, _Handler)

    def server_bind(self) -> None:
        """Bind without the look-up of the host's name, which may go to the network."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = ADDRESS, self.server_address[1]

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away is its own affair."""


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    timeout = _REQUEST_TIMEOUT_S
    server_version = "efaprof"
    sys_version = ""

    def do_GET(self) -> None:
        self._answer(with_body=True)

    def do_HEAD(self) -> None:
        self._answer(with_body=False)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 (the base class names it so)
        """Requests are not talked about."""

    def _answer(self, *, with_body: bool) -> None:
        owner = self.server.owner
        owner.last_activity = time.monotonic()
        host, origin = self.headers.get("Host", ""), self.headers.get("Origin")
        # Another name for this address is a rebinding attack. The port may be that of a tunnel.
        if host.rpartition(":")[0] not in HOST_NAMES:
            self._refuse(HTTPStatus.MISDIRECTED_REQUEST)
        elif origin is not None and origin not in {owner.service.origin, f"http://{host}"}:
            self._refuse(HTTPStatus.FORBIDDEN)
        else:
            path = urlsplit(self.path).path
            is_trace = path == owner.service.trace_path
            file = owner.service.trace if is_trace else owner.service.files.get(path)
            if file is None:
                self._refuse(HTTPStatus.NOT_FOUND)
            else:
                self._send_file(file, is_trace=is_trace, with_body=with_body)

    def _refuse(self, status: HTTPStatus) -> None:
        body = f"{status.phrase}\n".encode()
        self.send_response(status)
        self._common_headers(len(body), "text/plain")
        if self.command != "HEAD":
            self.wfile.write(body)

    def _common_headers(self, size: int, content_type: str) -> None:
        service = self.server.owner.service
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(size))
        self.send_header("Cache-Control", "no-cache")
        self.send_header("X-Content-Type-Options", "nosniff")
        if service.page_policy:
            self.send_header("Content-Security-Policy", service.page_policy)
        if service.origin and self.headers.get("Origin") == service.origin:
            self.send_header("Access-Control-Allow-Origin", service.origin)
            self.send_header("Vary", "Origin")
        self.end_headers()

    def _send_file(self, file: Path, *, is_trace: bool, with_body: bool) -> None:
        try:
            content = file.open("rb")
        except OSError:
            self._refuse(HTTPStatus.GONE)
            return
        with content:
            size = content.seek(0, 2)
            content.seek(0)
            self.send_response(HTTPStatus.OK)
            self._common_headers(size, _TYPES.get(file.suffix, "application/octet-stream"))
            if not with_body:
                return
            while block := content.read(_COPY_BYTES):
                self.wfile.write(block)
                self.server.owner.last_activity = time.monotonic()
        if is_trace:
            self.wfile.flush()
            self.server.owner.delivered.set()


def _bind_error(port: int, error: Exception) -> UsageError:
    if isinstance(error, OSError) and error.errno == errno.EADDRINUSE:
        return UsageError(
            f"port {port} of {ADDRESS} is in use, perhaps by a trace_processor or another `efaprof open`",
            hint="end that one, or view without the port: efaprof open --local",
        )
    return UsageError(f"port {port} of {ADDRESS} cannot be served: {error}", hint=f"leave --port out ({UI_PORT})")
