"""Options and fixtures that every test may use."""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path
from typing import TYPE_CHECKING

import hypothesis
import pytest

from efaprof import native
from efaprof.errors import EfaprofError

if TYPE_CHECKING:
    from collections.abc import Callable

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


@pytest.fixture(scope="module")
def dispatch_program() -> Path:
    """efaprof-dispatch; without libfabric there is none."""
    try:
        return native.lib_path("efaprof-dispatch")
    except EfaprofError as error:
        pytest.skip(error.message)


@pytest.fixture(scope="module")
def beside_warps(build_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[Path], Path]:
    """Puts a program beside a GPU's kernels that run on a CPU (tests/fakes/warps.cpp); where it is then."""
    library = build_dir / "warps" / "libefaprof-cuda.so"
    if not library.is_file():
        pytest.skip(f"{library} is missing: CUDA's headers were not there")

    def put(program: Path) -> Path:
        folder = tmp_path_factory.mktemp("warps")
        for file in (program, library):
            shutil.copy(file, folder)
        return folder / program.name

    return put


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
