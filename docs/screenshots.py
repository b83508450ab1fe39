"""Pictures for the documentation: the HTML report (docs/screenshots/report-WIDTH.png), or a run in the Perfetto UI.

    python docs/screenshots.py [RUN [PROFILE]]
    python docs/screenshots.py --timeline NAME RUN      docs/screenshots/NAME.png: the run's longest step

Without RUN a short run on an emulated EFA device is calibrated and recorded. Needs chromium (apt-get install chromium).
"""

from __future__ import annotations

import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

REPO = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(REPO / "tests"))

from chromium import Page, find_chromium  # noqa: E402

FOLDER = REPO / "docs" / "screenshots"
SIZES = ((1280, 2400), (500, 3000))  # a desktop, and the narrowest window of a browser, the page as far as it goes
MOST_BYTES = 300_000
TIMELINE_SIZE = (1500, 1050)
SETTLE_S = 4.0
EMULATE = ("--provider", "efa-direct", "--emulate", "rate=100Mbps,latency=1ms")  # slow: the machine hardly matters


def efaprof(*arguments: str | Path) -> None:
    """The command, to a good end."""
    subprocess.run([sys.executable, "-m", "efaprof", *map(str, arguments)], check=True, stdout=subprocess.DEVNULL)


def make(folder: Path) -> tuple[Path, Path]:
    """A recorded run and its profile."""
    efaprof("calibrate", *EMULATE, "-o", folder / "profile.json")
    efaprof("bench", "dispatch", *EMULATE, "--layers", "2", "--steps", "200", "-o", folder / "run")
    return folder / "run", folder / "profile.json"


def shoot(program: str, page: Path, profile: Path, size: tuple[int, int]) -> Path:
    """The page in a window of that size."""
    target = FOLDER / f"report-{size[0]}.png"
    subprocess.run(
        [
            program, "--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars",
            f"--user-data-dir={profile}", f"--window-size={size[0]},{size[1]}", f"--screenshot={target}", page.as_uri(),
        ],
        check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=120,
    )  # fmt: skip
    return small_enough(target)


def small_enough(target: Path) -> Path:
    """The picture, if it may stand in the repository."""
    if target.stat().st_size > MOST_BYTES:
        sys.exit(f"{target} has {target.stat().st_size:,} bytes, more than {MOST_BYTES:,}")
    return target


def shoot_timeline(program: str, name: str, run: Path) -> Path:
    """The longest step in the bundled Perfetto UI, every group opened."""
    target = FOLDER / f"{name}.png"
    opening = subprocess.Popen(
        [sys.executable, "-m", "efaprof", "open", "--local", "--keep", "--worst-step", str(run)],
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
    )  # fmt: skip
    try:
        assert opening.stdout is not None
        url = opening.stdout.readline().strip()
        with tempfile.TemporaryDirectory() as profile, Page(program, Path(profile), TIMELINE_SIZE) as page:
            page.go(url)
            page.wait_for("document.querySelectorAll('.pf-track').length > 3")
            page.wait_for("document.body.innerText.includes('efaprof_step_layers')")
            time.sleep(SETTLE_S)  # the canvas says of nothing that it is drawn
            target.write_bytes(page.screenshot())
    finally:
        opening.send_signal(signal.SIGINT)
        opening.communicate(timeout=60)
    return small_enough(target)


def main() -> None:
    """Make the report and look at it, or look at a timeline."""
    program = find_chromium()
    if program is None:
        sys.exit("no chromium: apt-get install chromium")
    FOLDER.mkdir(exist_ok=True)
    if sys.argv[1:2] == ["--timeline"]:
        _, _, picture, timeline = sys.argv
        sys.stdout.write(f"{shoot_timeline(program, picture, Path(timeline))}\n")
        return
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        given = [Path(word) for word in sys.argv[1:]]
        run, *profiles = given or make(folder)
        options = [word for path in profiles for word in ("--profile", path)]
        efaprof("report", run, *options, "-o", folder / "report.html")
        for size in SIZES:
            sys.stdout.write(f"{shoot(program, folder / 'report.html', folder / 'browser', size)}\n")


if __name__ == "__main__":
    main()
