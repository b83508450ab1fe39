"""One recording from its start to its end."""

from __future__ import annotations

import os
import resource
import shutil
import time
import traceback
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from efaprof import __version__, env, native
from efaprof.errors import RecordError
from efaprof.session import cpu, cuda, finish, hooking, host, pyspy, salvage, steps, tally, workspace
from efaprof.session.drain import Loop
from efaprof.session.environment import Wiring, inherited, preloadable, wired
from efaprof.session.launch import Child
from efaprof.session.log import Log
from efaprof.session.nic import NicSampler
from efaprof.session.probes import INTERPOSER, ProbeName
from efaprof.session.ringname import ring_names
from efaprof.trace.header import Clock
from efaprof.trace.manifest import DrainCounts, Manifest
from efaprof.trace.rundir import LOG_NAME, RAW_DIR, SPILL_DIR

if TYPE_CHECKING:
    from efaprof.native import DrainStats
    from efaprof.session.command import Command
    from efaprof.session.live import LiveView
    from efaprof.session.options import RecordOptions
    from efaprof.session.plan import Plan
    from efaprof.session.sample import Sampler
    from efaprof.session.signals import Ending, SignalGate

_OWN_BUFFER = 1 << 20  # bytes of the recorder's own ring; it is swept every second
_SHARE_OF_SHM = 4  # rings take at most this part of the free shared memory
_IDLE_S = 1.0  # how long to sleep when only signals and the program's end matter


