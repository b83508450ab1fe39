"""Pictures as inline SVG: rectangles, lines and words; every string is escaped, coordinates are rounded."""

from __future__ import annotations

from dataclasses import dataclass, field
from html import escape

from efaprof.trace.layers import Layer

# Told apart in grey and by the colour-blind as far as twelve can be; the words stand beside them.
COLOURS = {
    Layer.COMPUTE: "#4c78a8", Layer.LAUNCH: "#9ecae9", Layer.KERNEL: "#f58518", Layer.RING: "#ffbf79",
    Layer.PROXY: "#d6423f", Layer.LIBFABRIC: "#b279a2", Layer.NIC: "#3f8f3a", Layer.RX: "#8cd17d",
    Layer.POLL: "#e3b505", Layer.SKEW: "#8c6d4f", Layer.UNATTRIBUTED: "#8f8f8f", Layer.IDLE: "#d5d1cb",
}  # fmt: skip


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

    def text(self, x: float, y: float, words: str, *, anchor: str = "start") -> None:
        """Words with their baseline at y."""
        self._parts.append(f'<text x="{x:.2f}" y="{y:.2f}" text-anchor="{escape(anchor)}">{escape(words)}</text>')

    def svg(self) -> str:
        """The element, as wide as it is let."""
        head = f'<svg viewBox="0 0 {self.width:g} {self.height:g}" role="img" aria-label="{escape(self.label)}">'
        return f"{head}{''.join(self._parts)}</svg>"
