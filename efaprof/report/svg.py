"""Pictures as inline SVG: rectangles, lines and words; every string is escaped, coordinates are rounded."""

from __future__ import annotations

from dataclasses import dataclass, field
from html import escape
from typing import TYPE_CHECKING

from efaprof.trace.layers import Layer

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

# Told apart in grey and by the colour-blind as far as twelve can be; the words stand beside them.
COLOURS = {
    Layer.COMPUTE: "#4c78a8", Layer.LAUNCH: "#9ecae9", Layer.KERNEL: "#f58518", Layer.RING: "#ffbf79",
    Layer.PROXY: "#d6423f", Layer.LIBFABRIC: "#b279a2", Layer.NIC: "#3f8f3a", Layer.RX: "#8cd17d",
    Layer.POLL: "#e3b505", Layer.SKEW: "#8c6d4f", Layer.UNATTRIBUTED: "#8f8f8f", Layer.IDLE: "#d5d1cb",
    Layer.NIC_SKEW: "#66805d",
}  # fmt: skip

_KERNEL_POSTED = "#7b3fe4"  # violet in every picture; plotting.py has it too, and matplotlib with it
_HOST = frozenset({Layer.RING, Layer.PROXY, Layer.LIBFABRIC})


def colours(layers: Iterable[Layer]) -> Mapping[Layer, str]:
    """Colours of a run's layers. A kernel is violet where it posts by itself: then there is no host stage."""
    found = frozenset(layers)
    is_posted = Layer.KERNEL in found and not found & _HOST
    return COLOURS | {Layer.KERNEL: _KERNEL_POSTED} if is_posted else COLOURS


@dataclass(slots=True)
class Drawing:
    """A picture under way; `label` is what it shows, for those who do not see it."""

    width: float
    height: float
    label: str
    _parts: list[str] = field(default_factory=list)

    def rect(self, x: float, y: float, width: float, height: float, fill: str, *, title: str = "") -> None:
        """A filled rectangle; the title is shown when it is pointed at."""
        inside = f"<title>{escape(title)}</title>" if title else ""
        self._parts.append(
            f'<rect x="{x:.2f}" y="{y:.2f}" width="{max(width, 0):.2f}" height="{max(height, 0):.2f}"'
            f' fill="{escape(fill)}">{inside}</rect>'
        )

    def line(self, x1: float, y1: float, x2: float, y2: float) -> None:
        """A thin grey line."""
        self._parts.append(f'<line x1="{x1:.2f}" y1="{y1:.2f}" x2="{x2:.2f}" y2="{y2:.2f}"/>')

    def path(self, points: Sequence[tuple[float, float]], colour: str, *, dash: str = "") -> None:
        """A line through these points; `dash` as SVG writes it, none for a whole one."""
        places = " ".join(f"{x:.2f},{y:.2f}" for x, y in points)
        dashed = f' stroke-dasharray="{escape(dash)}"' if dash else ""
        self._parts.append(
            f'<polyline points="{places}" fill="none" stroke="{escape(colour)}" stroke-width="1.4"{dashed}/>'
        )

    def dot(self, x: float, y: float, radius: float, fill: str, *, title: str = "") -> None:
        """A filled circle; the title is shown when it is pointed at."""
        inside = f"<title>{escape(title)}</title>" if title else ""
        self._parts.append(
            f'<circle cx="{x:.2f}" cy="{y:.2f}" r="{radius:.2f}" fill="{escape(fill)}">{inside}</circle>'
        )

    def text(self, x: float, y: float, words: str, *, anchor: str = "start") -> None:
        """Words with their baseline at y."""
        self._parts.append(f'<text x="{x:.2f}" y="{y:.2f}" text-anchor="{escape(anchor)}">{escape(words)}</text>')

    def svg(self) -> str:
        """The element, as wide as it is let."""
        head = f'<svg viewBox="0 0 {self.width:g} {self.height:g}" role="img" aria-label="{escape(self.label)}">'
        return f"{head}{''.join(self._parts)}</svg>"
