"""Prints figures as a table of medians and ranges, each beside its goal."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median


@dataclass(frozen=True)
class Row:
    what: str
    values: Sequence[float]
    unit: str
    goal: str = ""

    def as_cells(self) -> list[str]:
        middle = f"{_short(median(self.values))} {self.unit}"
        spread = f"{_short(min(self.values))} to {_short(max(self.values))}" if len(self.values) > 1 else ""
        return [self.what, middle, spread, self.goal]


def table(rows: Sequence[Row]) -> str:
    cells = [["figure", "median", "range", "goal"], *(row.as_cells() for row in rows)]
    widths = [max(len(line[column]) for line in cells) for column in range(4)]
    lines = [
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) + " |" for line in cells
    ]
    lines.insert(1, "|" + "|".join("-" * (width + 2) for width in widths) + "|")
    return "\n".join(lines)


def _short(value: float) -> str:
    return f"{value:.3g}" if abs(value) < 1000 else f"{value:,.0f}"
