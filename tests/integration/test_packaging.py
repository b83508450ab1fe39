"""The package as it is built, shipped and installed; and what a build says of what it leaves out.

Dependencies of the fresh environments are borrowed from this one, except in the long form, which asks the index.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from dataclasses import dataclass
from pathlib import Path

import pytest

REPO = Path(__file__).resolve().parents[2]
LINKS = {"analyzers": "../analyzers", "instrument": "../instrument"}
SCRIPTS = Path(sysconfig.get_path("scripts"))
PATH = f"{SCRIPTS}{os.pathsep}{os.environ['PATH']}"
CMAKE, NINJA = (shutil.which(name, path=PATH) for name in ("cmake", "ninja"))
HAS_LIBFABRIC = any(
    Path(folder, "rdma/providers/fi_prov.h").is_file() for folder in ("/usr/include", "/usr/local/include")
)
# Build for the build's sake: what is tested is what goes where.
FAST = ("-C", "cmake.build-type=Debug", "-C", "cmake.define.EFAPROF_CUDA=OFF")

needs_backend = pytest.mark.skipif(
    not (CMAKE and NINJA and importlib.util.find_spec("scikit_build_core")),
    reason="no scikit-build-core, cmake and ninja here: make native",
)
needs_libfabric = pytest.mark.skipif(not HAS_LIBFABRIC, reason="no libfabric headers: apt install libfabric-dev")


def run(*command: str | Path, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run to the end, without what the shell that started the tests set for efaprof and Python."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("EFAPROF_", "PYTHON"))}
    return subprocess.run(
        [*map(str, command)], cwd=cwd, env={**inherited, "PATH": PATH, **environment}, capture_output=True, text=True,
        timeout=280, check=False,
    )  # fmt: skip


def ran(*command: str | Path, cwd: Path) -> str:
    """Its output; it must end well."""
    done = run(*command, cwd=cwd)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout


@dataclass(frozen=True)
class Environment:
    """A virtual environment of its own."""

    folder: Path

    @property
    def python(self) -> Path:
        return self.folder / "bin" / "python"

    @property
    def efaprof(self) -> Path:
        return self.folder / "bin" / "efaprof"

    @property
    def packages(self) -> Path:
        (found,) = self.folder.glob("lib/python*/site-packages")
        return found

    def pip(self, *words: str | Path, cwd: Path) -> None:
        """Run this environment's pip."""
        ran(self.python, "-m", "pip", "--disable-pip-version-check", "-qq", *words, cwd=cwd)


def environment(folder: Path, *, borrow: bool) -> Environment:
    """A fresh environment; `borrow`: behind its own packages those of this one, whose .pth files are not run."""
    venv.create(folder, with_pip=True)
    made = Environment(folder)
    if borrow:
        (made.packages / "borrowed.pth").write_text(f"{sysconfig.get_path('purelib')}\n")
    return made


def copy_of_the_tree(folder: Path) -> Path:
    """The files that git knows or would add, as they stand here; links stay links."""
    if not (REPO / ".git").exists():
        shutil.copytree(REPO, folder, symlinks=True, ignore=shutil.ignore_patterns("build", ".*", "__pycache__"))
        return folder
    listed = ("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard")
    names = subprocess.run(listed, cwd=REPO, capture_output=True, text=True, check=True).stdout
    for name in filter(None, names.split("\0")):
        if not os.path.lexists(REPO / name):
            continue  # removed here, not yet in the index
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(REPO / name, folder / name, follow_symlinks=False)
    return folder


@pytest.fixture(scope="module")
def sdist(tmp_path_factory) -> Path:
    tree = copy_of_the_tree(tmp_path_factory.mktemp("tree") / "efaprof")
    out = tmp_path_factory.mktemp("sdist")
    code = "import sys; from scikit_build_core.build import build_sdist; print(build_sdist(sys.argv[1]))"
    ran(sys.executable, "-c", code, out, cwd=tree)
    (made,) = out.iterdir()
    return made


