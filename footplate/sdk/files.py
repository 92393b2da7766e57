"""Lists and downloads a job's outputs. A downloaded file is either complete or missing."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from urllib.parse import quote

import httpx2

from footplate.errors import DownloadFailed, NotFound
from footplate.sdk.models import Output
from footplate.sdk.request import RETRIED_STATUSES, ApiRequest, all_resources, pause, refusal, unreachable
from footplate.sdk.wire import OpenAnswer, Wire

READ_SECONDS = 60.0
HASHED_BYTES = 8 * 1024 * 1024
"""The number of bytes that are hashed at once. Other tasks of the event loop run in between."""


class AsyncOutputs:
    def __init__(self, wire: Wire, job: str) -> None:
        self._wire, self._path = wire, f"{job}/outputs"

    async def list(self) -> Sequence[Output]:
        return await all_resources(Output, self._wire, self._path)

    async def download(self, folder: str | os.PathLike[str], *, only: Collection[str] | None = None) -> Sequence[Path]:
        """Downloads every file, or those in `only`, below `folder`.

        Each file is written under a temporary name, compared with the announced size, and then renamed. After a lost
        connection, the download continues where it stopped.
        """
        outputs = await self.list()
        chosen = [output for output in outputs if only is None or output.path in only]
        if missing := set(only or ()) - {output.path for output in chosen}:
            names = ", ".join(output.path for output in outputs) or "nothing"
            detail = f"the job has no output {sorted(missing)[0]!r}; it has: {names}"
            raise NotFound(404, {"code": "not_found", "detail": detail})
        remote = [Remote(f"{self._path}/{quote(output.path)}", output.path, output.bytes) for output in chosen]
        return [await fetch(self._wire, file, Path(folder)) for file in remote]


@dataclass(frozen=True)
class Remote:
    """A file that can be downloaded, with the size and the sha256 that the service announced."""

    address: str
    path: str
    bytes: int
    sha256: str | None = None

    def temporary(self, target: Path) -> Path:
        """Returns the temporary file beside `target`. A later download with the same sha256 continues it."""
        return target.with_name(f".{target.name}.{self.sha256[:16] if self.sha256 else os.getpid()}.part")


async def fetch(wire: Wire, remote: Remote, folder: Path) -> Path:
    """Downloads a file below the folder. A file with the same content is not downloaded again."""
    target = below(folder, remote.path)
    if remote.sha256 and target.is_file() and await sha256_of(wire, target) == remote.sha256:
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = remote.temporary(target)
    temporary.touch()
    try:
        await _fetch(wire, remote, temporary)
        await _compare(wire, remote, temporary)
        os.replace(temporary, target)
    except BaseException as error:
        if remote.sha256 is None or isinstance(error, DownloadFailed):
            temporary.unlink(missing_ok=True)
        raise
    return target


async def _compare(wire: Wire, remote: Remote, temporary: Path) -> None:
    if (have := temporary.stat().st_size) != remote.bytes:
        raise DownloadFailed(
            f"{remote.path} has {have} bytes, but the service announced {remote.bytes} bytes",
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


async def _fetch(wire: Wire, remote: Remote, temporary: Path) -> None:
    version, tried = f'"{remote.sha256}"' if remote.sha256 else "", 0
    while True:
        have = temporary.stat().st_size if version else 0
        if have > remote.bytes:
            have = 0  # Two downloads at once have written to this file. The next answer replaces its content.
        if version and have == remote.bytes:
            break  # complete: the connection broke after the last byte
        headers = {"Range": f"bytes={have}-", "If-Range": version} if have else {}
        # A range of a compressed answer would not be a range of the file.
        request = ApiRequest("GET", remote.address, headers={**headers, "Accept-Encoding": "identity"}).on(wire)
        try:
            async with wire.open(request) as answer:
                await _check(answer)
                version = answer.response.headers.get("etag", "")
                await _append(answer, temporary, lambda have: _report(wire, remote, have))
            break
        except httpx2.TransportError as error:
            tried = tried + 1 if temporary.stat().st_size == have else 1
            if tried >= wire.tries:
                raise unreachable(request.url, error) from error
            await wire.sleep(pause(tried))


async def _check(answer: OpenAnswer) -> None:
    response = answer.response
    if response.status_code in (200, 206):
        return
    if response.status_code in RETRIED_STATUSES:
        raise httpx2.RemoteProtocolError(f"the service answers {response.status_code}")
    raise refusal(httpx2.Response(response.status_code, content=await answer.rest(), request=response.request))


def _report(wire: Wire, remote: Remote, have: int) -> None:
    if wire.on_bytes is not None:
        wire.on_bytes(remote.path, have, remote.bytes)


async def _append(answer: OpenAnswer, temporary: Path, report: Callable[[int], None]) -> None:
    """Writes the answer's body to the temporary file. Appends it if the status is 206, else replaces the content."""
    with temporary.open("ab" if answer.response.status_code == 206 else "wb") as file:
        report(file.tell())
        while chunk := await answer.read(READ_SECONDS):
            file.write(chunk)
            report(file.tell())


def below(folder: Path, path: str) -> Path:
    """Returns a file's path below the folder. Raises DownloadFailed if the path leads out of the folder."""
    pure = PurePosixPath(path)
    if pure.is_absolute() or ".." in pure.parts or not pure.parts or "\0" in path:
        raise DownloadFailed(f"the service sent the file path {path!r}, which leads out of the download's folder")
    return folder.joinpath(*pure.parts)
