"""What a reader takes: JSON, unless its Accept asks for something else that the route has."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Sequence
from typing import Any

from fastapi import Request
from starlette.responses import Response

CSV, TEXT = "text/csv", "text/plain"
_FORMULA = ("=", "+", "-", "@", "\t", "\r")
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")
MOST_ACCEPTED = 50
"""Media types of an Accept header that are looked at."""
VARIES = {"Vary": "Accept"}


def wants(request: Request, media_type: str) -> bool:
    """Whether it is named before JSON is, by weight and then by order: who takes anything gets JSON."""
    ranked = sorted(_accepted(request.headers.get("accept", "")), key=lambda one: -one[1])
    named = [name for name, weight in ranked if weight > 0 and name in (media_type, "application/json")]
    return named[:1] == [media_type]


def _accepted(header: str) -> Iterable[tuple[str, float]]:
    for part in header.split(",", MOST_ACCEPTED)[:MOST_ACCEPTED]:
        name, *parameters = (piece.strip() for piece in part.split(";"))
        weight = next((one[2:] for one in parameters if one.startswith("q=")), "1")
        yield name.lower(), float(weight) if re.fullmatch(r"[01](\.\d{0,3})?", weight) else 0.0


def csv_response(head: Sequence[str], rows: Iterable[Sequence[Any]], name: str) -> Response:
    """As a download, with nothing in a cell that a spreadsheet would run."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(head)
    writer.writerows([_cell(value) for value in row] for row in rows)
    headers = {**VARIES, "Content-Disposition": f'attachment; filename="{name}.csv"'}
    return Response(out.getvalue(), 200, headers, f"{CSV}; charset=utf-8")


def _cell(value: Any) -> Any:
    if isinstance(value, str) and value.startswith(_FORMULA) and value != "-Infinity":
        return f"'{value}"
    return "" if value is None else value


def clean(text: str) -> str:
    """What a job printed must not move the cursor of who reads it with curl."""
    return _CONTROL.sub("\ufffd", text)
