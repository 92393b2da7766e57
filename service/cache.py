"""What SQL says, kept at hand and read anew every so often. While SQL is away, what was good stays."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from contextlib import suppress
from typing import ClassVar

from footplate.contract.errors import FootplateError


class Fresh(ABC):
    SECONDS: ClassVar[float]
    """How stale it may be."""

    @property
    def seconds(self) -> float:
        """How long until it is read again."""
        return self.SECONDS

    def __init__(self) -> None:
        self._task: asyncio.Task[None] | None = None

    @abstractmethod
    async def refresh(self) -> None: ...

    async def start(self) -> None:
        await self._try()
        self._task = asyncio.create_task(self._keep_fresh())

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _keep_fresh(self) -> None:
        while True:
            await asyncio.sleep(self.seconds)
            await self._try()

    async def _try(self) -> None:
        # SQL that is away says so to whoever needs it.
        with suppress(FootplateError):
            await self.refresh()
