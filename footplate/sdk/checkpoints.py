"""The asynchronous operations on a job's checkpoints: list, download, verify, pin and delete."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Self
from urllib.parse import quote

from pydantic import PrivateAttr

from footplate.errors import NotFound
from footplate.sdk.files import RemoteFile, fetch
from footplate.sdk.lists import Table
from footplate.sdk.models import Checkpoint, CheckpointFile
from footplate.sdk.notebook import checkpoint_table
from footplate.sdk.request import ApiRequest, all_resources, path_segment, send_for, send_json
from footplate.sdk.wire import Wire


class AsyncCheckpoints:
    """The checkpoints that a job has saved."""

    def __init__(self, wire: Wire, job: str) -> None:
        self._wire, self._path = wire, f"{job}/checkpoints"

    async def list(self) -> Sequence[AsyncCheckpoint]:
        checkpoints = await all_resources(AsyncCheckpoint, self._wire, self._path)
        return Table([self._placed(checkpoint) for checkpoint in checkpoints], checkpoint_table)

    async def get(self, checkpoint: str) -> AsyncCheckpoint:
        """Returns a checkpoint by its id, or the "latest" or "best" one. Raises NotFound."""
        address = f"{self._path}/{path_segment(checkpoint, 'checkpoint')}"
        return self._placed(await send_for(AsyncCheckpoint, self._wire, ApiRequest("GET", address)))

    async def latest(self) -> AsyncCheckpoint | None:
        return await self._named("latest")

    async def best(self) -> AsyncCheckpoint | None:
        """Returns the best checkpoint by metric_for_best_model, or None if the job has no best checkpoint."""
        return await self._named("best")

    async def _named(self, name: str) -> AsyncCheckpoint | None:
        try:
            return await self.get(name)
        except NotFound:
            await self.list()  # Raises NotFound if the job itself does not exist.
            return None

    def _placed(self, checkpoint: AsyncCheckpoint) -> AsyncCheckpoint:
        return checkpoint.at(self._wire, f"{self._path}/{checkpoint.id}")


class AsyncCheckpoint(Checkpoint):
    """One checkpoint, as it was when the service answered."""

    _wire: Wire = PrivateAttr()
    _path: str = PrivateAttr()

    def at(self, wire: Wire, path: str) -> Self:
        self._wire, self._path = wire, path
        return self

    async def contents(self) -> Sequence[CheckpointFile]:
        """Returns the checkpoint's files, each with the sha256 that it had when the checkpoint was committed."""
        return await all_resources(CheckpointFile, self._wire, f"{self._path}/files")

    async def download(self, folder: str | os.PathLike[str]) -> Sequence[Path]:
        """Downloads the files below `folder`. Each is verified by its sha256, and then moved into place.

        An interrupted download continues where it stopped, also in a later call.
        """
        remote_files = [
            RemoteFile(f"{self._path}/files/{quote(file.path)}", file.path, file.bytes, file.sha256)
            for file in await self.contents()
        ]
        return [await fetch(self._wire, file, Path(folder)) for file in remote_files]

    async def pin(self) -> Self:
        """Keeps the checkpoint, even if the job's limits would delete it."""
        return await self._pinned(True)

    async def unpin(self) -> Self:
        return await self._pinned(False)

    async def delete(self) -> int:
        """Requests the deletion of the checkpoint, and returns the number of bytes that the deletion will free."""
        answer = await send_json(self._wire, ApiRequest("DELETE", self._path))
        return int(answer.get("frees_bytes", 0))

    async def _pinned(self, pinned: bool) -> Self:
        request = ApiRequest.with_json("PATCH", self._path, {"pinned": pinned}, is_repeatable=True)
        return (await send_for(type(self), self._wire, request)).at(self._wire, self._path)
