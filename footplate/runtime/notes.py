"""A sentence from the user's code, wherever in it, into the history of the job that it runs in: `footplate.note`.

Whoever runs an attempt says who hears it; everywhere else, a script, a test, a data worker, a note is said to nobody.
"""

from __future__ import annotations

from collections.abc import Callable

_hears: Callable[[str], None] | None = None


def note(message: str) -> None:
    """A sentence for whoever watches the job: an event of kind `note`. Outside a job it does nothing."""
    if _hears is not None:
        _hears(str(message))


def let_hear(whom: Callable[[str], None]) -> None:
    global _hears
    _hears = whom
