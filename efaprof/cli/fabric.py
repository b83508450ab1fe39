"""`efaprof fabric`: what each provider of libfabric really reports, and what it means for dispatch."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from efaprof import env
from efaprof.cli.optional_value import command_with
from efaprof.cli.talk import Quiet
from efaprof.cli.targets import Targets
from efaprof.errors import UsageError

if TYPE_CHECKING:
    from efaprof.libfabric import Libfabric


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("fabric", cls=command_with("--json", "--markdown"))(fabric)


def fabric(
    provider: Annotated[
        str | None, typer.Option(metavar="NAME", help="One provider: tcp, shm, efa, efa-direct, … All when absent.")
    ] = None,
    libfabric: Annotated[
        Path | None, typer.Option(metavar="PATH", help=f"The libfabric.so.1 to ask; also {env.LIBFABRIC}.")
    ] = None,
    as_json: Annotated[
        str | None, typer.Option("--json", metavar="[FILE]", help="JSON (efaprof.fabric/1), to stdout or FILE.")
    ] = None,
    as_markdown: Annotated[
        str | None, typer.Option("--markdown", metavar="[FILE]", help="Markdown, to stdout or FILE.")
    ] = None,
    quiet: Quiet = False,
) -> None:
    """Say what each provider of libfabric really reports, beside RC and SRD, and what it means for MoE dispatch."""
    from efaprof.libfabric.survey import survey
    from efaprof.report.fabric_json import fabric_document
    from efaprof.report.fabric_report import report_on
    from efaprof.report.fabric_sections import fabric_heading, fabric_sections
    from efaprof.report.progress import working

    targets = Targets(as_json, as_markdown)
    library = _library(libfabric, provider)
    emulated = tuple(filter(None, os.environ.get(env.EMULATED, "").split(";")))
    with working("asking libfabric"):
        report = report_on(survey(library, provider), provider=provider, emulated=emulated)
    if not report.providers:
        raise UsageError(
            f"{library.path} (libfabric {report.version}) offers no provider {provider} here",
            hint=f"it offers: {', '.join(library.provider_names())}",
        )
    targets.write(fabric_document(report), fabric_heading(report), fabric_sections(report))


def _library(path: Path | None, provider: str | None) -> Libfabric:
    """The libfabric to ask: the one named, else the first that offers the provider, else any at all."""
    from efaprof.libfabric import NoLibfabric, open_libfabric

    if path is not None or provider is None:
        return open_libfabric(path)
    try:
        return open_libfabric(provider=provider)
    except NoLibfabric:
        return open_libfabric()
