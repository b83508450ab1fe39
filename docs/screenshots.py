"""Pictures of the HTML report for the documentation: docs/screenshots/report-WIDTH.png.

    python docs/screenshots.py [RUN [PROFILE]]

Without RUN a short run on an emulated EFA device is calibrated and recorded. Needs chromium (apt-get install chromium).
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

REPO = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(REPO / "tests"))

from chromium import find_chromium  # noqa: E402

FOLDER = REPO / "docs" / "screenshots"
SIZES = ((1280, 2400), (500, 3000))  # a desktop, and the narrowest window of a browser, the page as far as it goes
MOST_BYTES = 300_000
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
    if target.stat().st_size > MOST_BYTES:
        sys.exit(f"{target} has {target.stat().st_size:,} bytes, more than {MOST_BYTES:,}")
    return target


def main() -> None:
    """Make the report and look at it."""
    program = find_chromium()
    if program is None:
        sys.exit("no chromium: apt-get install chromium")
    FOLDER.mkdir(exist_ok=True)
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
