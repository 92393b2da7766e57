"""Formats text for people: tables, times and curves, without control characters."""

from __future__ import annotations

import json
import math
import re
import shutil
import sys
import textwrap
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from itertools import pairwise
from typing import IO, TYPE_CHECKING, Any

from pydantic import BaseModel

if TYPE_CHECKING:
    from footplate.sdk.models import JobInfo

_MARKS = r"\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069"
"""Characters that control a terminal or reorder text, but that JSON does not escape: C1 controls, direction marks,
separators."""
_CONTROL = re.compile(rf"[\x00-\x08\x0b-\x1f{_MARKS}]")
_IN_CELL = re.compile(rf"[\x00-\x1f{_MARKS}]")
_IN_JSON = re.compile(rf"[{_MARKS}]")
BLOCKS = "▁▂▃▄▅▆▇█"


def clean(text: str) -> str:
    """Replaces control characters, so that a job's output or name cannot move a cursor or clear a screen."""
    return _CONTROL.sub("�", text)


def print_lines(*lines: str) -> None:
    for line in lines:
        print(clean(line))


def print_wrapped(*lines: str, indent: int, flush: bool = False) -> None:
    """Prints lines. On a terminal, long lines are wrapped between words and continue with an indent."""
    for line in lines:
        print(wrapped(clean(line), sys.stdout, indent), flush=flush)


def wrapped(text: str, stream: IO[str], indent: int) -> str:
    """Returns the text with line breaks between words, if the stream is a terminal."""
    if not stream.isatty():
        return text
    width = shutil.get_terminal_size().columns
    breaks = textwrap.TextWrapper(
        max(width, indent + LEAST_TEXT), subsequent_indent=" " * indent, break_long_words=False, break_on_hyphens=False,
        replace_whitespace=False, drop_whitespace=True,
    )  # fmt: skip
    return "\n".join(breaks.fill(line) if len(line) > width else line for line in text.split("\n"))


LEAST_TEXT = 20
"""The smallest width of wrapped text without its indent, in characters."""


def print_json(value: Any) -> None:
    """Prints a value or a resource as one line of JSON."""
    fields = value.model_dump(mode="json") if isinstance(value, BaseModel) else value
    text = json.dumps(fields, ensure_ascii=False, default=str)
    print(_IN_JSON.sub(lambda mark: f"\\u{ord(mark[0]):04x}", text), flush=True)


def print_message(text: str) -> None:
    """Prints a message for people on stderr, because scripts read stdout."""
    print(wrapped(f"footplate: {clean(text)}", sys.stderr, 2), file=sys.stderr, flush=True)


def table(
    head: Sequence[str],
    rows: Iterable[Sequence[object]],
    empty_text: str,
    *,
    optional_columns: Sequence[str] = (),
    long_columns: Sequence[str] = (),
) -> None:
    """Prints a table. Columns of numbers are aligned to the right. Without rows, prints `empty_text` on stderr.

    On a terminal, the cells of `long_columns` are shortened until the table fits. If that is not enough, columns are
    left out: first `optional_columns`, in that order, and then those at the right.
    """
    cells = [[_IN_CELL.sub("�", "" if cell is None else str(cell)) for cell in row] for row in rows]
    if not cells:
        print_message(empty_text)
        return
    full_widths = [max(map(len, column)) for column in zip(head, *cells, strict=True)]
    terminal_width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    cuts = _shortened_widths(head, full_widths, long_columns, terminal_width)
    widths = [cuts.get(index, width) for index, width in enumerate(full_widths)]
    indices = _fitting_columns(head, widths, optional_columns, terminal_width)
    columns = [_padded_column(head[index], [row[index] for row in cells], widths[index]) for index in indices]
    for line in zip(*columns, strict=True):
        print("  ".join(line).rstrip())
    if any(len(row[index]) > widths[index] for row in cells for index in indices):
        print_message("long cells are cut to fit this terminal; pipe the output to see them, as in `footplate … | cat`")


