"""Runs scenarios of the program that drives the provider without a network (tests/fakes), recorded or not."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from integration import raw_records


@dataclass(frozen=True, slots=True)
class Driver:
    """Runs scenarios of the fake provider's driver."""

    program: str
    fakes: Path
    folder: Path

    def env(self, mode: str, eagain: int = 0) -> dict[str, str]:
        return {
            "FI_PROVIDER_PATH": str(self.fakes),
            "FI_PROVIDER": "fake",
            "FAKE_MODE": mode,
            "FAKE_EAGAIN": str(eagain),
        }

    def record(self, scenario: str, n: int = 1, *, mode: str = "", eagain: int = 0, env: dict[str, str] | None = None):
        """What it said, as a dict of its lines, and the recording."""
        env = self.env(mode, eagain) | (env or {})
        recording = raw_records.record(self.folder, [self.program, scenario, str(n)], env=env)
        assert recording.codes == [0]
        return facts(recording.stdout[0]), recording

    def run(self, scenario: str, *, mode: str = "", **env: str) -> dict[str, str]:
        outcome = raw_records.run_bare([self.program, scenario], env={**self.env(mode), **env})
        assert outcome.codes == [0]
        return facts(outcome.stdout[0])


def facts(text: str) -> dict[str, str]:
    return dict(line.split(maxsplit=1) for line in text.splitlines())