class Recorder:
    """Holds what lives as long as a recording does."""

    def __init__(self, options: RecordOptions, command: Command, plan: Plan, run: Path, gate: SignalGate) -> None:
        """Start the command with its rings being drained; on failure nothing is left but the run directory."""
        self._options, self._plan, self._run = options, plan, run
        self._log = Log(run / LOG_NAME)
        self._base = inherited()
        self._is_over = False
        self._manifest: Manifest
        self._warnings: list[str] = []
        self._stats: DrainStats | None = None
        self._ended_realtime_ns: int | None = None
        self._spill_dir = run / SPILL_DIR
        self._workspace = workspace.make(run)
        self._spy = self._python_spy()
        self._live: LiveView | None = None
        try:
            self._open(command)
            self._child = Child(command, self._environment(), gate)
            self._started = time.monotonic()
            _allow_many_files()
        except BaseException:
            if self._live is not None:
                self._live.close()
            self._close_own_ring()
            self._workspace.remove()
            raise
        self._manifest = replace(self._manifest, pid=self._child.pid)
        self._rewrite_manifest()
        self._log.write(f"started {self._options.argv} as process {self._child.pid}")

    def _open(self, command: Command) -> None:
        try:
            self._reserve = finish.Reserve(self._run)
            self._spill_dir.mkdir(mode=0o700)
        except OSError as error:
            raise RecordError(f"{self._run} cannot be written: {error.strerror}", hint="choose another -o") from error
        os.environ[env.RING_DIR] = str(self._workspace.ring_dir)
        os.environ[env.SPILL_DIR] = str(self._spill_dir)
        os.environ[env.BUFFER] = str(_OWN_BUFFER)
        native.set_producer(tally.PARENT)
        native.restart()
        self._drain = native.RingDrain(
            self._workspace.ring_dir,
            self._run / RAW_DIR,
            spill_dir=self._spill_dir,
            max_bytes=self._options.max_size_bytes,
        )
        samplers, emit = self._samplers(), native.counter
        if self._options.live:
            self._live = self._live_view()
            samplers, emit = [*samplers, self._live], self._live.watch(native.counter)
        self._loop = Loop(self._drain, emit, native.sample_clock, samplers)
        self._loop.turn()  # the first clock sample lies before the program's first record
        if self._options.warmup_steps:
            native.pause_for_steps()
        self._manifest = self._first_manifest(command)
        self._manifest.write(self._run)

    def _environment(self) -> dict[str, str]:
        space = os.statvfs(self._workspace.ring_dir)
        preload = tuple(preloadable(path, self._workspace.path) for path in self._plan.preload)
        is_hook_only = self._options.entry is hooking.Entry.HOOK
        wiring = Wiring(
            run=self._run,
            ring_dir=self._workspace.ring_dir,
            spill_dir=self._spill_dir,
            buffer=self._options.buffer_bytes,
            buffer_total=space.f_bavail * space.f_frsize // _SHARE_OF_SHM,
            preload=tuple(path for path in preload if not (is_hook_only and path.endswith(INTERPOSER))),
            libfabric=self._options.libfabric,
            hook=self._hook(preload),
            nvtx=self._plan.nvtx,
            cuda=self._plan.cuda,
            cuda_detail=cuda.told(self._options.cuda),
            steps=steps.counting(self._options),
        )
        return wired(self._base, wiring)

    def _hook(self, preload: tuple[str, ...]) -> hooking.Hook | None:
        """The interposer by its second way in, when it records and was asked to use it."""
        interposer = next((Path(path) for path in preload if path.endswith(INTERPOSER)), None)
        if interposer is None:
            return None
        program, chosen = self._options.argv[0], self._options.libfabric
        return hooking.hook_for(self._options.entry, interposer, self._base, program, chosen)

    def _samplers(self) -> list[Sampler]:
        samplers: list[Sampler] = []
        if self._plan.records(ProbeName.NIC):
            samplers.append(NicSampler(self._plan.nics, self._options.nic_interval_s))
        if self._plan.records(ProbeName.CPU):
            folders = (self._workspace.ring_dir, self._spill_dir)
            samplers.append(cpu.CpuSampler(lambda: ring_names(*folders), self._plan.cgroup))
        if self._spy is not None:
            samplers.append(self._spy)
        return samplers

    def _live_view(self) -> LiveView:
        from efaprof.session.live import LiveView  # brings rich

        return LiveView(self._run, lambda: self._loop.stats)

    def _python_spy(self) -> pyspy.PythonSpy | None:
        program = pyspy.find_program() if self._plan.records(ProbeName.PYTHON) else None
        if program is None:
            return None
        return pyspy.PythonSpy(
            program,
            self._run,
            self._workspace.ring_dir,
            self._base,
            rate_hz=self._options.python_hz,
            is_native=self._options.python_native,
        )

    def _first_manifest(self, command: Command) -> Manifest:
        machine = host.describe()
        quota = self._plan.cgroup.quota_cores if self._plan.cgroup else None
        recorder: dict[str, Any] = {
            salvage.RING_DIR: str(self._workspace.ring_dir),
            salvage.RECORDER_PID: os.getpid(),
            salvage.RECORDER_START: host.process_start(os.getpid()),
            "preload": [str(path) for path in self._plan.preload],
            "cwd": os.getcwd(),  # noqa: PTH109 - its spelling, as the user sees it
        }
        return Manifest(
            program=os.path.basename(command.path),  # noqa: PTH119 - as new_name cuts it
            command=list(self._options.argv),
            efaprof_version=__version__,
            started_realtime_ns=time.time_ns(),
            job_id=host.job_id(self._base),
            rank=host.rank(self._base),
            host=machine.name,
            boot_id=machine.boot_id,
            cpus=machine.cpus,
            cpu_model=machine.cpu_model,
            clock=Clock(native.clock_id()).name.lower(),
            probes=list(self._plan.probes),
            environment=host.snapshot(self._base),
            emulated=[*host.emulated(self._base), *self._options.emulated],
            fingerprint={
                "cpu_model": machine.cpu_model,
                "cpus": machine.cpus,
                "cpu_quota_cores": quota,
                **self._options.fingerprint,
            },
            options={**self._options.for_manifest(), **recorder},
            event_cost_ns=native.event_cost_ns(),
        )

    def run(self) -> Ending:
        """Record until the command has ended."""
        while True:
            wait_s = self._turn()
            if (ending := self._child.wait(wait_s)) is not None:
                self._log.write(f"ended: {ending}")
                return ending

    def _turn(self) -> float:
        """Do what is due; seconds until something is due again."""
        if self._is_over:
            return _IDLE_S
        try:
            until_s = self._loop.turn()
            if native.are_steps_over():
                self._pause("--steps")
                return _IDLE_S
            if self._options.duration_s is None:
                return until_s
            left_s = self._started + self._options.duration_s - time.monotonic()
            if left_s > 0:
                return min(until_s, left_s)
            self._pause("--duration")
        except Exception as error:  # noqa: BLE001 - whatever is wrong with us, the program runs on and is waited for
            self._fail(error)
        return _IDLE_S

    def _fail(self, error: Exception) -> None:
        self._is_over = True
        self._warnings.append(f"recording stopped early, by an error of efaprof: {type(error).__name__}: {error}")
        self._log.write("".join(traceback.format_exception(error)))

    def finish(self, ending: Ending) -> tuple[tally.Tally, tuple[str, ...]]:
        """Copy what is left, close the run; what was captured, and one line for each thing that went wrong."""
        try:
            self._stop()
        except Exception as error:  # noqa: BLE001 - the program's own exit code must still be handed on
            self._fail(error)
        self._write_manifest(ending)
        for warning in self._warnings:
            self._log.write(f"warning: {warning}")
        captured = tally.count(self._run)
        # On a full disk the headers of raw files are behind what the rings said last.
        dropped = max(captured.dropped, self._stats.dropped if self._stats else 0)
        return replace(captured, dropped=dropped), tuple(self._warnings)

    @property
    def notes(self) -> tuple[str, ...]:
        """What probes cost, as far as they say so."""
        return (self._spy.summary,) if self._spy is not None and self._spy.summary else ()

    def _pause(self, option: str) -> None:
        """End recording before the command ends. The rings stay: processes see there that they are not to record."""
        native.pause()
        self._end_onlookers(is_last=False)
        self._loop.sample_all()
        self._drain.poll(everything=True)
        self._is_over = True
        self._ended_realtime_ns = time.time_ns()
        self._log.write(f"recording ended, as {option} says; the command goes on")

    def _end_onlookers(self, *, is_last: bool) -> None:
        """End what looks at the program from outside; with `is_last`, wait for what it has to say."""
        if self._live is not None:
            self._live.close()
        if self._spy is not None and is_last:
            self._spy.stop()
        elif self._spy is not None:
            self._spy.interrupt()

    def _stop(self) -> None:
        """Copy everything once more, remove the rings, judge what was lost."""
        is_early = self._is_over
        self._end_onlookers(is_last=True)
        if not is_early:
            self._loop.sample_all()
            self._ended_realtime_ns = time.time_ns()
        self._warnings.extend(steps.complaints(self._options, native.steps_begun()))
        before = self._drain.poll(everything=True)
        if not self._workspace.ring_dir.is_dir():
            self._warnings.append(
                f"{self._workspace.ring_dir} was removed while recording:"
                " what threads wrote that had started right before is lost"
            )
        self._close_own_ring()
        stats = self._drain.close()
        self._stats = stats
        outcome = finish.Outcome(
            stats=stats,
            captured=tally.count(self._run),
            left=tally.leftovers((self._workspace.ring_dir, self._spill_dir)),
            has_disk_failed=stats.write_errors > before.write_errors,
            ring_dir=self._workspace.ring_dir,
            run=self._run,
            is_early=is_early,
        )
        self._warnings.extend(finish.warnings(outcome, self._plan))
        self._warnings.extend(sampler.complaint for sampler in self._loop.samplers if sampler.complaint)
        if outcome.unwritten:
            self._workspace.unlock()
        else:
            self._workspace.remove()
            shutil.rmtree(self._spill_dir, ignore_errors=True)

    def _close_own_ring(self) -> None:
        """End the recording of this process's own samples."""
        for name in (env.RING_DIR, env.SPILL_DIR, env.BUFFER):
            os.environ.pop(name, None)
        native.restart()

    def _write_manifest(self, ending: Ending) -> None:
        stats = self._stats
        counts = DrainCounts() if stats is None else DrainCounts(
            rings=stats.rings, slots=stats.slots, dropped=stats.dropped, discarded=stats.discarded,
            write_errors=stats.write_errors, bad_rings=stats.bad_rings, last_errno=stats.last_errno,
        )  # fmt: skip
        closed = replace(
            self._manifest,
            ended_realtime_ns=self._ended_realtime_ns or time.time_ns(),
            exit_code=ending.exit_code,
            signal=ending.signal,
            drain=counts,
            warnings=list(self._warnings),
        )
        self._reserve.release()
        self._manifest = closed
        self._rewrite_manifest()

    def _rewrite_manifest(self) -> None:
        try:
            self._manifest.write(self._run)
        except OSError as error:
            self._warnings.append(f"the manifest could not be written: {error.strerror}")


def _allow_many_files() -> None:
    """Lift the limit on open files for the counters of many NICs. After the command started: it keeps the user's."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
