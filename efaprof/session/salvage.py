"""Saving the rings of a recorder that was killed into its run directory."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from efaprof import native
from efaprof.errors import EfaprofError
from efaprof.session import host, workspace
from efaprof.session.ringname import ring_names
from efaprof.session.tally import leftovers
from efaprof.trace.manifest import FILE_NAME, DrainCounts, Manifest, read_manifest
from efaprof.trace.rundir import RAW_DIR, SPILL_DIR

if TYPE_CHECKING:
    from efaprof.native import DrainStats

# Keys of Manifest.options that a salvager reads.
RING_DIR, MAX_SIZE, RECORDER_PID, RECORDER_START = "ring_dir", "max_size_bytes", "recorder_pid", "recorder_start"

_SAVED = "the recorder was killed; what was left in the rings was saved afterwards"
_SAVED_AFTER_CLOSE = "what could not be written when the recording ended was saved afterwards"


def is_being_recorded(run: Path, manifest: Manifest) -> bool:
    """A recorder that is alive, on this host and boot, writes this run."""
    if manifest.is_closed or manifest.boot_id != host.boot_id():
        return False
    folder = _workspace_of(manifest)
    if folder is not None and folder.is_dir():
        if (held := workspace.claim(folder)) is None:
            return True
        held.unlock()
        return False
    pid = manifest.options.get(RECORDER_PID)
    return isinstance(pid, int) and host.process_start(pid) == manifest.options.get(RECORDER_START) and run.is_dir()


def salvage_run(run: Path) -> bool:
    """Copy what lies in the rings of a dead recorder into its run; True when there was something to save.

    Does nothing, quickly, for a run that was closed in order, is being recorded or belongs to another host.
    """
    try:
        manifest = read_manifest(run)
    except EfaprofError:
        return False
    folder = _workspace_of(manifest)
    held = workspace.claim(folder) if folder is not None else None
    try:
        return _salvage_spilled(run, manifest) if held is None else _salvage(run, manifest, held)
    except (EfaprofError, OSError):
        return False  # a run that cannot be written can still be read


def salvage_abandoned(*, shm: Path = workspace.SHM) -> list[Path]:
    """Salvage every run of this user whose recorder was killed; return the runs that gained something."""
    saved: list[Path] = []
    for folder in workspace.abandoned(shm=shm):
        if (held := workspace.claim(folder)) is None:
            continue
        run = workspace.run_of(held)
        try:
            manifest = read_manifest(run)
        except EfaprofError:
            if run.is_dir() and not (run / FILE_NAME).exists():
                held.remove()  # killed before it had started its command: there is nothing to save
            else:
                held.unlock()  # the run was moved or removed; `efaprof doctor` names the folder
            continue
        try:
            if _salvage(run, manifest, held):
                saved.append(run)
        except (EfaprofError, OSError):
            continue  # the run cannot be written; the folder stays, and doctor names it
    return saved


def _workspace_of(manifest: Manifest) -> Path | None:
    """The workspace folder that a manifest names. `workspace.claim` checks that it is one of this user's."""
    ring_dir = manifest.options.get(RING_DIR)
    # After a restart of the machine, or on another one, the name can mean somebody else's folder.
    if not isinstance(ring_dir, str) or manifest.boot_id != host.boot_id():
        return None
    return Path(ring_dir).parent


def _salvage_spilled(run: Path, manifest: Manifest) -> bool:
    """Rings that went to the run directory outlive the machine's restart."""
    spill_dir = run / SPILL_DIR
    is_this_host = manifest.host == host.describe().name
    if not is_this_host or not ring_names(spill_dir) or is_being_recorded(run, manifest):
        return False
    stats = _drain(run, manifest, spill_dir)
    _note(run, manifest, stats)
    return stats.slots > 0


def _salvage(run: Path, manifest: Manifest, held: workspace.Workspace) -> bool:
    try:
        stats = _drain(run, manifest, held.ring_dir)
    except EfaprofError:
        held.unlock()
        raise
    left = leftovers((held.ring_dir, run / SPILL_DIR))
    if any(ring.is_alive or ring.waiting for ring in left):
        held.unlock()  # the program runs on and writes into them, or the disk is full: another time
    else:
        held.remove()
        shutil.rmtree(run / SPILL_DIR, ignore_errors=True)
    if stats.slots:
        _note(run, manifest, stats)
    return stats.slots > 0


def _drain(run: Path, manifest: Manifest, ring_dir: Path) -> DrainStats:
    limit = manifest.options.get(MAX_SIZE)
    spill_dir = run / SPILL_DIR
    with native.RingDrain(
        ring_dir,
        run / RAW_DIR,
        spill_dir=spill_dir if spill_dir != ring_dir else None,
        max_bytes=limit if isinstance(limit, int) else 0,
    ) as drain:
        return drain.close()


def _note(run: Path, manifest: Manifest, stats: DrainStats) -> None:
    before = manifest.drain
    drain = DrainCounts(
        rings=max(before.rings, stats.rings),
        slots=before.slots + stats.slots,
        dropped=max(before.dropped, stats.dropped),
        discarded=before.discarded + stats.discarded,
        write_errors=before.write_errors + stats.write_errors,
        bad_rings=max(before.bad_rings, stats.bad_rings),
        last_errno=stats.last_errno or before.last_errno,
    )
    line = _SAVED_AFTER_CLOSE if manifest.is_closed else _SAVED
    warnings = [*(warning for warning in manifest.warnings if warning != line), line]
    replace(manifest, drain=drain, warnings=warnings).write(run)
