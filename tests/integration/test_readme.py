"""The README is true: its commands run, its table is the command line's, its sample looks like what is printed."""

from __future__ import annotations

import http.client
import json
import os
import re
import shlex
import subprocess
import sysconfig
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from recording import EFAPROF, efaprof

from efaprof import native
from efaprof.errors import EfaprofError
from efaprof.ingest import synth
from efaprof.instrument import dispatch
from efaprof.trace.layers import Layer

REPO = Path(__file__).resolve().parents[2]
README = (REPO / "README.md").read_text(encoding="utf-8")
# Run otherwise than by typing them: the demo's script below, the suite by whoever runs this, pip by test_packaging.py.
ELSEWHERE = ("make demo", "make test", "pip install .", "efaprof open")


@dataclass(frozen=True)
class Line:
    """A command of a console block, and what stands behind it."""

    command: str
    comment: str


def console_lines() -> list[Line]:
    blocks = re.findall(r"^```console\n(.*?)^```", README, re.MULTILINE | re.DOTALL)
    parts = [line.partition("#") for block in blocks for line in block.splitlines() if line.strip()]
    return [Line(command.strip(), comment.strip()) for command, _, comment in parts]


def sample() -> list[str]:
    """Lines of the pasted output; … stands for lines left out."""
    (block,) = re.findall(r"^```\n(per token.*?)^```", README, re.MULTILINE | re.DOTALL)
    return [line for line in block.splitlines() if line.strip() not in {"", "…"}]


def table_commands() -> list[str]:
    """Every command in the first column of the table of commands."""
    table = README.split("| command | what it does |")[1].split("\n\n")[0]
    rows = [row.split(" | ")[0] for row in table.splitlines() if row.startswith("| `")]
    return [command for row in rows for command in re.findall(r"`([^`]+)`", row)]


def words_of(command: str) -> str:
    """`efaprof bench dispatch --x Y` → `bench dispatch`: what the command line calls it."""
    return " ".join(re.match(r"efaprof((?: [a-z][a-z-]*)+)", command)[1].split())  # type: ignore[index]


def helped(*words: str) -> str:
    """What --help prints."""
    return subprocess.run(
        [*EFAPROF, *words, "--help"], capture_output=True, text=True, check=True, env={**os.environ, "COLUMNS": "200"}
    ).stdout


def listed_commands() -> set[str]:
    return set(re.findall(r"^  ([a-z][a-z-]*)  ", helped().split("Commands:")[1], re.MULTILINE))


# ---- words ------------------------------------------------------------------------------------


def test_it_fits_two_hundred_lines_of_a_terminal_and_a_half():
    lines = README.splitlines()
    assert len(lines) < 200
    assert max(len(line) for line in lines if not line.startswith("|")) <= 152


def test_the_table_names_the_commands_that_help_lists_and_no_other():
    assert {words_of(command).split()[0] for command in table_commands()} == listed_commands()


def test_options_that_stand_beside_a_command_exist():
    named: dict[str, set[str]] = {}
    for line in [*console_lines(), *(Line(command, "") for command in table_commands())]:
        if line.command.startswith("efaprof "):
            options = re.findall(r"(?<![\w-])--[a-z][a-z-]+", f"{line.command} {line.comment}")
            named.setdefault(words_of(line.command), set()).update(options)
    for command, options in named.items():
        shown = helped(*command.split()) if options else ""
        assert {option for option in options if option not in shown} == set(), command


def test_links_lead_somewhere():
    targets = [target for target in re.findall(r"\]\(([^)#]+)\)", README) if "://" not in target]
    assert targets
    assert [target for target in targets if not (REPO / target).exists()] == []


@pytest.mark.skipif(not (REPO / "Makefile").is_file(), reason="no Makefile: not a checkout")
def test_make_has_the_targets_that_are_named():
    listed = subprocess.run(["make", "-s", "-C", REPO, "help"], capture_output=True, text=True, check=True).stdout
    named = set(re.findall(r"`make ([a-z-]+)`|^make ([a-z-]+)", README, re.MULTILINE))
    assert {first or second for first, second in named} <= {line.split()[0] for line in listed.splitlines()}


# ---- commands ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def program(build_dir) -> str:
    """What stands for PROGRAM ARGS: a real libfabric program, its own target."""
    client = build_dir / "bin" / "efaprof_client"
    if not client.exists():
        pytest.skip("no efaprof_client: apt install libfabric-dev; make native")
    return f"{client} --self --op write --count 500"


