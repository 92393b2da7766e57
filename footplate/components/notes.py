"""`footplate.note`: adds a sentence from anywhere in the user's code to the history of its job.

The process that runs an attempt sets a listener. In a script, a test or a data worker a note does nothing.
"""

from __future__ import annotations

from collections.abc import Callable

_listener: Callable[[str], None] | None = None


def note(message: str) -> None:
    """Adds a sentence to the job's history, as an event of kind `note`. Outside a job it does nothing."""
    if _listener is not None:
        _listener(str(message))


def set_listener(listener: Callable[[str], None]) -> None:
    global _listener
    _listener = listener
