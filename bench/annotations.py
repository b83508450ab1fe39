"""What annotations and NVTX ranges cost a Python program, unrecorded, recorded and stopped: ratios to nullcontext."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import time
from contextlib import nullcontext
from pathlib import Path

from efaprof import env
from efaprof.session import host

BATCHES, BATCH = 400, 500
EFAPROF = [sys.executable, "-m", "efaprof"]
LABELS = {
    "nullcontext": "with contextlib.nullcontext()",
    "span": 'with efaprof.span("name")',
    "step": 'with efaprof.step(kind="decode", tokens=4, batch=4)',
    "call": "call of an empty function",
    "decorated": "call of the same, decorated by efaprof.span",
    "nvtx": "nvtx push and pop, domain and attributes kept",
    "annotate": 'with nvtx.annotate("name")',
}


def statements() -> dict[str, object]:
    """What is measured, as functions that do it BATCH times."""
    import efaprof

    def empty() -> None:
        return None

    decorated = efaprof.span("decorated")(empty)

    def nullcontexts() -> None:
        for _ in range(BATCH):
            with nullcontext():
                pass

    def spans() -> None:
        for _ in range(BATCH):
            with efaprof.span("name"):
                pass

    def steps() -> None:
        for _ in range(BATCH):
            with efaprof.step(kind="decode", tokens=4, batch=4):
                pass

    def calls() -> None:
        for _ in range(BATCH):
            empty()

    def decorated_calls() -> None:
        for _ in range(BATCH):
            decorated()

    made = {"nullcontext": nullcontexts, "span": spans, "step": steps, "call": calls, "decorated": decorated_calls}
    if importlib.util.find_spec("nvtx") is None:
        return made
    import nvtx

    domain = nvtx.get_domain("bench")
    attributes = domain.get_event_attributes("name")

    def nvtx_pairs() -> None:
        for _ in range(BATCH):
            domain.push_range(attributes)
            domain.pop_range()

    def annotations() -> None:
        for _ in range(BATCH):
            with nvtx.annotate("name"):
                pass

    return made | {"nvtx": nvtx_pairs, "annotate": annotations}


def measure() -> None:
    """Print ns of one statement each, the smallest of the batches' means, as JSON; `stopped` as only argument stops."""
    import efaprof

    if "stopped" in sys.argv:
        efaprof.stop()
    smallest: dict[str, float] = {}
    made = statements()
    for _ in range(BATCHES):  # in turn, so that a busy moment of the machine hits all of them
        for name, function in made.items():
            start = time.perf_counter_ns()
            function()
            ns = (time.perf_counter_ns() - start) / BATCH
            smallest[name] = min(ns, smallest.get(name, ns))
    print(json.dumps(smallest))


def run(*, is_recorded: bool, argument: str = "") -> dict[str, float]:
    """One process of `measure`."""
    program = [sys.executable, __file__, "measure", argument]
    clean = {name: value for name, value in os.environ.items() if name != env.RING_DIR}
    with tempfile.TemporaryDirectory() as folder:
        recording = [*EFAPROF, "record", "-q", "--probes", "nvtx", "-o", str(Path(folder, "run")), "--"]
        command = recording + program if is_recorded else program
        done = subprocess.run(command, env=clean, check=True, capture_output=True, text=True)
    return json.loads(done.stdout)


def main() -> None:
    """Print the table."""
    runs = {
        "unrecorded": run(is_recorded=False),
        "recorded": run(is_recorded=True),
        "stopped": run(is_recorded=True, argument="stopped"),
    }
    machine = host.describe()
    print(f"annotations · {machine.cpu_model} · {machine.cpus} cores · Python {sys.version.split()[0]}")
    print(f"ns, the smallest of {BATCHES} batches of {BATCH}; × is to nullcontext of the same process\n")
    print(f"{'':54}" + "".join(f"{name:>22}" for name in runs))
    for name, label in LABELS.items():
        cells = [
            f"{row[name]:9,.0f} ns {row[name] / row['nullcontext']:6.2f} ×" if name in row else "-"
            for row in runs.values()
        ]
        print(f"{label:54}" + "".join(f"{cell:>22}" for cell in cells))


if __name__ == "__main__":
    measure() if "measure" in sys.argv else main()
