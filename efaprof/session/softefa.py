"""The process that emulates EFA devices: starting it, what programs need to be told, what it says at its end.

    device = SoftEfa(parse_emulation("rate=100Gbps"), truth=Path("truth.bin"))
    with device:
        subprocess.run(CMD, env=device.environment(os.environ))
    device.summary.warnings(...)

One process is the NIC of every rank of one fabric. A rank is a process that opens a device: each gets one of its own.
"""

from __future__ import annotations

import contextlib
import ipaddress
import json
import os
import shutil
import signal
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from efaprof import env
from efaprof.errors import EfaprofError, RecordError
from efaprof.native import lib_path
from efaprof.session.command import resolve
from efaprof.session.environment import PRELOAD, merge_preload, preloadable

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from types import TracebackType

    from efaprof.session.softefa_spec import Emulation

_SHM = Path("/dev/shm")
_FROM_TERMINAL = (signal.SIGINT, signal.SIGQUIT)
_FOLDER = "softefa"
_NIC = "efaprof-softefa-nic"
_PRELOADED = ("libibverbs.so.1", "libefa.so.1")
_LIBFABRIC_SHM = "fe80:*_*"
_FABRIC_BYTES = 12  # of a device's address; the rest counts the devices of the fabric
_STOP_S = 10.0  # the process ends at once when asked; past this, something is wrong with it
_LATE_SHARE = 0.05  # of operations that may come late before we say that the machine did not keep up
DEFAULT_DEVICES = 2
DEFAULT_TRUTH_BYTES = 4 << 30


@dataclass(frozen=True, slots=True)
class Summary:
    """What the emulated device did, in its own words."""

    operations: int
    bytes: int
    errors: int  # operations that ended with an error completion
    corrupted: int  # parts that arrived with a flipped bit, on purpose
    bad_entries: int  # queue entries that made no sense
    peak_devices: int
    cq_overruns: int  # completions that overwrote ones not yet read
    channel_overruns: int  # completion events that found their pipe full
    batch_overruns: int  # doorbells that announced more entries than the device says it takes at once
    truth_records: int
    truth_dropped: int
    delivered: int
    late: int  # of `delivered`: by over 5 % of the modelled time and over 2 us
    late_p50_ns: float
    late_p99_ns: float
    late_max_ns: float
    stalls: int  # times that the process, with work to do, did not run for over 100 us
    stall_max_ns: float
    seconds: float

    @property
    def late_share(self) -> float:
        """Share of deliveries that came later than the model says."""
        return self.late / self.delivered if self.delivered else 0.0

    def warnings(self, emulation: Emulation) -> list[str]:
        """What a user must know before trusting numbers from this run."""
        found = []
        if emulation.is_timed and self.late_share > _LATE_SHARE:
            found.append(
                f"this machine did not keep the emulated wire's times: {self.late_share:.0%} of {self.delivered:,}"
                f" deliveries were late (median {self.late_p50_ns / 1e3:.0f} µs, 99 % {self.late_p99_ns / 1e3:.0f} µs);"
                " use a slower wire, fewer ranks or more cores, or compare with the truth log, not with the knobs"
            )
        if self.cq_overruns:
            found.append(f"{self.cq_overruns:,} completions overwrote ones that nobody had read: the CQ is too small")
        if self.channel_overruns:
            found.append(f"{self.channel_overruns:,} completion events were lost: their channel was full")
        if self.batch_overruns:
            found.append(f"{self.batch_overruns:,} doorbells announced more entries than one may (64)")
        if self.truth_dropped:
            found.append(
                f"the truth log lacks {self.truth_dropped:,} operations: it reached its bound, or the disk is full"
            )
        return found


def summary_of(text: str) -> Summary:
    """The summary that the device's process wrote; RecordError when it wrote none."""
    try:
        raw: dict[str, Any] = json.loads(text)
        return Summary(**{name: raw[name] for name in Summary.__dataclass_fields__})
    except (json.JSONDecodeError, KeyError, TypeError) as error:
        raise RecordError(
            "the process of the emulated device ended without its summary: it was killed, or it crashed",
            hint="run it again; if it crashes again, report it with the command line",
        ) from error


