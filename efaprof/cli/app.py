"""The `efaprof` command: collects the commands and turns our errors into one line, a hint and an exit code."""

from __future__ import annotations

import os
import sys
from importlib import import_module

import typer

from efaprof import __version__
from efaprof.errors import EfaprofError

# One module a command; each has `register(app)`. A command stands here only once it works.
COMMANDS: tuple[str, ...] = (
    "record",
    "attribute",
    "diff",
    "report",
    "info",
    "dump",
    "bench",
    "sweep",
    "doctor",
    "tax",
    "model",
    "export",
    "open_",
    "softefa",
    "fabric",
    "calibrate",
)

app = typer.Typer(
    name="efaprof",
    help="Shows where each decoded token's time goes when an MoE model dispatches over a NIC.",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    add_completion=True,
)


def _print_version(asked: bool) -> None:
    if asked:
        typer.echo(f"efaprof {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: bool = typer.Option(
        False, "--version", help="Print the version and end.", callback=_print_version, is_eager=True
    ),
) -> None:
    """Hold the options that stand before the command."""


def fail(error: EfaprofError) -> int:
    """Print the error's line and hint on stderr; return its exit code."""
    sys.stderr.write(f"error: {error.message}\n")
    if error.hint:
        sys.stderr.write(f"\nhint: {error.hint}\n")
    return error.exit_code


def main() -> None:
    """Run the command line; never returns."""
    # The asked command alone, when it is named first: it starts sooner, and record needs to be alone in the process.
    asked = [name for name in COMMANDS if name == "".join(sys.argv[1:2])]
    for name in asked or COMMANDS:
        import_module(f"efaprof.cli.{name}").register(app)
    try:
        app()
    except EfaprofError as error:
        sys.exit(fail(error))
    except BrokenPipeError:
        # The reader of our stdout went away (`| head`): end quietly, as other filters do.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
