"""The example server, running: started, asked, stopped."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from types import TracebackType

EXAMPLES = Path(__file__).parent.parent / "examples"
SECONDS = 120
# Small enough for two shared cores: what is measured elsewhere is not measured here.
SMALL = ("--layers", "2", "--hidden", "32", "--experts", "4", "--slots", "4", "--tokens", "8", "--length", "64")


def record(run: Path, *more: str) -> tuple[str, ...]:
    """Words that record what follows."""
    return (sys.executable, "-m", "efaprof", "record", "-o", str(run), *more, "--")


class Server:
    """A running server; `prefix` runs it. At the end it is stopped by SIGTERM if it still runs."""

    def __init__(self, *options: str, prefix: tuple[str, ...] = ()) -> None:
        words = [*prefix, sys.executable, str(EXAMPLES / "serve.py"), "--port", "0", *SMALL, *options]
        # Ends with the test, and may be sent signals as a group.
        self.process = subprocess.Popen(words, stderr=subprocess.PIPE, text=True, process_group=0)
        self.said: list[str] = []
        self._is_ready = threading.Event()
        self.url = ""
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.said.append(line.rstrip("\n"))
            if (found := re.search(r"serve: (http://\S+)", line)) is not None:
                self.url = found[1]
                self._is_ready.set()
        self._is_ready.set()

    def __enter__(self) -> Self:
        assert self._is_ready.wait(SECONDS)
        assert self.url, self.said
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGTERM)
            self.wait()

    def complete(self, prompt: str | list[int], tokens: int) -> str:
        """Its answer."""
        body = json.dumps({"prompt": prompt, "max_tokens": tokens}).encode()
        with urllib.request.urlopen(f"{self.url}/v1/completions", body, timeout=SECONDS) as answer:
            found: dict[str, Any] = json.load(answer)
        return str(found["choices"][0]["text"])

    def load(self, *options: str) -> subprocess.CompletedProcess[str]:
        """Run examples/load.py against it."""
        words = [sys.executable, str(EXAMPLES / "load.py"), "--url", self.url, *options]
        return subprocess.run(words, capture_output=True, text=True, timeout=SECONDS, check=False)

    def ranks(self) -> list[int]:
        """Processes of the ranks, in their order."""
        server = self.server()
        found = []
        for pid in _children(server):
            command = Path(f"/proc/{pid}/cmdline").read_bytes()
            if b"spawn_main" in command:
                found.append(pid)
        return sorted(found)

    def server(self) -> int:
        """The server's own process, below whatever runs it."""
        seen = [self.process.pid]
        for pid in seen:  # grows
            words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            if len(words) > 1 and words[1].endswith(b"serve.py"):
                return pid
            seen += _children(pid)
        raise AssertionError(seen)

    def stop(self, number: int, pid: int | None = None) -> int:
        """Send a signal, to the process that was started unless another is meant; the exit code of that one."""
        os.kill(self.process.pid if pid is None else pid, number)
        return self.wait()

    def wait(self) -> int:
        """Exit code."""
        code = self.process.wait(SECONDS)
        self._reader.join(SECONDS)
        if self.process.stderr is not None:
            self.process.stderr.close()
        return code


def _children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