class SoftEfa:
    """One emulated fabric. Inside `with`, its process runs; after it, `summary` holds what it did."""

    def __init__(
        self,
        emulation: Emulation,
        *,
        truth: Path | None = None,
        truth_bytes: int = DEFAULT_TRUTH_BYTES,
        devices: int = DEFAULT_DEVICES,
    ) -> None:
        """`devices` are there from the start, idle, for whoever lists NICs; more come with more ranks."""
        self.emulation = emulation
        self.truth = truth.absolute() if truth else None
        self._truth_bytes, self._devices = truth_bytes, devices
        self._process: subprocess.Popen[bytes] | None = None
        self._summary: Summary | None = None
        self.folder = Path()

    @property
    def sysfs(self) -> Path:
        """Root of a tree like /sys, with the devices' counters."""
        return self.folder / "sysfs"

    @property
    def summary(self) -> Summary:
        """What the device did; only after the `with` block."""
        if self._summary is None:
            raise RecordError("the emulated device has not ended yet", hint="ask after the with block")
        return self._summary

    def environment(self, base: Mapping[str, str]) -> dict[str, str]:
        """`base` and what a program needs to find the devices."""
        libraries = tuple(preloadable(_file(name), self.folder) for name in _PRELOADED)
        labels = [label for label in base.get(env.EMULATED, "").split(";") if label]
        added = {
            PRELOAD: merge_preload(libraries, base.get(PRELOAD, "")),
            env.SOFTEFA_DIR: str(self.folder),
            env.SYSFS_PATH: str(self.sysfs),
            env.SYSFS: str(self.sysfs),
            env.EMULATED: ";".join([*labels, self.emulation.label]),
        }
        if self.truth:
            added[env.SOFTEFA_TRUTH] = str(self.truth)
        return {**base, **added}

    def __enter__(self) -> Self:
        self._prepare()
        try:
            self._start()
        except BaseException:
            shutil.rmtree(self.folder, ignore_errors=True)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process is not None
        self._process.terminate()
        try:
            self._process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        try:
            self._read_summary()
        except RecordError:
            if kind is None:  # else what went wrong first is told
                raise
        finally:
            self._remove()

    def run(self, command: Sequence[str], base: Mapping[str, str]) -> int:
        """Run `command` as a child of the device's process, in the foreground; its exit status, 128+N by signal N.

        Stands instead of the `with` block. The device's process is then an ancestor of the ranks, which lets it reach
        their memory also where the kernel grants that to ancestors only.
        """
        resolve(tuple(command))  # a command that is not there is better said by us than by the device
        self._prepare()
        try:
            told = self.environment(base)
            changed = [f"{name}={value}" for name, value in told.items() if base.get(name) != value]
            sets = [word for change in changed for word in ("--set", change)]
            with self._summary_path.open("wb") as summary:
                argv = [*self._argv(), "--summary-fd", str(summary.fileno()), *sets, "--", *command]
                with _passing_signals_on() as receiver:
                    receiver.process = subprocess.Popen(argv, pass_fds=(summary.fileno(),), env=dict(base))
                    status = receiver.process.wait()
            self._read_summary()
            return status if status >= 0 else 128 - status
        finally:
            self._remove()

    def _remove(self) -> None:
        """Remove the folder, and the shared memory that libfabric's efa leaves behind when a rank is killed.

        Its files are named for the device's address, which is of this fabric alone: nobody else's are touched.
        """
        addresses = [path.read_text().strip() for path in self.sysfs.glob("class/infiniband/*/ports/1/gids/0")]
        fabrics = {ipaddress.ip_address(address).packed[:_FABRIC_BYTES] for address in addresses}
        for path in _SHM.glob(_LIBFABRIC_SHM):
            with contextlib.suppress(ValueError, OSError):
                if ipaddress.ip_address(path.name.split("_")[0]).packed[:_FABRIC_BYTES] in fabrics:
                    path.unlink()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _prepare(self) -> None:
        shm = _SHM if os.access(_SHM, os.W_OK) else None
        self.folder = Path(tempfile.mkdtemp(prefix=f"softefa-{os.geteuid()}-", dir=shm))
        if self.truth:
            self.truth.parent.mkdir(parents=True, exist_ok=True)

    def _argv(self) -> list[str]:
        argv = [str(_file(_NIC)), "--dir", str(self.folder), "--model", self.emulation.model]
        argv += ["--devices", str(self._devices)]
        if self.truth:
            argv += ["--truth", str(self.truth), "--truth-most", str(self._truth_bytes)]
        return argv

    def _start(self) -> None:
        ready, told_ready = os.pipe()
        with self._summary_path.open("wb") as summary, os.fdopen(ready, "rb") as answer:
            fds = (told_ready, summary.fileno())
            argv = [*self._argv(), "--ready-fd", str(told_ready), "--summary-fd", str(summary.fileno())]
            try:
                self._process = subprocess.Popen(argv, pass_fds=fds, stdin=subprocess.DEVNULL)
            finally:
                os.close(told_ready)
            if answer.read(1) == b"1":
                return
        code = self._process.wait()
        raise RecordError(f"the emulated device did not start (exit {code})", hint="see the line above")

    def _read_summary(self) -> None:
        self._summary = summary_of(self._summary_path.read_text(encoding="utf-8"))

    @property
    def _summary_path(self) -> Path:
        return self.folder / "summary.json"


@dataclass(slots=True)
class _Receiver:
    process: subprocess.Popen[bytes] | None = None


@contextlib.contextmanager
def _passing_signals_on() -> Iterator[_Receiver]:
    """Signals that end us are the command's to answer: the terminal sends it its own, others are passed on."""
    receiver = _Receiver()

    def pass_on(number: int, frame: object) -> None:
        if number in _FROM_TERMINAL or receiver.process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            receiver.process.send_signal(number)

    before: dict[signal.Signals, Any] = {
        number: signal.signal(number, pass_on)
        for number in (*_FROM_TERMINAL, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
        if signal.getsignal(number) is not signal.SIG_IGN  # what nohup or `&` ignored stays ignored, for all of us
    }
    try:
        yield receiver
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _file(name: str) -> Path:
    try:
        return lib_path(f"{_FOLDER}/{name}")
    except EfaprofError as error:
        raise RecordError(
            f"the emulated device is not part of this installation: {error.message}",
            hint="install libibverbs-dev, then build again: pip install --force-reinstall efaprof",
        ) from error
