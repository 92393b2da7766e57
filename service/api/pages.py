"""Cursors of lists that are sorted by creation time and then by id: `<milliseconds>-<id>`."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from footplate.contract.errors import Problem
from service.problems import InvalidQuery

Place = tuple[int, str]


def after(cursor: str | None, is_id: Callable[[str], bool]) -> Place | None:
    """Returns the creation time and the id of the last row on the previous page, or None for the first page.

    Raises InvalidQuery for a text that is not a cursor.
    """
    if cursor is None:
        return None
    created_at, _, row_id = cursor.partition("-")
    if not (created_at.isascii() and created_at.isdigit() and len(created_at) < 16 and is_id(row_id)):
        hint = "send the next_cursor of the previous page unchanged"
        problem = Problem("/query/cursor", "bad_cursor", "is not a cursor of this list", hint)
        raise InvalidQuery([problem])
    return int(created_at), row_id


def following(places: Sequence[Place], limit: int) -> str | None:
    """Returns the cursor of the next page, or None. `places` has the time and id of up to `limit` + 1 rows."""
    return "{}-{}".format(*places[limit - 1]) if len(places) > limit else None