@pytest.fixture(scope="module")
def unpacked(sdist, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("unpacked")
    with tarfile.open(sdist) as archive:
        archive.extractall(folder, filter="data")
    (made,) = folder.iterdir()
    return made


@pytest.fixture(scope="module")
def wheel(unpacked, tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("wheel")
    words = ("-m", "pip", "wheel", "-qq", "--no-deps", "--no-build-isolation", *FAST, "-w", out, ".")
    ran(sys.executable, *words, cwd=unpacked)
    (made,) = out.glob("*.whl")
    return made


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory) -> Environment:
    made = environment(tmp_path_factory.mktemp("installed") / "venv", borrow=True)
    made.pip("install", "--no-deps", wheel, cwd=wheel.parent)
    return made


def links(tree: Path) -> dict[str, str]:
    """Where the links between the packages lead."""
    return {name: str((tree / "efaprof" / name).readlink()) for name in LINKS}


# ---- what is shipped ---------------------------------------------------------------------------


@pytest.mark.skipif(not (REPO / ".git").exists(), reason="not a git checkout")
def test_a_clone_keeps_the_links_between_the_packages(tmp_path):
    ran("git", "clone", "-q", "--depth", "1", f"file://{REPO}", tmp_path / "clone", cwd=tmp_path)
    assert links(tmp_path / "clone") == LINKS
    assert (tmp_path / "clone" / "efaprof" / "analyzers" / "__init__.py").is_file()


@needs_backend
def test_an_sdist_holds_everything_that_a_build_and_the_tests_need(unpacked):
    assert links(unpacked) == LINKS
    for name in ("CMakeLists.txt", "native/core/ring.cpp", "instrument/workload/moe.cpp", "examples/fi_client.c",
                 "tests/conftest.py", "bench/events/CMakeLists.txt", "LICENSE", "README.md"):  # fmt: skip
        assert (unpacked / name).is_file(), name
    assert not (unpacked / "build").exists() or not list((unpacked / "build").glob("*/CMakeCache.txt"))


@needs_backend
def test_one_wheel_serves_every_python_and_holds_no_source_of_native_code(wheel):
    assert re.fullmatch(r"efaprof-[0-9.]+-py3-none-linux_\w+\.whl", wheel.name)
    names = zipfile.ZipFile(wheel).namelist()
    assert not [name for name in names if name.endswith((".c", ".cpp", ".h", ".cu", ".cuh", ".map", "CMakeLists.txt"))]
    assert not [name for name in names if name.split("/")[0] in {"analyzers", "instrument", "tests", "bench", "native"}]
    for name in ("efaprof/analyzers/decode.py", "efaprof/instrument/dispatch.py", "efaprof/py.typed",
                 "efaprof/report/schemas/efaprof.attribution.1.json", "efaprof/_lib/libefaprof.so"):  # fmt: skip
        assert name in names
    assert [name for name in names if name.endswith("/licenses/LICENSE")]


@needs_backend
@needs_libfabric
def test_every_library_is_in_the_wheel(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    for name in ("libefaprof-fi.so", "libefaprof-nvtx.so", "libefaprof-fishim.so", "efaprof-dispatch"):
        assert f"efaprof/_lib/{name}" in names


# ---- what is installed -------------------------------------------------------------------------


@needs_backend
def test_an_installed_efaprof_runs_from_anywhere(installed, tmp_path):
    said = ran(installed.efaprof, "--version", cwd=tmp_path)
    assert re.fullmatch(r"efaprof \d+\.\d+\.\d+\n", said)
    checks = json.loads(ran(installed.efaprof, "doctor", "--json", cwd=tmp_path))["checks"]
    states = {check["check"]: (check["state"], check["detail"]) for check in checks}
    state, detail = states["trace core"]
    assert state == "ok"
    assert str(installed.packages / "efaprof" / "_lib" / "libefaprof.so") in detail
    if HAS_LIBFABRIC:
        assert states["libfabric interposer"][0] == "ok"
    run_name = "r"
    ran(installed.efaprof, "record", "-q", "-o", run_name, "--", "true", cwd=tmp_path)
    assert (tmp_path / run_name / "manifest.json").is_file()


@needs_backend
def test_the_packages_have_one_identity(installed, unpacked, tmp_path):
    code = "import efaprof.analyzers.tax as tax, efaprof.instrument; print(tax.__name__, tax.__file__)"
    name, file = ran(installed.python, "-c", code, cwd=tmp_path).split()
    assert (name, Path(file)) == ("efaprof.analyzers.tax", installed.packages / "efaprof" / "analyzers" / "tax.py")
    for package in LINKS:
        done = run(installed.python, "-c", f"import {package}", cwd=tmp_path)
        assert "ModuleNotFoundError" in done.stderr, "it is not installed beside efaprof"
        done = run(installed.python, "-c", f"import {package}", cwd=unpacked)
        assert f"import efaprof.{package}, not {package}" in done.stderr, "in a checkout it is there, and refused"


@needs_backend
def test_an_editable_install_sees_a_new_module_and_needs_no_second_build(wheel, unpacked, tmp_path):
    """In the tree that the wheel was built in: what is compiled there is used again."""
    made = environment(tmp_path / "venv", borrow=True)
    made.pip("install", "--no-deps", "--no-build-isolation", *FAST, "-e", ".", cwd=unpacked)
    (unpacked / "analyzers" / "just_written.py").write_text("ANSWER = 42\n")
    (unpacked / "efaprof" / "cli" / "just_written.py").write_text("ANSWER = 43\n")
    code = "import efaprof.analyzers.just_written as a, efaprof.cli.just_written as b; print(a.ANSWER, b.ANSWER)"
    assert ran(made.python, "-c", code, cwd=tmp_path) == "42 43\n"
    code = "from efaprof import native; print(native.lib_path(), native.clock_id())"
    library, clock = ran(made.python, "-c", code, cwd=tmp_path).split()
    assert Path(library).name == "libefaprof.so"
    assert clock in {"1", "2"}
    assert re.match(r"efaprof \d", ran(made.efaprof, "--version", cwd=tmp_path))


# ---- what a build says -------------------------------------------------------------------------


def configured(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """Configure a build, nothing compiled."""
    assert CMAKE is not None
    return run(CMAKE, "-S", REPO, "-B", folder, *options, cwd=folder.parent)


def lines_about(done: subprocess.CompletedProcess[str], word: str) -> list[str]:
    """What CMake was made to say by us, a message on one line each."""
    said = re.sub(r"\n  (?=\S)", " ", done.stdout + done.stderr)
    return [line for line in said.splitlines() if "efaprof: " in line and word in line]


needs_cmake = pytest.mark.skipif(CMAKE is None, reason="no cmake: make native")
WITHOUT_HEADERS = "-DCMAKE_IGNORE_PATH=/usr/include;/usr/local/include"
WITHOUT_NVCC = "-DEFAPROF_NVCC="  # as if it had been looked for


@needs_cmake
def test_parts_that_are_turned_off_say_so_in_one_line_each(tmp_path):
    done = configured(tmp_path / "b", "-DEFAPROF_LIBFABRIC=OFF", "-DEFAPROF_CUDA=OFF")
    assert done.returncode == 0, done.stderr
    assert lines_about(done, "CUDA") == ["-- efaprof: CUDA parts off (EFAPROF_CUDA=OFF)"]
    assert lines_about(done, "probe") == ["-- efaprof: libfabric probe off (EFAPROF_LIBFABRIC=OFF)"]
    assert lines_about(done, "dispatch") == ["-- efaprof: dispatch workload off (EFAPROF_LIBFABRIC=OFF)"]


@needs_cmake
def test_parts_whose_headers_are_missing_say_what_to_install(tmp_path):
    done = configured(tmp_path / "b", WITHOUT_HEADERS, WITHOUT_NVCC)
    assert done.returncode == 0, done.stderr
    (probe,) = lines_about(done, "probe off")
    (workload,) = lines_about(done, "workload off")
    assert "install libfabric-dev or set EFAPROF_LIBFABRIC_ROOT" in probe
    assert "install libfabric-dev or set EFAPROF_LIBFABRIC_ROOT" in workload
    assert lines_about(done, "CUDA") == [
        "-- efaprof: CUDA parts off: nvcc not found (install the CUDA toolkit, or put it on PATH)"
    ]


@needs_cmake
@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["-DEFAPROF_LIBFABRIC=ON", WITHOUT_HEADERS], "not found: install libfabric-dev or set EFAPROF_LIBFABRIC_ROOT"),
        (["-DEFAPROF_CUDA=ON", WITHOUT_NVCC], "nvcc not found: install the CUDA toolkit, put it on PATH"),
        (["-DEFAPROF_LIBFABRIC=maybe"], "EFAPROF_LIBFABRIC=maybe is none of AUTO, ON, OFF"),
    ],
    ids=["headers", "cuda", "neither"],
)
def test_what_is_insisted_on_and_cannot_be_built_stops_the_build(tmp_path, options, said):
    done = configured(tmp_path / "b", *options)
    assert done.returncode != 0
    (line,) = lines_about(done, "efaprof: ")[-1:]
    assert said in line


