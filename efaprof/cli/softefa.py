"""`efaprof softefa`: run a command on an emulated EFA device."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from efaprof.session.softefa import DEFAULT_DEVICES, SoftEfa, Summary
from efaprof.session.softefa_spec import Emulation, parse_emulation


def register(app: typer.Typer) -> None:
    """Add `softefa` to the command line."""
    # Options end at the first word of CMD: what follows belongs to it, whatever it looks like.
    app.command(context_settings={"allow_interspersed_args": False})(softefa)


def softefa(
    command: Annotated[
        list[str], typer.Argument(metavar="[--] CMD [ARG]...", help="Command to run, and its arguments.")
    ],
    emulate: Annotated[
        str,
        typer.Option(
            metavar="KNOBS",
            help="The wire: rate=100Gbps,ops=2M,pps=2M,latency=12us,reorder=0.3,window=64,loss=0.1%,seed=1, …",
        ),
    ] = "",
    truth: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Log here what the device does with each operation.")
    ] = None,
    devices: Annotated[
        int, typer.Option(metavar="N", min=0, max=1024, help="NICs that are there before a rank opens one.")
    ] = DEFAULT_DEVICES,
    quiet: Annotated[bool, typer.Option("-q", "--quiet", help="Say only what went wrong.")] = False,
) -> None:
    """Run CMD with an emulated EFA device in place of a real one; libfabric's efa and efa-direct work on it unchanged.

    Each process of CMD that opens the device gets a NIC of its own; payload is moved for real, the wire between them
    is a model. The exit code is CMD's own. To record such a run: efaprof softefa -- efaprof record -- CMD.
    """
    emulation = parse_emulation(emulate)
    device = SoftEfa(emulation, truth=truth, devices=devices)
    status = device.run(command, os.environ)
    for line in report(device.summary, emulation, quiet=quiet):
        sys.stderr.write(f"efaprof: {line}\n")
    sys.exit(status)


def report(summary: Summary, emulation: Emulation, *, quiet: bool) -> list[str]:
    """What is said at the end: what to beware of, then what the device did."""
    lines = [f"warning: {warning}" for warning in summary.warnings(emulation)]
    if quiet:
        return lines
    parts = [
        f"emulated {emulation.label}",
        f"{summary.peak_devices} NICs" if summary.peak_devices != 1 else "1 NIC",
        f"{summary.operations:,} operations",
        f"{summary.bytes:,} bytes",
        f"{summary.errors:,} errors",
    ]
    if summary.corrupted:
        parts.append(f"{summary.corrupted:,} corrupted on purpose")
    return [*lines, " · ".join(parts)]
