"""What every picture by matplotlib has in common: its colours, how it is opened and written."""

from __future__ import annotations

from typing import TYPE_CHECKING

from efaprof.errors import UsageError

if TYPE_CHECKING:
    from pathlib import Path

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# The host path is orange and the kernel-posted path violet in every picture of ours; the control arm is neutral.
HOST_PATH = ("#e8710a", "#b45309", "#f6a04d", "#7c3a03")
KERNEL_POSTED = ("#7b3fe4", "#5b21b6", "#a78bfa", "#3b0f82")
NEUTRAL = ("#6b7280", "#9ca3af", "#374151")
SUFFIXES = (".svg", ".png")
_DPI = 160


def new_figure(path: Path, *, width: float, height: float) -> Figure:
    """An empty figure for that file, in inches; UsageError for another suffix and without matplotlib."""
    if path.suffix.lower() not in SUFFIXES:
        raise UsageError(f"{path} is neither .svg nor .png", hint="--plot FILE.svg")
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        raise UsageError("the plot needs matplotlib", hint="pip install 'efaprof[plot]'") from None
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def write_figure(figure: Figure, path: Path) -> None:
    """Write it; UsageError where that is not possible."""
    try:
        figure.savefig(path, dpi=_DPI)
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror}", hint="choose another file") from error


def plain(axes: Axes) -> None:
    """A grid, and no box around it."""
    axes.set_axisbelow(True)
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
