"""Options and fixtures that every test may use."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import hypothesis
import pytest

REPO = Path(__file__).resolve().parent.parent

# A runner may start us with signals ignored (nohup, a job in the background), and every program would inherit that.
for number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT):
    if signal.getsignal(number) == signal.SIG_IGN:
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)

# No property has a time limit of its own: on shared machines that fails by the neighbours.
hypothesis.settings.register_profile("efaprof", deadline=None)
hypothesis.settings.load_profile("efaprof")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--slow", action="store_true", help="also run the long forms")
    parser.addoption("--update-golden", action="store_true", help="rewrite golden texts; review the diff")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--slow"):
        return
    skip = pytest.mark.skip(reason="long form: pytest --slow (make test-slow)")
    for item in items:
        if "slow" in item.keywords:
            item.add_marker(skip)


@pytest.fixture(scope="session")
def build_dir() -> Path:
    """Folder of the plain CMake build with the test programs (`make native`)."""
    folder = Path(os.environ.get("EFAPROF_BUILD_DIR", REPO / "build" / "dev"))
    if not (folder / "bin").is_dir():
        pytest.skip(f"no test programs in {folder}: make native")
    return folder


@pytest.fixture
def golden(request: pytest.FixtureRequest):
    """Compare a text with tests/golden/<name>; --update-golden rewrites it."""

    def check(name: str, text: str) -> None:
        path = REPO / "tests" / "golden" / name
        if request.config.getoption("--update-golden"):
            path.write_text(text, encoding="utf-8")
        assert path.exists(), f"{path} is missing: pytest --update-golden"
        assert text == path.read_text(encoding="utf-8")

    return check
