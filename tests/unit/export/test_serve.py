from __future__ import annotations

import http.client
import socket
import threading
from pathlib import Path

import pytest

from efaprof.errors import UsageError
from efaprof.export.serve import UI_ORIGIN, Service, TraceServer

CONTENT = bytes(range(256)) * 5000


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "trace.pftrace"
    path.write_bytes(CONTENT)
    (tmp_path / "secret").write_text("secret")
    return path


def ask(server: TraceServer, path: str | None = None, method: str = "GET", **headers: str):
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=10)
    connection.request(method, path or server.service.trace_path, headers=headers)
    answer = connection.getresponse()
    body = answer.read()
    connection.close()
    return answer, body


@pytest.fixture
def server(trace: Path):
    with TraceServer(Service(trace, "run 1/ü.pftrace", token="token"), port=0) as running:
        yield running


def test_the_trace_is_delivered_whole_and_only_then_counts(server: TraceServer) -> None:
    assert not server.delivered.is_set()
    answer, body = ask(server)
    assert (answer.status, body) == (200, CONTENT)
    assert answer.getheader("Content-Length") == str(len(CONTENT))
    assert answer.getheader("Cache-Control") == "no-cache"
    assert server.wait(10, once=True)


def test_the_url_needs_no_escapes(server: TraceServer) -> None:
    assert server.trace_url == f"http://127.0.0.1:{server.port}/token/run_1__.pftrace"


def test_head_tells_the_size_and_does_not_count(server: TraceServer) -> None:
    answer, body = ask(server, method="HEAD")
    assert (answer.status, body, answer.getheader("Content-Length")) == (200, b"", str(len(CONTENT)))
    assert not server.delivered.is_set()


def test_only_the_perfetto_ui_may_read_across_origins(server: TraceServer) -> None:
    answer, _ = ask(server, Origin=UI_ORIGIN)
    assert (answer.status, answer.getheader("Access-Control-Allow-Origin")) == (200, UI_ORIGIN)
    plain, _ = ask(server)
    assert plain.getheader("Access-Control-Allow-Origin") is None


@pytest.mark.parametrize(
    "origin", ["https://evil.example", "null", "http://ui.perfetto.dev", "https://ui.perfetto.dev.evil"]
)
def test_other_origins_are_refused_without_the_trace(server: TraceServer, origin: str) -> None:
    answer, body = ask(server, Origin=origin)
    assert answer.status == 403
    assert answer.getheader("Access-Control-Allow-Origin") is None
    assert len(body) < 100
    assert not server.delivered.is_set()


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:9001", "127.0.0.1.evil.example:9001", "127.0.0.1", "", "[::1]:9001"]
)
def test_another_host_name_is_a_rebinding_attack(server: TraceServer, host: str) -> None:
    answer, body = ask(server, Host=host)
    assert answer.status == 421
    assert len(body) < 100


@pytest.mark.parametrize("host", ["127.0.0.1:9001", "localhost:9001"])
def test_a_tunnel_may_have_another_port(server: TraceServer, host: str) -> None:
    assert ask(server, Host=host)[0].status == 200


@pytest.mark.parametrize(
    "path",
    [
        "/", "/token", "/token/", "/run_1__.pftrace", "/token/run_1__.pftrace/", "/token/RUN_1__.pftrace",
        "/token/../token/run_1__.pftrace", "/token/%72un_1__.pftrace", "/token/run_1__.pftrace%00",
        "/../secret", "/%2e%2e/secret", "/token/../../secret", "/etc/passwd",
    ],
)  # fmt: skip
def test_exactly_one_path_exists(server: TraceServer, path: str) -> None:
    answer, body = ask(server, path)
    assert answer.status == 404
    assert b"secret" not in body
    assert not server.delivered.is_set()


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "PATCH", "TRACE"])
def test_only_get_and_head_are_answered(server: TraceServer, method: str) -> None:
    answer, _ = ask(server, method=method)
    assert answer.status == 501
    assert answer.getheader("Access-Control-Allow-Origin") is None


