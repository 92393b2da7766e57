"""Draws a plot as SVG, with panels side by side and logarithmic axes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from math import ceil, floor, log10

WIDTH, HEIGHT, LEFT, TOP, LEGEND = 300, 200, 46, 26, 22
COLOURS = ("#2563eb", "#059669", "#d97706", "#7c3aed")


def svg(xs: Sequence[float], panels: Mapping[str, Mapping[str, Sequence[float]]], x_name: str, y_name: str) -> str:
    """Returns the plot. `panels` has the lines of each title by their names, and a line has a value for every x."""
    values = [value for lines in panels.values() for line in lines.values() for value in line]
    low, high = floor(log10(min(values))), ceil(log10(max(values)))
    width, height = (LEFT + WIDTH + 20) * len(panels), TOP + HEIGHT + 44 + LEGEND
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}"',
        'font-family="sans-serif" font-size="11">',
        f'<rect width="{width}" height="{height}" fill="#fff"/>',
    ]
    for number, (title, lines) in enumerate(panels.items()):
        left_edge = LEFT + number * (LEFT + WIDTH + 20)
        places = [left_edge + WIDTH * index / (len(xs) - 1) for index in range(len(xs))]
        parts.append(f'<text x="{left_edge}" y="16" font-weight="bold">{escape(title)}: {escape(y_name)}</text>')
        for power in range(low, high + 1):
            y = _y(10**power, low, high)
            parts.append(f'<path d="M{left_edge} {y:.1f}h{WIDTH}" stroke="#ddd"/>')
            parts.append(f'<text x="{left_edge - 6}" y="{y + 4:.1f}" text-anchor="end">{10.0**power:g}</text>')
        for x, place in zip(xs, places, strict=True):
            parts.append(f'<text x="{place:.1f}" y="{TOP + HEIGHT + 16}" text-anchor="middle">{x:,}</text>')
        parts.append(
            f'<text x="{left_edge + WIDTH / 2}" y="{TOP + HEIGHT + 32}" text-anchor="middle">{escape(x_name)}</text>'
        )
        for colour, line in zip(COLOURS, lines.values(), strict=False):
            path = " ".join(
                f"{place:.1f},{_y(value, low, high):.1f}" for place, value in zip(places, line, strict=True)
            )
            parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
    for number, (colour, name) in enumerate(zip(COLOURS, next(iter(panels.values())), strict=False)):
        x = LEFT + number * 160
        parts.append(f'<text x="{x}" y="{height - 8}" fill="{colour}">{escape(name)}</text>')
    return "\n".join([*parts, "</svg>\n"])


def _y(value: float, low: int, high: int) -> float:
    return TOP + HEIGHT * (high - log10(value)) / (high - low)
