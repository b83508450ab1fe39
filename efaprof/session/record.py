"""Recording a command: from its command line to the closed run directory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from efaprof import native
from efaprof.session import output, plan, salvage
from efaprof.session.command import resolve
from efaprof.session.probes import INTERPOSER
from efaprof.session.recorder import Recorder

if TYPE_CHECKING:
    from pathlib import Path

    from efaprof.session.options import RecordOptions
    from efaprof.session.signals import Ending, SignalGate
    from efaprof.session.tally import Tally


@dataclass(frozen=True, slots=True)
class Recording:
    """A recording that ended."""

    run: Path
    program: str
    ending: Ending
    captured: Tally
    warnings: tuple[str, ...]
    salvaged: tuple[Path, ...]  # runs of killed recorders that were saved on the way
    notes: tuple[str, ...] = ()  # what a probe has to say of itself
    is_kept: bool = True  # False: the program refused to run, and everything is as it was before


def record(options: RecordOptions, gate: SignalGate) -> Recording:
    """Run the command, record it, return when it has ended. RecordError when it could not be started."""
    command = resolve(options.argv)
    chosen = plan.make_plan(
        command.program,
        selected=options.probes,
        required=options.require,
        interposer=native.lib_path().with_name(INTERPOSER),
        libfabric=options.libfabric,
        cuda_detail=options.cuda,
    )
    salvaged = tuple(salvage.salvage_abandoned())
    place = output.prepare(options.argv[0], options.output, force=options.force)
    try:
        recorder = Recorder(options, command, chosen, place.path, gate)
    except BaseException:
        place.undo()
        raise
    ending = recorder.run()
    captured, warnings = recorder.finish(ending)
    is_kept = ending.exit_code is None or ending.exit_code != options.refusal_code
    if is_kept:
        place.keep()  # only now: removing gigabytes takes a while, and the rings would fill
    else:
        place.undo()
    return Recording(place.path, options.argv[0], ending, captured, warnings, salvaged, recorder.notes, is_kept)
