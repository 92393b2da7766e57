"""A job's checkpoints, asynchronously: found, downloaded and verified, pinned, deleted."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self
from urllib.parse import quote

from pydantic import PrivateAttr

from footplate.errors import NotFound
from footplate.sdk.files import Remote, fetch
from footplate.sdk.models import Checkpoint, CheckpointFile
from footplate.sdk.request import Ask, ask_json
from footplate.sdk.waiting import Wire


class AsyncCheckpoints:
    """What a job has saved."""

    def __init__(self, wire: Wire, job: str) -> None:
        self._wire, self._path = wire, f"{job}/checkpoints"

    async def list(self) -> Sequence[AsyncCheckpoint]:
        """Newest first."""
        told = await ask_json(self._wire, Ask("GET", self._path))
        return [self._checkpoint(one) for one in told["data"]]

    async def get(self, checkpoint: str) -> AsyncCheckpoint:
        """By its id; or "latest", or "best". Raises NotFound."""
        address = f"{self._path}/{quote(checkpoint, safe='')}"
        return self._checkpoint(await ask_json(self._wire, Ask("GET", address)))

    async def latest(self) -> AsyncCheckpoint | None:
        return await self._named("latest")

    async def best(self) -> AsyncCheckpoint | None:
        """By metric_for_best_model; None where the job looks for none."""
        return await self._named("best")

    async def _named(self, name: str) -> AsyncCheckpoint | None:
        try:
            return await self.get(name)
        except NotFound:
            await self.list()  # where it is the job that is not there, this says so
            return None

    def _checkpoint(self, told: dict[str, Any]) -> AsyncCheckpoint:
        return AsyncCheckpoint.model_validate(told).at(self._wire, f"{self._path}/{told['id']}")


class AsyncCheckpoint(Checkpoint):
    """One of them, as it stood when the service was asked."""

    _wire: Wire = PrivateAttr()
    _path: str = PrivateAttr()

    def at(self, wire: Wire, path: str) -> Self:
        self._wire, self._path = wire, path
        return self

    async def contents(self) -> Sequence[CheckpointFile]:
        """With the sha256 of what was written when it was committed."""
        found: list[CheckpointFile] = []
        cursor: str | None = None
        while True:
            told = await ask_json(self._wire, Ask("GET", f"{self._path}/files", params={"cursor": cursor}))
            found += [CheckpointFile.model_validate(one) for one in told["data"]]
            if (cursor := told["next_cursor"]) is None:
                return found

    async def download(self, folder: str | os.PathLike[str]) -> Sequence[Path]:
        """Its files, below `folder`, each whole and compared by its sha256, or not there. What breaks off goes on where
        it was, also when it is called again."""
        remote = [
            Remote(f"{self._path}/files/{quote(one.path)}", one.path, one.bytes, one.sha256)
            for one in await self.contents()
        ]
        return [await fetch(self._wire, one, Path(folder)) for one in remote]

    async def pin(self) -> Self:
        """Keeps it, whatever the job's limits say."""
        return await self._pinned(True)

    async def unpin(self) -> Self:
        return await self._pinned(False)

    async def delete(self) -> int:
        """Lets go of it; the answer is how many bytes that frees, in a moment."""
        told = await ask_json(self._wire, Ask("DELETE", self._path))
        return int(told.get("frees_bytes", 0))

    async def _pinned(self, pinned: bool) -> Self:
        what = Ask.with_json("PATCH", self._path, {"pinned": pinned}, is_repeatable=True)
        return type(self).model_validate(await ask_json(self._wire, what)).at(self._wire, self._path)
