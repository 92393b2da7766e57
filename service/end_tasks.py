"""Ends background tasks of asyncio."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any


async def end_tasks(*tasks: asyncio.Task[Any]) -> None:
    """Cancels tasks, and returns when all of them have ended. Their errors are ignored.

    The cancel is repeated each second, because a library can swallow a cancel that arrives at the same time as an error
    or a timeout.
    """
    running: Iterable[asyncio.Task[Any]] = tasks
    while running:
        for task in running:
            task.cancel()
        _, running = await asyncio.wait(running, timeout=1.0)
    # Otherwise asyncio would log errors that nobody has read.
    await asyncio.gather(*tasks, return_exceptions=True)