def test_a_query_does_not_change_the_path(server: TraceServer) -> None:
    assert ask(server, server.service.trace_path + "?x=1")[0].status == 200


def test_half_a_download_does_not_count(tmp_path: Path) -> None:
    path = tmp_path / "big"
    path.write_bytes(bytes(64 << 20))
    with TraceServer(Service(path, "big", token="t"), port=0) as server:
        with socket.create_connection(("127.0.0.1", server.port)) as client:
            client.sendall(f"GET /t/big HTTP/1.1\r\nHost: 127.0.0.1:{server.port}\r\n\r\n".encode())
            assert client.recv(1000)
        _, body = ask(server, "/")  # answered while the other one hangs or has failed
        assert body
        assert not server.delivered.is_set()


def test_a_client_that_says_nothing_does_not_block_the_next(server: TraceServer) -> None:
    with socket.create_connection(("127.0.0.1", server.port)):
        assert ask(server)[0].status == 200


def test_a_trace_that_vanished_is_gone_not_a_crash(server: TraceServer, trace: Path) -> None:
    trace.unlink()
    assert ask(server)[0].status == 410
    assert not server.delivered.is_set()


def test_the_token_is_new_each_time_and_long(trace: Path) -> None:
    tokens = {Service(trace, "t").token for _ in range(10)}
    assert len(tokens) == 10
    assert min(map(len, tokens)) >= 20


def test_a_port_in_use_is_said_with_the_way_out(trace: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(UsageError, match=f"port {port} of 127.0.0.1 is in use") as raised:
            TraceServer(Service(trace, "t"), port=port)
    assert "--local" in raised.value.hint


def test_it_listens_on_the_loopback_only(server: TraceServer) -> None:
    assert server._server.socket.getsockname()[0] == "127.0.0.1"


def test_the_port_is_free_again_afterwards(trace: Path) -> None:
    with TraceServer(Service(trace, "t"), port=0) as first:
        port = first.port
        ask(first)
    with TraceServer(Service(trace, "t"), port=port) as second:
        assert ask(second)[0].status == 200


def test_idle_time_counts_from_the_last_activity(server: TraceServer) -> None:
    ended = threading.Event()

    def wait() -> None:
        server.wait(0.3, once=False)
        ended.set()

    threading.Thread(target=wait, daemon=True).start()
    before = server.last_activity
    ask(server)
    assert server.last_activity > before
    assert ended.wait(20)


def test_a_download_under_way_is_not_idle(tmp_path: Path) -> None:
    path = tmp_path / "big"
    path.write_bytes(bytes(64 << 20))
    with TraceServer(Service(path, "big", token="t"), port=0) as server:
        server.last_activity = 0.0
        with socket.create_connection(("127.0.0.1", server.port)) as client:
            client.sendall(f"GET /t/big HTTP/1.1\r\nHost: 127.0.0.1:{server.port}\r\n\r\n".encode())
            assert client.recv(1000)
            started = server.last_activity
            left = 60 << 20
            while left > 0 and (data := client.recv(1 << 20)):
                left -= len(data)
            assert server.last_activity > started > 0


def test_further_pages_are_those_of_the_table_with_the_policy(trace: Path, tmp_path: Path) -> None:
    page = tmp_path / "index.html"
    page.write_text("<p>ui</p>")
    service = Service(trace, "t.pftrace", {"/": page}, origin=None, page_policy="default-src 'self'")
    with TraceServer(service, port=0) as server:
        answer, body = ask(server, "/")
        assert (answer.status, body) == (200, b"<p>ui</p>")
        assert answer.getheader("Content-Type") == "text/html; charset=utf-8"
        assert answer.getheader("Content-Security-Policy") == "default-src 'self'"
        assert ask(server, "/index.html")[0].status == 404
        assert not server.delivered.is_set()
        assert ask(server, Origin=UI_ORIGIN)[0].status == 403
        assert ask(server, Origin=f"http://127.0.0.1:{server.port}")[0].status == 200
        assert server.wait(10, once=True)
