"""Answers in other formats than JSON: CSV and plain text, if the Accept header prefers them."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Iterable, Sequence
from math import isfinite
from typing import Any

from fastapi import Request
from starlette.responses import Response

CSV, TEXT = "text/csv", "text/plain"
_FORMULA = ("=", "+", "-", "@", "\t", "\r")
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")
MOST_ACCEPTED = 50
"""The number of media types that are read from an Accept header. Further ones are ignored."""
VARIES = {"Vary": "Accept"}


def wants(request: Request, media_type: str) -> bool:
    """Returns True if the Accept header ranks the media type above JSON, by weight and then by order."""
    best_first = sorted(_accepted(request.headers.get("accept", "")), key=lambda accepted: -accepted[1])
    names = [name for name, weight in best_first if weight > 0 and name in (media_type, "application/json")]
    return names[:1] == [media_type]


def _accepted(header: str) -> Iterable[tuple[str, float]]:
    for part in header.split(",", MOST_ACCEPTED)[:MOST_ACCEPTED]:
        name, *parameters = (piece.strip() for piece in part.split(";"))
        weight = next((parameter[2:] for parameter in parameters if parameter.startswith("q=")), "1")
        yield name.lower(), float(weight) if re.fullmatch(r"[01](\.\d{0,3})?", weight) else 0.0


def csv_text(rows: Iterable[Sequence[Any]]) -> str:
    """Returns rows as CSV. A cell that a spreadsheet would run as a formula gets an apostrophe in front."""
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows([_cell(value) for value in row] for row in rows)
    return out.getvalue()


def csv_download(*parts: str, name: str) -> Response:
    headers = {**VARIES, "Content-Disposition": f'attachment; filename="{name}.csv"'}
    return Response("".join(parts), 200, headers, f"{CSV}; charset=utf-8")


def _cell(value: Any) -> Any:
    if isinstance(value, str) and value.startswith(_FORMULA):
        return f"'{value}"
    if isinstance(value, float) and not isfinite(value):
        return json.dumps(value)
    return "" if value is None else value


def clean(text: str) -> str:
    """Replaces control characters, so that a job's output cannot control the terminal of a user who reads it."""
    return _CONTROL.sub("\ufffd", text)
