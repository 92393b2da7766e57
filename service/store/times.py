"""Converts milliseconds since 1970 to text and back."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from functools import lru_cache

from footplate.contract.events import to_text


def now_ms() -> int:
    return time.time_ns() // 1_000_000


@lru_cache(maxsize=1024)
def text_of(moment_ms: int) -> str:
    """Returns the time as RFC 3339 in UTC, with milliseconds."""
    return to_text(datetime.fromtimestamp(moment_ms / 1000, UTC))
