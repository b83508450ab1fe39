"""What the verdict says of bottlenecks made on an emulated EFA device, with the numbers that it rests on.

    python bench/verdicts.py [-o FOLDER] [NAME …]

Every case of tests/softefa_cases.py (or those with NAME in their names): the emulated fabric is calibrated, the
bottleneck made and recorded, the run attributed with that profile. Step costs and profiles stay in FOLDER.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import sys
import tempfile
import time
from pathlib import Path

REPO = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(REPO / "tests"))

from softefa_cases import CASES, attribute, calibrate, efaprof, record  # noqa: E402

from efaprof.session import host  # noqa: E402

PROVIDERS = ("efa-direct", "efa")  # the first that a libfabric here offers on the device


def offered():
    """The provider to use."""
    for name in PROVIDERS:
        words = ("fabric", "--provider", name, "--json")
        asked = efaprof("softefa", "--", sys.executable, "-m", "efaprof", *words, folder=Path())
        if asked.returncode == 0 and json.loads(asked.stdout)["providers"][0]["is_present"]:
            return name
    sys.exit("no libfabric with efa here")


def show(case, decode):
    """One case with everything that its verdict rests on; returns its outcome in a word."""
    made = " ".join((case.emulate, *case.options))
    if decode is None:
        print(f"\n{case.name} ({made})\n  refused: more was done than calibration reached")
        return "abstained"
    verdict, split = decode.verdict, decode.split
    wall = split.wall_us
    words = "/".join(word for word in (verdict.path, verdict.where, verdict.kind) if word)
    is_right = case.is_right(verdict.path) or not (case.right or case.is_wrong(verdict.path))
    outcome = "wrong" if case.is_wrong(verdict.path) else "right" if is_right else "abstained"
    print(f"\n{case.name} ({made})\n  {outcome}: step {verdict.step} · path {words} · grade {verdict.grade}")
    shares = "  ".join(f"{row.layer} {row.share:.0%}" for row in split.layers if row.share >= 0.005)
    print(f"  step {wall.value:,.0f} µs [{wall.lo or 0:,.0f}, {wall.hi or 0:,.0f}], {split.steps} steps   {shares}")
    for failed in decode.failed:
        print(f"  {failed.defect}: {failed.reason}")
    names = [f"{one.name} {one.value:.2f} [{one.lo:.2f}, {one.hi:.2f}]" for one in decode.features.values()]
    for at in range(0, len(names), 4):
        print(f"  {'   '.join(names[at : at + 4])}")
    if verdict.runner_up:
        print(f"  runner-up {verdict.runner_up}")
    if verdict.next_experiment:
        print(f"  next {verdict.next_experiment}")
    return outcome


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("-o", "--output", type=Path)
    parser.add_argument("names", nargs="*")
    given = parser.parse_args()
    chosen = [case for case in CASES if not given.names or any(name in case.name for name in given.names)]
    provider = offered()
    machine = host.describe()
    print(f"{machine.cpu_model or platform.machine()}, {machine.cpus} cores; provider {provider}, emulated device")
    folder = Path(tempfile.mkdtemp())
    outcomes = {}
    try:
        for case in chosen:
            began = time.monotonic()
            run = folder / case.name.replace(" ", "-").replace(",", "")
            try:
                profile = calibrate(case.emulate, folder, provider=provider)
                record(case, run, provider=provider)
            except AssertionError as error:
                print(f"\n{case.name}: cannot be made here: {error}", flush=True)
                continue
            outcomes[case.name] = show(case, attribute(run, profile))
            print(f"  {time.monotonic() - began:.0f} s", flush=True)
            if given.output is not None:
                shutil.copy(profile, given.output)
                shutil.copy(run / "steps.parquet", given.output / f"{run.name}.parquet")
            shutil.rmtree(run)
    finally:
        shutil.rmtree(folder)
    found = list(outcomes.values())
    counts = ", ".join(f"{found.count(word)} {word}" for word in ("right", "abstained", "wrong"))
    print(f"\n{counts} of {len(found)}; load {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
