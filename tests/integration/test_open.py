"""`efaprof open` as a user meets it."""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING
from urllib.parse import parse_qs, urlsplit

import pytest
from synth_runs import traffic_run
from trace_processor import load

from efaprof.export.bundled_ui import POLICY

if TYPE_CHECKING:
    from collections.abc import Iterator

UI = "https://ui.perfetto.dev"


@dataclass
class Opened:
    """A running `efaprof open`."""

    process: subprocess.Popen[str]
    url: str

    @property
    def trace(self) -> str:
        return parse_qs(urlsplit(self.url).fragment.partition("?")[2])["url"][0]

    def fetch(
        self, url: str | None = None, method: str = "GET", **headers: str
    ) -> tuple[int, bytes, http.client.HTTPMessage]:
        parts = urlsplit(url or self.trace)
        connection = http.client.HTTPConnection(parts.netloc, timeout=20)
        connection.request(method, parts.path, headers=headers)
        answer = connection.getresponse()
        body = answer.read()
        connection.close()
        return answer.status, body, answer.headers

    def end(self) -> tuple[int, str]:
        """Exit code and what was said."""
        _, said = self.process.communicate(timeout=60)
        return self.process.returncode, said


@contextmanager
def opened(*arguments: str | Path, cwd: Path, **environment: str) -> Iterator[Opened]:
    process = subprocess.Popen(
        [sys.executable, "-m", "efaprof", "open", *map(str, arguments)],
        cwd=cwd, env={**os.environ, **environment}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    stdout: IO[str] = process.stdout
    try:
        yield Opened(process, stdout.readline().strip())
    finally:
        process.kill()
        process.communicate()


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "some trace.pftrace"
    path.write_bytes(b"\x0a\x00" * 1000)
    return path


def test_a_run_is_exported_and_served_once(tmp_path: Path) -> None:
    run = traffic_run(tmp_path / "efaprof-a")
    with opened(run.path, "--port", "0", "--timeout", "60", cwd=tmp_path) as it:
        assert it.url.startswith(f"{UI}/#!/?url=http://127.0.0.1:")
        assert it.trace.endswith("/efaprof-a.pftrace")
        commands = parse_qs(urlsplit(it.url).fragment)["startupCommands"][0]
        assert json.loads(commands)[0]["id"] == "dev.perfetto.ExpandTracksByRegex"
        status, body, headers = it.fetch(Origin=UI)
        assert (status, headers["Access-Control-Allow-Origin"], headers["Cache-Control"]) == (200, UI, "no-cache")
        code, said = it.end()
    assert code == 0, said
    assert (run.path / "trace.pftrace").read_bytes() == body
    assert "slices" in said
    with load(body) as engine:
        assert engine.bad_stats() == []


def test_a_trace_that_is_newer_than_its_run_is_not_made_again(tmp_path: Path) -> None:
    run = traffic_run(tmp_path / "efaprof-a")
    (run.path / "trace.pftrace").write_bytes(b"made before")
    with opened("--port", "0", cwd=tmp_path) as it:
        assert it.fetch()[1] == b"made before"
        code, said = it.end()
    assert code == 0
    assert said.startswith("run: efaprof-a\n")


def test_a_trace_that_is_older_than_its_run_is_made_again(tmp_path: Path) -> None:
    run = traffic_run(tmp_path / "efaprof-a")
    stale = run.path / "trace.pftrace"
    stale.write_bytes(b"stale")
    os.utime(stale, (1, 1))
    with opened(run.path, "--port", "0", cwd=tmp_path) as it:
        assert it.fetch()[1] != b"stale"


def test_a_file_keeps_its_bytes(trace: Path, tmp_path: Path) -> None:
    with opened(trace, "--port", "0", cwd=tmp_path) as it:
        assert it.trace.endswith("/some_trace.pftrace")
        assert "startupCommands" not in it.url
        assert it.fetch()[1] == trace.read_bytes()
        assert it.end()[0] == 0


def test_refused_requests_do_not_end_it(trace: Path, tmp_path: Path) -> None:
    with opened(trace, "--port", "0", cwd=tmp_path) as it:
        base = it.trace.removesuffix(urlsplit(it.trace).path)
        assert it.fetch(f"{base}/some_trace.pftrace")[0] == 404
        assert it.fetch(Host="evil.example:9001")[0] == 421
        assert it.fetch(Origin="https://evil.example")[0] == 403
        assert it.fetch(method="HEAD")[0] == 200
        assert it.process.poll() is None
        assert it.fetch()[0] == 200
        assert it.end()[0] == 0


def test_with_keep_it_serves_again_until_it_is_interrupted(trace: Path, tmp_path: Path) -> None:
    with opened(trace, "--port", "0", "--keep", cwd=tmp_path) as it:
        assert [it.fetch()[0] for _ in range(3)] == [200] * 3
        it.process.send_signal(signal.SIGINT)
        code, said = it.end()
    assert (code, said.splitlines()[-1]) == (0, "ended")


def test_nobody_coming_is_said_with_ways_out(trace: Path, tmp_path: Path) -> None:
    with opened(trace, "--port", "0", "--timeout", "0.2", cwd=tmp_path) as it:
        code, said = it.end()
    assert code == 1
    assert "error: nobody fetched the trace within 0.2 s" in said
    assert "--local" in said
    assert "Traceback" not in said


def test_a_port_in_use_is_one_clear_line(trace: Path, tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with opened(trace, "--port", str(port), cwd=tmp_path) as it:
            code, said = it.end()
    assert (code, it.url) == (2, "")
    assert said.startswith(f"error: port {port} of 127.0.0.1 is in use")
    assert "hint: " in said


@pytest.mark.parametrize(("name", "message"), [("absent", "does not exist"), (".", "is not an efaprof run directory")])
def test_what_cannot_be_opened_is_said(tmp_path: Path, name: str, message: str) -> None:
    with opened(name, "--port", "0", cwd=tmp_path) as it:
        code, said = it.end()
    assert code in {2, 3}
    assert message in said


@pytest.fixture
def browser(tmp_path: Path) -> Path:
    """A browser that writes down what it was asked to open."""
    script = tmp_path / "browser"
    script.write_text('#!/bin/sh\necho "$1" > "$0.log"\n')
    script.chmod(0o755)
    return script


def test_no_browser_starts_without_a_terminal_unless_asked(trace: Path, tmp_path: Path, browser: Path) -> None:
    log = browser.with_name("browser.log")
    with opened(trace, "--port", "0", cwd=tmp_path, BROWSER=str(browser)) as it:
        it.fetch()
        assert it.end()[0] == 0
    assert not log.exists()
    with opened(trace, "--port", "0", "--browser", cwd=tmp_path, BROWSER=f"{browser} %s") as it:
        it.fetch()
        assert it.end()[0] == 0
    assert log.read_text().strip() == it.url


def test_over_ssh_the_tunnel_is_named(trace: Path, tmp_path: Path) -> None:
    with opened(trace, "--port", "0", cwd=tmp_path, SSH_CONNECTION="10.0.0.1 5 10.0.0.2 22") as it:
        port = urlsplit(it.trace).port
        it.fetch(Host="127.0.0.1:9001")  # as it comes through the tunnel
        code, said = it.end()
    assert code == 0
    assert f"ssh -N -L 9001:127.0.0.1:{port} " in said
    assert "may fetch from port 9001 only" in said


def test_the_bundled_ui_comes_from_the_same_server_under_a_strict_policy(trace: Path, tmp_path: Path) -> None:
    with opened(trace, "--local", "--timeout", "3", cwd=tmp_path) as it:
        assert it.url.startswith("http://127.0.0.1:")
        page = it.url.partition("#")[0]
        status, body, headers = it.fetch(page)
        assert (status, headers["Content-Security-Policy"]) == (200, POLICY)
        assert b"Perfetto UI" in body
        version = json.loads(body.partition(b"data-perfetto_version='")[2].partition(b"'")[0])["stable"]
        engine = it.fetch(f"{page}{version}/trace_processor.wasm")
        assert (engine[0], engine[2]["Content-Type"]) == (200, "application/wasm")
        assert it.fetch(f"{page}../../etc/passwd")[0] == 404
        assert it.fetch(Origin=UI)[0] == 403
        assert it.fetch()[1] == trace.read_bytes()
        assert it.fetch()[0] == 200, "the page may be loaded again"
        code, said = it.end()
    assert code == 0, said
