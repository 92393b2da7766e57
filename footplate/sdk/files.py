"""Lists and downloads a job's outputs. A downloaded file is either complete or missing."""

from __future__ import annotations

import hashlib
import logging
import os
import platform
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from glob import escape
from pathlib import Path, PurePosixPath
from urllib.parse import quote
from zlib import crc32

import httpx2

from footplate.errors import DownloadFailed, not_found
from footplate.sdk.models import Output
from footplate.sdk.request import (
    RETRIED_STATUSES,
    ApiRequest,
    pause_seconds,
    read,
    refusal,
    send_for_page,
    unreachable,
)
from footplate.sdk.wire import OpenAnswer, Wire

log = logging.getLogger("footplate.client")
READ_SECONDS = 60.0
try:
    _PIDS = os.readlink("/proc/self/ns/pid")
except OSError:  # Only Linux has it.
    _PIDS = ""
MACHINE = f"{crc32(f'{platform.node()} {_PIDS}'.encode()):08x}"
"""This machine or container in the names of temporary files, because a pid says nothing outside of it."""
HASHED_BYTES = 8 * 1024 * 1024
"""The number of bytes that are hashed at once. Other tasks of the event loop run in between."""


class AsyncOutputs:
    def __init__(self, wire: Wire, job: str) -> None:
        self._wire, self._path = wire, f"{job}/outputs"
        self._reported_count = 0

    async def list(self) -> Sequence[Output]:
        page = await send_for_page(self._wire, ApiRequest("GET", self._path))
        if (left_out := page.get("left_out", 0)) > self._reported_count:
            self._reported_count = left_out
            log.warning(
                "%s has %s files more, which cannot be downloaded, because their names are not UTF-8",
                self._path.removeprefix("/"),
                left_out,
            )
        return [read(Output, row) for row in page["data"]]

    async def download(self, folder: str | os.PathLike[str], *, only: Collection[str] | None = None) -> Sequence[Path]:
        """Downloads every file, or those in `only`, below `folder`.

        Each file is written under a temporary name, compared with the announced size, and then renamed. After a lost
        connection, the download continues where it stopped.
        """
        outputs = await self.list()
        chosen_outputs = [output for output in outputs if only is None or output.path in only]
        if missing_paths := set(only or ()) - {output.path for output in chosen_outputs}:
            names = ", ".join(output.path for output in outputs) or "nothing"
            raise not_found(f"the job has no output {sorted(missing_paths)[0]!r}; it has: {names}")
        remote_files = [
            RemoteFile(f"{self._path}/{quote(output.path)}", output.path, output.bytes) for output in chosen_outputs
        ]
        return [await fetch(self._wire, file, Path(folder)) for file in remote_files]


@dataclass(frozen=True)
class RemoteFile:
    """A file that can be downloaded, with the size and the sha256 that the service announced."""

    address: str
    path: str
    bytes: int
    sha256: str | None = None

    def temporary(self, target: Path, pid: int | None = None) -> Path:
        """Returns the temporary file beside `target`. A later download with the same sha256 continues it.

        Without a sha256, each process has a file of its own.
        """
        part = self.sha256[:16] if self.sha256 else f"{MACHINE}-{pid or os.getpid()}"
        return target.with_name(f".{target.name}.{part}.part")


async def fetch(wire: Wire, remote: RemoteFile, folder: Path) -> Path:
    """Downloads a file below the folder. A file with the same content is not downloaded again."""
    target = path_below(folder, remote.path)
    if remote.sha256 and target.is_file() and await sha256_of(wire, target) == remote.sha256:
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    if remote.sha256 is None:
        _remove_leftovers(target)
    temporary = remote.temporary(target)
    temporary.touch()
    try:
        await _receive(wire, remote, temporary)
        await _verify(wire, remote, temporary)
        os.replace(temporary, target)
    except BaseException as error:
        if remote.sha256 is None or isinstance(error, DownloadFailed):
            temporary.unlink(missing_ok=True)
        raise
    return target


