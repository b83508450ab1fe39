"""A headless Chromium driven over its debugging pipe: JSON messages ended by a zero byte, no further package."""

from __future__ import annotations

import base64
import fcntl
import json
import os
import select
import shutil
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

PROGRAMS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")

# Runs a program with two descriptors, both above 4, as its 3 and 4.
_ON_3_AND_4 = (
    "import os, sys; os.dup2(int(sys.argv[1]), 3); os.dup2(int(sys.argv[2]), 4); os.execv(sys.argv[3], sys.argv[3:])"
)


def find_chromium() -> str | None:
    """Path of the first browser found."""
    return next((path for name in PROGRAMS if (path := shutil.which(name))), None)


class Page:
    """One page of a browser of its own; use it in a `with` block."""

    def __init__(self, program: str, profile: Path, size: tuple[int, int] = (1500, 1100)) -> None:
        to_browser, self._write_fd = os.pipe()
        self._read_fd, from_browser = os.pipe()
        # The browser reads descriptor 3 and writes 4; out of the way first, so that neither is overwritten.
        ends = [fcntl.fcntl(fd, fcntl.F_DUPFD, 10) for fd in (to_browser, from_browser)]
        self._process = subprocess.Popen(
            [
                sys.executable, "-c", _ON_3_AND_4, *map(str, ends),
                program, "--headless=new", "--no-sandbox", "--disable-gpu", "--remote-debugging-pipe",
                f"--user-data-dir={profile}", f"--window-size={size[0]},{size[1]}", "about:blank",
            ],
            pass_fds=ends, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        for fd in (to_browser, from_browser, *ends):
            os.close(fd)
        self._buffer = b""
        self._number = 0
        self._session: str | None = None

    def __enter__(self) -> Page:
        target = self._call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self._call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._read_fd)
        os.close(self._write_fd)

    def go(self, url: str) -> None:
        """Open a page; does not wait for it."""
        self._call("Page.navigate", url=url)

    def evaluate(self, script: str) -> Any:
        """Value of an expression in the page."""
        return self._call("Runtime.evaluate", expression=script, returnByValue=True)["result"].get("value")

    def wait_for(self, script: str, timeout_s: float = 90.0) -> Any:
        """Value of an expression once it is true."""
        deadline = time.monotonic() + timeout_s
        while not (value := self.evaluate(script)):
            if time.monotonic() > deadline:
                raise TimeoutError(f"{script} stayed {value!r} for {timeout_s:g} s")
            select.select([], [], [], 0.2)
        return value

    def screenshot(self) -> bytes:
        """The window's contents as a PNG."""
        return base64.b64decode(self._call("Page.captureScreenshot", format="png")["data"])

    def _call(self, method: str, **parameters: Any) -> Any:
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._write_fd, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._receive()
            if answer.get("id") == self._number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']['message']}")
                return answer["result"]

    def _receive(self, timeout_s: float = 60.0) -> Any:
        while b"\0" not in self._buffer:
            if not select.select([self._read_fd], [], [], timeout_s)[0]:
                raise TimeoutError("the browser does not answer")
            data = os.read(self._read_fd, 1 << 20)
            if not data:
                raise ConnectionError("the browser ended")
            self._buffer += data
        message, _, self._buffer = self._buffer.partition(b"\0")
        return json.loads(message)