def _padded_column(head: str, cells: Sequence[str], width: int) -> list[str]:
    """Returns the head and the cells of a column, each padded to the width. Longer cells are cut."""
    texts = [cell if len(cell) <= width else f"{cell[: width - 1]}…" for cell in cells]
    is_numeric = all(_NUMBER.fullmatch(text) for text in texts)
    return [text.rjust(width) if is_numeric else text.ljust(width) for text in (head, *texts)]


def _shortened_widths(
    head: Sequence[str], widths: Sequence[int], long_columns: Sequence[str], width: int | None
) -> dict[int, int]:
    """Returns the widths of `long_columns`, by index. The widest is shortened first, to LEAST_CELL at most."""
    cuts = {index: widths[index] for index, name in enumerate(head) if name in long_columns}
    excess = 0 if width is None else sum(widths) + 2 * (len(widths) - 1) - width
    while excess > 0 and cuts and max(cuts.values()) > LEAST_CELL:
        widest = max(cuts, key=cuts.__getitem__)
        cuts[widest] -= 1
        excess -= 1
    return cuts


LEAST_CELL = 12
"""The width below which cells are not shortened."""


def _fitting_columns(
    head: Sequence[str], widths: Sequence[int], optional_columns: Sequence[str], width: int | None
) -> list[int]:
    """Returns the indices of the columns that fit into `width` characters. The first column is always among them."""
    indices = list(range(len(head)))
    candidates = [head.index(name) for name in optional_columns] + indices[:0:-1]
    for index in candidates:
        if width is None or sum(widths[column] + 2 for column in indices) - 2 <= width:
            break
        if index in indices:
            indices.remove(index)
    return indices


_NUMBER = re.compile(r"|[-+]?[\d.,]+(e[-+]?\d+)?%?|nan|-?inf|\d+/\d+|[\d.]+ [kMGT]?B")


def short(job: str) -> str:
    """Returns the last 8 characters of a job's id. The first ones are a time, and are similar for all jobs of a day."""
    return job[-8:]


def number(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.4g}" if math.isfinite(value) else str(value)
    return "" if value is None else str(value)


def size(count: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"


def duration(seconds: float) -> str:
    """Returns a text such as `42s`, `3m 20s`, `2h 05m` or `4d 3h`."""
    whole_seconds = max(0, round(seconds))
    minutes, hours, days = whole_seconds // 60, whole_seconds // 3600, whole_seconds // 86400
    if days:
        return f"{days}d {hours % 24}h"
    if hours:
        return f"{hours}h {minutes % 60:02d}m"
    return f"{minutes}m {whole_seconds % 60:02d}s" if minutes else f"{whole_seconds}s"


def age(moment: str | None) -> str:
    if not moment:
        return ""
    return duration((datetime.now(UTC) - datetime.fromisoformat(moment.replace("Z", "+00:00"))).total_seconds())


def steps(job: JobInfo) -> str:
    return job.progress.steps_text() if job.progress else ""


def metric_order(name: str) -> tuple[bool, bool, str]:
    """Returns the sorting key of a metric that puts the loss and evaluations first."""
    return name != "loss", not name.startswith("eval_"), name


def sparkline(values: Sequence[float], width: int = 32) -> str:
    """Returns a curve of block characters, each for the mean of some values, from the lowest to the highest mean."""
    finite = [value for value in values if math.isfinite(value)]
    if not finite:
        return ""
    count = min(width, len(finite))
    edges = [round(index * len(finite) / count) for index in range(count + 1)]
    means = [math.fsum(finite[start:stop]) / (stop - start) for start, stop in pairwise(edges)]
    lowest, highest = min(means), max(means)
    span = (highest - lowest) or 1.0
    return "".join(BLOCKS[min(7, int((mean - lowest) / span * 8))] for mean in means)