def _remove_leftovers(target: Path) -> None:
    """Removes the temporary files beside `target` whose processes were killed."""
    if os.name != "posix":
        return  # On Windows, os.kill would send a signal.
    for leftover in target.parent.glob(f".{escape(target.name)}.{MACHINE}-*.part"):
        pid = leftover.name.removesuffix(".part").rpartition("-")[2]
        with suppress(PermissionError, ValueError, OverflowError):  # Another user's process, or not the name of one.
            try:
                os.kill(int(pid), 0)
            except ProcessLookupError:
                leftover.unlink(missing_ok=True)


async def _verify(wire: Wire, remote: RemoteFile, temporary: Path) -> None:
    if (received_bytes := temporary.stat().st_size) != remote.bytes:
        raise DownloadFailed(
            f"{remote.path} has {received_bytes} bytes, but the service announced {remote.bytes} bytes",
            hint="the file was changed during the download; download it again",
        )
    if remote.sha256 and await sha256_of(wire, temporary) != remote.sha256:
        raise DownloadFailed(
            f"{remote.path} is not the file that was stored (its sha256 differs)",
            hint="download it again; if that fails too, the file has changed on the service's disk",
        )


async def sha256_of(wire: Wire, path: Path) -> str:
    """Returns the sha256 of a local file."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(HASHED_BYTES):
            digest.update(chunk)
            await wire.sleep(0)
    return digest.hexdigest()


async def _receive(wire: Wire, remote: RemoteFile, temporary: Path) -> None:
    version, try_number = f'"{remote.sha256}"' if remote.sha256 else "", 0
    while True:
        received_bytes = temporary.stat().st_size if version else 0
        if received_bytes > remote.bytes:
            received_bytes = 0  # Two downloads at once have written to this file. The next answer replaces its content.
        if version and received_bytes == remote.bytes:
            break  # complete: the connection broke after the last byte
        # A range of a compressed answer would not be a range of the file.
        headers = {"Accept-Encoding": "identity"}
        if received_bytes:
            headers |= {"Range": f"bytes={received_bytes}-", "If-Range": version}
        request = ApiRequest("GET", remote.address, headers=headers).http_request(wire)
        try:
            async with wire.open(request) as answer:
                await _raise_for_status(answer)
                version = answer.response.headers.get("etag", "")
                await _append(wire, remote, answer, temporary)
            break
        except httpx2.TransportError as error:
            try_number = try_number + 1 if temporary.stat().st_size == received_bytes else 1
            if try_number >= wire.tries:
                raise unreachable(request.url, error) from error
            await wire.sleep(pause_seconds(try_number))


async def _raise_for_status(answer: OpenAnswer) -> None:
    status = answer.response.status_code
    if status in (200, 206):
        return
    if status in RETRIED_STATUSES:
        raise httpx2.RemoteProtocolError(f"the service answers {status}")
    raise refusal(await answer.complete())


async def _append(wire: Wire, remote: RemoteFile, answer: OpenAnswer, temporary: Path) -> None:
    """Writes the answer's body to the temporary file. Appends it if the status is 206, else replaces the content."""
    report = wire.on_bytes or (lambda path, done_bytes, size: None)
    with temporary.open("ab" if answer.response.status_code == 206 else "wb") as file:
        report(remote.path, file.tell(), remote.bytes)
        while chunk := await answer.read(READ_SECONDS):
            file.write(chunk)
            report(remote.path, file.tell(), remote.bytes)


def path_below(folder: Path, path: str) -> Path:
    """Returns a file's path below the folder. Raises DownloadFailed if the path leads out of the folder."""
    relative_path = PurePosixPath(path)
    if relative_path.is_absolute() or ".." in relative_path.parts or not relative_path.parts or "\0" in path:
        raise DownloadFailed(f"the service sent the file path {path!r}, which leads out of the download's folder")
    return folder.joinpath(*relative_path.parts)