@pytest.fixture(scope="module")
def recorded(program, tmp_path_factory) -> Path:
    """A folder in which the README's first line was typed."""
    folder = tmp_path_factory.mktemp("readme")
    done = typed("efaprof record -- PROGRAM ARGS", folder, program)
    assert done.returncode == 0, done.stderr
    assert re.search(
        r"^efaprof: next: efaprof attribute efaprof-efaprof_client-\d{8}-\d{6}-\d+$", done.stderr, re.MULTILINE
    )
    return folder


def typed(command: str, folder: Path, program: str = "true", *more: str) -> subprocess.CompletedProcess[str]:
    """Type it, with real names for its words in capitals."""
    values = {
        "[opts] ": "",
        "[--] CMD…": f"-- {program}",
        "CMD…": program,
        "PROGRAM ARGS": program,
        " [RUN]": "",
        "NAME=PATH…": "a=a --arm b=b --baseline b",
        "A… -- B…": f"{program} -- {program}",
    }
    for word, value in values.items():
        command = command.replace(word, value)
    assert "…" not in command
    first, *words = shlex.split(command)
    assert first == "efaprof"
    return efaprof(*words, *more, cwd=folder)


def test_every_line_of_the_console_blocks_is_one_that_is_tested():
    known = [*ELSEWHERE, *(command for command, _ in CONSOLE), "efaprof record -- PROGRAM ARGS"]
    assert [line.command for line in console_lines() if line.command not in known] == []


CONSOLE = [
    ("efaprof attribute", r"^efaprof attribute · efaprof-efaprof_client-\S+ · libfabric path"),
    ("efaprof attribute --json - --strict", r'^\{\n "schema": "efaprof.attribution/1"'),
    ("efaprof export", r"^efaprof-efaprof_client-\S+/trace\.pftrace(\.gz)?\n$"),
]


@pytest.mark.parametrize(("command", "shape"), CONSOLE)
def test_a_line_of_the_console_block_prints_what_it_says(recorded, command, shape):
    assert command in [line.command for line in console_lines()]
    done = typed(command, recorded)
    assert done.returncode == 0, done.stderr
    assert re.search(shape, done.stdout), done.stdout[:300]
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("form", ["parquet", "csv", "chrome"])
def test_the_other_formats_are_the_named_ones(recorded, form):
    (line,) = [line for line in console_lines() if line.command == "efaprof export"]
    assert form in line.comment
    done = efaprof("export", "--format", form, "-o", f"out-{form}", cwd=recorded)
    assert done.returncode == 0, done.stderr
    assert (recorded / f"out-{form}").exists()


TABLE = {
    "record": ((), r"^$"),
    "attribute": ((), r"^efaprof attribute · "),
    "report": (("-o", "page.html"), r"page\.html"),
    "diff": ((), r"^efaprof diff · 1 A, 1 B runs · "),
    "bench dispatch": (
        ("--steps", "5", "--warmup", "1", "--layers", "2", "--compute-us", "0", "-o", "bench"),
        r"5 steps of 2 layers.*verified",
    ),
    "bench limits": (("--emulate", "latency=10us,reorder=0.5"), r"atomic fetch-add +fails .*\n.*order +fails "),
    "bench ring": (("--commands", "20000", "--trips", "500"), r"pushed and verified"),
    "tax": ((), r"ms/token"),
    "model": ((), r"14\.789"),
    "export": (("--format", "csv", "-o", "table"), r"^table\b"),
    "info": ((), r"^run|\boperations  \d"),
    "dump": (("--limit", "3"), r"^# "),
    "softefa": ((), r"^$"),
    "fabric": (("--provider", "tcp"), r"\btcp\b"),
    "calibrate": (("--duration-ms", "20"), r"^ceilings  rate "),
    "sweep dispatch": (
        ("-o", "sweep", "--", "--steps", "20", "--warmup", "1", "--layers", "2", "--compute-us", "0"),
        r"^efaprof sweep · sweep · 3 runs",
    ),
    "doctor": ((), r"^clock +"),
}


@pytest.fixture(scope="module")
def exports(recorded) -> Path:
    """Exports of two arms, where the README's tax command looks for them."""
    for arm, base in (("a", 52.0), ("b", 36.0)):
        requests = synth.waves([base + 0.02 * (wave % 3) for wave in range(6)], concurrency=4, tokens=32)
        synth.write_cell(recorded / arm / "c4", requests, concurrency=4, start_time="2026-05-28T20:26:40")
    return recorded


@pytest.mark.parametrize("command", [command for command in table_commands() if words_of(command) != "open"])
def test_a_command_of_the_table_runs(exports, program, command, request):
    words = words_of(command)
    if words == "softefa" and not native.lib_path("libefaprof.so").with_name("softefa").is_dir():
        pytest.skip("the emulated device is not built: apt install libibverbs-dev")
    more, shape = TABLE[words]
    # A program, or a run for what needs steps.
    given = {"record": program, "diff": str(request.getfixturevalue("demo").run) if words == "diff" else ""}
    done = typed(command, exports, given.get(words, "true"), *more)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    if words != "record":  # its stdout is the program's
        assert re.search(shape, done.stdout, re.MULTILINE), done.stdout[:500]