# ---- the long form: as a user does it, from the index ----------------------------------------------


@pytest.mark.slow
@needs_backend
def test_pip_install_of_an_sdist_without_libfabric_brings_what_it_needs(sdist, tmp_path):
    made = environment(tmp_path / "venv", borrow=False)
    made.pip("install", "-C", "cmake.define.EFAPROF_LIBFABRIC=OFF", sdist, cwd=tmp_path)
    checks = json.loads(ran(made.efaprof, "doctor", "--json", cwd=tmp_path))["checks"]
    states = {check["check"]: check["state"] for check in checks}
    assert (states["trace core"], states["libfabric interposer"]) == ("ok", "no")
    done = run(made.efaprof, "record", "-o", "r", "--", "true", cwd=tmp_path)
    assert done.returncode == 0
    assert "libefaprof-fi.so was not built" in done.stderr
    said = run(made.efaprof, "bench", "dispatch", cwd=tmp_path)
    assert (said.returncode, said.stdout) == (1, "")
    assert said.stderr.startswith("error: ")
    assert "hint: " in said.stderr


@pytest.mark.slow
@needs_libfabric
def test_a_fresh_clone_installs_and_shows_the_demos_run(tmp_path):
    tree = copy_of_the_tree(tmp_path / "efaprof")
    made = environment(tmp_path / "venv", borrow=False)
    made.pip("install", "-e", ".", cwd=tree)
    ran(made.efaprof, "bench", "dispatch", "--steps", "20", "--warmup", "2", "-o", "r", cwd=tmp_path)
    assert ran(made.efaprof, "attribute", "r", cwd=tmp_path).startswith("efaprof attribute · r · proxy path · 2 ranks")
