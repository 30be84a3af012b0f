"""Bar charts as SVG, legible on light and dark backgrounds."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape

COLOURS = {"tollgate": "#e0702e", "nginx": "#3f9c5a", "haproxy": "#4a86c8", "envoy": "#a271c4"}
WIDTH, LEFT, RIGHT = 760, 130, 60
BAR, GAP = 11, 10

STYLE = """<style>
text { font: 12px sans-serif; fill: #24292f }
.value { font-size: 10px }
.line { stroke: #24292f; stroke-width: 1 }
.one { stroke: #24292f; stroke-dasharray: 3 3; opacity: .6 }
@media (prefers-color-scheme: dark) { text { fill: #e6edf3 } .line, .one { stroke: #e6edf3 } }
</style>"""


@dataclass(frozen=True)
class Bar:
    """A median and its range."""

    value: float
    least: float
    most: float


def bar_chart(title: str, groups: dict[str, dict[str, Bar]], marks_one: bool) -> str:
    """A chart with a group of bars for each scenario; `marks_one` draws a line where the value is 1."""
    largest = max((bar.most for bars in groups.values() for bar in bars.values()), default=1.0)
    scale = (WIDTH - LEFT - RIGHT) / largest
    parts = [f'<text x="8" y="18" font-weight="bold">{escape(title)}</text>']
    for number, (name, colour) in enumerate(COLOURS.items()):
        x = LEFT + 90 * number
        parts.append(f'<rect x="{x}" y="28" width="10" height="10" fill="{colour}"/><text x="{x + 15}" y="38">{name}</text>')
    top = y = 52
    for scenario, bars in groups.items():
        middle = y + BAR * len(bars) / 2 + 4
        parts.append(f'<text x="{LEFT - 8}" y="{middle:.1f}" text-anchor="end">{escape(scenario)}</text>')
        for label, bar in bars.items():
            ends = [LEFT + scale * value for value in (bar.value, bar.least, bar.most)]
            centre = y + BAR / 2
            parts.append(
                f'<rect x="{LEFT}" y="{y}" width="{ends[0] - LEFT:.1f}" height="{BAR - 1}" fill="{COLOURS[label]}"/>'
                f'<path class="line" d="M{ends[1]:.1f} {centre}H{ends[2]:.1f}"/>'
                f'<text class="value" x="{max(ends) + 4:.1f}" y="{y + BAR - 2}">{bar.value:.2f}</text>'
            )
            y += BAR
        y += GAP
    if marks_one:
        parts.append(f'<path class="one" d="M{LEFT + scale:.1f} {top - 4}V{y - GAP + 4}"/>')
    size = f'width="{WIDTH}" height="{y}" viewBox="0 0 {WIDTH} {y}"'
    return "\n".join([f'<svg xmlns="http://www.w3.org/2000/svg" {size}>', STYLE, *parts, "</svg>", ""])
