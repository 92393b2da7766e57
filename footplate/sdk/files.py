"""The outputs of a job: lists and downloads them. A downloaded file is complete or missing."""

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
from footplate.sdk.request import COME_BACK, Ask, ask_json, pause, refusal, unreachable
from footplate.sdk.waiting import Line, Wire

READ_SECONDS = 60.0
HASHED_BYTES = 8 * 1024 * 1024
"""The bytes that are hashed before other tasks of the event loop get a turn."""


class AsyncOutputs:
    def __init__(self, wire: Wire, job: str) -> None:
        self._wire, self._path = wire, f"{job}/outputs"

    async def list(self) -> Sequence[Output]:
        answer = await ask_json(self._wire, Ask("GET", self._path))
        return [Output.model_validate(row) for row in answer["data"]]

    async def download(self, folder: str | os.PathLike[str], *, only: Collection[str] | None = None) -> Sequence[Path]:
        """Downloads every file, or those in `only`, below `folder`.

        Each is written to a temporary file, compared with the announced size, and then moved. An interrupted download
        continues where it stopped.
        """
        outputs = await self.list()
        chosen = [output for output in outputs if only is None or output.path in only]
        if missing := set(only or ()) - {output.path for output in chosen}:
            there = ", ".join(output.path for output in outputs) or "nothing"
            detail = f"the job has no output {sorted(missing)[0]!r}; it has: {there}"
            raise NotFound(404, {"code": "not_found", "detail": detail})
        remote = [Remote(f"{self._path}/{quote(output.path)}", output.path, output.bytes) for output in chosen]
        return [await fetch(self._wire, file, Path(folder)) for file in remote]


@dataclass(frozen=True)
class Remote:
    """A file of the service, as the service announced it."""

    address: str
    path: str
    bytes: int
    sha256: str | None = None

    def part(self, target: Path) -> Path:
        """Returns the temporary file. If the content is known, another process can continue it later."""
        return target.with_name(f".{target.name}.{self.sha256[:16] if self.sha256 else os.getpid()}.part")


async def fetch(wire: Wire, remote: Remote, folder: Path) -> Path:
    """Downloads a file below the folder. A file with the same content is not downloaded again."""
    target = below(folder, remote.path)
    if remote.sha256 and target.is_file() and await sha256_of(wire, target) == remote.sha256:
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    part = remote.part(target)
    part.touch()
    try:
        await _fetch(wire, remote, part)
        await _compare(wire, remote, part)
        os.replace(part, target)
    except BaseException as error:
        if remote.sha256 is None or isinstance(error, DownloadFailed):
            part.unlink(missing_ok=True)
        raise
    return target


async def _compare(wire: Wire, remote: Remote, part: Path) -> None:
    if (have := part.stat().st_size) != remote.bytes:
        raise DownloadFailed(
            f"{remote.path} has {have} bytes, and {remote.bytes} were announced",
            hint="it was written to meanwhile; download it again",
        )
    if remote.sha256 and await sha256_of(wire, part) != remote.sha256:
        raise DownloadFailed(
            f"{remote.path} is not what was written when it was made (its sha256 differs)",
            hint="download it again; where that fails as well, it has changed on the service's disk",
        )


async def sha256_of(wire: Wire, path: Path) -> str:
    """Returns the sha256 of a local file."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while piece := file.read(HASHED_BYTES):
            digest.update(piece)
            await wire.sleep(0)
    return digest.hexdigest()


async def _fetch(wire: Wire, remote: Remote, part: Path) -> None:
    version, tried = f'"{remote.sha256}"' if remote.sha256 else "", 0
    while True:
        have = part.stat().st_size if version else 0
        if version and have == remote.bytes:
            break  # only the end of the connection was missing
        headers = {"Range": f"bytes={have}-", "If-Range": version} if have else {}
        # A range of a compressed answer would not be a range of the file.
        request = Ask("GET", remote.address, headers={**headers, "Accept-Encoding": "identity"}).on(wire)
        try:
            async with wire.open(request) as line:
                await _check(line)
                version = line.response.headers.get("etag", "")
                await _append(line, part, lambda have: _report(wire, remote, have))
            break
        except httpx2.TransportError as error:
            tried = tried + 1 if part.stat().st_size == have else 1
            if tried >= wire.tries:
                raise unreachable(request.url, error) from error
            await wire.sleep(pause(tried))


async def _check(line: Line) -> None:
    answer = line.response
    if answer.status_code in (200, 206):
        return
    if answer.status_code in COME_BACK:
        raise httpx2.RemoteProtocolError(f"the service answers {answer.status_code}")
    raise refusal(httpx2.Response(answer.status_code, content=await line.rest(), request=answer.request))


def _report(wire: Wire, remote: Remote, have: int) -> None:
    if wire.on_bytes is not None:
        wire.on_bytes(remote.path, have, remote.bytes)


async def _append(line: Line, part: Path, report: Callable[[int], None]) -> None:
    """Appends what comes to the file. If the file has changed meanwhile, the answer is a 200 with the whole file."""
    with part.open("ab" if line.response.status_code == 206 else "wb") as file:
        report(file.tell())
        while chunk := await line.read(READ_SECONDS):
            file.write(chunk)
            report(file.tell())


def below(folder: Path, path: str) -> Path:
    """Returns the path of a file below the folder. A foreign service could name any path on this machine."""
    pure = PurePosixPath(path)
    if pure.is_absolute() or ".." in pure.parts or not pure.parts or "\0" in path:
        raise DownloadFailed(f"the service names a file {path!r}, which is not a path below a folder")
    return folder.joinpath(*pure.parts)