@pytest.mark.parametrize(
    "command", [line.command for line in console_lines() if line.command.startswith("efaprof open")]
)
def test_open_serves_the_run_once(recorded, command):
    served = subprocess.Popen(
        [*EFAPROF, *shlex.split(command)[1:], "--port", "0"], cwd=recorded, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    with served:
        assert served.stdout is not None
        url = served.stdout.readline().strip()
        address = urlsplit(parse_qs(urlsplit(url).fragment.partition("?")[2])["url"][0])
        connection = http.client.HTTPConnection(address.netloc, timeout=20)
        connection.request("GET", address.path)
        assert connection.getresponse().read()
        connection.close()
        _, said = served.communicate(timeout=60)
    assert served.returncode == 0, said


# ---- the pasted output ------------------------------------------------------------------------


@dataclass(frozen=True)
class Demo:
    """What `make demo` printed, with fewer steps, and the report that it left."""

    run: Path
    lines: list[str]
    document: dict[str, Any]


@pytest.fixture(scope="module")
def demo(tmp_path_factory) -> Demo:
    script, scripts = REPO / "examples" / "demo.sh", Path(sysconfig.get_path("scripts"))
    if not script.is_file() or not (scripts / "efaprof").exists():
        pytest.skip("no installed efaprof beside this Python: make install")
    try:
        dispatch.binary()
    except EfaprofError as error:
        pytest.skip(error.message)
    environment = {**os.environ, "BIN": str(scripts), "RUN": "run", "STEPS": "40"}
    folder = tmp_path_factory.mktemp("demo")
    done = subprocess.run(
        ["bash", script], cwd=folder, env=environment, capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stderr
    document = json.loads((folder / "run" / "attribution.json").read_text())
    return Demo(folder / "run", done.stdout.splitlines(), document)


def test_the_demo_shows_table_verdict_timeline_and_what_to_type_next(demo):
    text = "\n".join(demo.lines)
    assert re.search(r"^verdict  step .* · path ", text, re.MULTILINE)
    assert re.search(r"^delivery L3 ", text, re.MULTILINE)
    assert re.search(r"^run/trace\.pftrace(\.gz)?$", text, re.MULTILINE)
    assert re.search(r"^next: \S+efaprof open run ", text, re.MULTILINE)


def test_the_demos_layers_sum_to_its_steps_and_nothing_was_lost(demo):
    made = demo.document
    assert (made["steps"], made["steps_excluded"]) == (40, {"warm-up": 20})
    assert made["conservation_error_ns"] == 0
    assert sum(layer["us"]["value"] for layer in made["layers"]) == pytest.approx(made["wall_us"]["value"], rel=1e-9)
    assert made["coverage"] >= 0.99
    assert (made["drops"], made["unmatched"]) == (0, {})
    assert made["operations"]["per_step"]["count"] == pytest.approx(made["operations"]["predicted"])
    assert (made["operations"]["mismatches"], made["delivery"]["level"]) == (0, 3)
    assert made["verdict"]["path"]


NUMBER = r"[±+-]?(?:\d{1,3}(?: \d{3})+|\d+)(?:\.\d+)?"  # 1 204 331 is one


def shape(line: str) -> str:
    """The line without its numbers, its bar and its widths: what stays the same from run to run."""
    line = re.sub(r"[\u2588-\u258f]+", "", line)
    line = re.sub(NUMBER, "#", line)
    line = re.sub(r"(?<=# )(ns|µs|ms|s)\b", "time", line)
    line = re.sub(r"\[#, #\]|\(no interval: too few batches\)", "interval", line)
    return re.sub(r" +", " ", line).strip()


def test_every_line_of_the_sample_is_of_the_real_form(demo):
    layers = {layer.value for layer in Layer}
    real = {shape(line) for line in demo.lines}
    table = demo.lines[: next(number for number, line in enumerate(demo.lines) if line.startswith("together"))]
    rows = {line.split()[0]: shape(line) for line in table if line.split() and line.split()[0] in layers}
    for line in sample():
        word = line.split()[0]
        if word in layers:
            # A cell without a value is a dash; which ones are depends on the run.
            assert len(shape(line).replace("–", "#").split()) == len(rows[word].replace("–", "#").split()), line
        elif word in {"verdict", "because"}:
            assert any(found.split()[:2] == line.split()[:2] for found in demo.lines if found.strip()), line
        else:
            assert shape(line) in real, line
