"""The base of caches that read SQL again at an interval. If SQL is unreachable, they keep their last content."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from contextlib import suppress
from typing import ClassVar

from footplate.contract.errors import FootplateError


class PolledCache(ABC):
    SECONDS: ClassVar[float]
    """The interval, which is how outdated the content may be."""

    @property
    def seconds(self) -> float:
        """The time until the next refresh, which a subclass may change."""
        return self.SECONDS

    def __init__(self) -> None:
        self._task: asyncio.Task[None] | None = None

    @abstractmethod
    async def refresh(self) -> None: ...

    async def start(self) -> None:
        await self._try()
        self._task = asyncio.create_task(self._poll())

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _poll(self) -> None:
        while True:
            await asyncio.sleep(self.seconds)
            await self._try()

    async def _try(self) -> None:
        # If SQL is unreachable, the requests that need SQL report that.
        with suppress(FootplateError):
            await self.refresh()
