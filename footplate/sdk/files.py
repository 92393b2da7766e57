"""What a job left behind: listed, and downloaded so that a file is whole or not there."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Collection, Sequence
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
"""Between two looks at what else the event loop has to do."""


class AsyncOutputs:
    def __init__(self, wire: Wire, job: str) -> None:
        self._wire, self._path = wire, f"{job}/outputs"

    async def list(self) -> Sequence[Output]:
        told = await ask_json(self._wire, Ask("GET", self._path))
        return [Output.model_validate(one) for one in told["data"]]

    async def download(self, folder: str | os.PathLike[str], *, only: Collection[str] | None = None) -> Sequence[Path]:
        """Every file, or those named in `only`, below `folder`. Each is written beside its place, compared with what
        the service announced, and then moved there; a connection that breaks is taken up where it broke."""
        found = await self.list()
        wanted = [one for one in found if only is None or one.path in only]
        if missing := set(only or ()) - {one.path for one in wanted}:
            there = ", ".join(one.path for one in found) or "nothing"
            detail = f"the job has no output {sorted(missing)[0]!r}; it has: {there}"
            raise NotFound(404, {"code": "not_found", "detail": detail})
        remote = [Remote(f"{self._path}/{quote(one.path)}", one.path, one.bytes) for one in wanted]
        return [await fetch(self._wire, one, Path(folder)) for one in remote]


@dataclass(frozen=True)
class Remote:
    """A file of the service's, and what was announced of it."""

    address: str
    path: str
    bytes: int
    sha256: str | None = None

    def part(self, target: Path) -> Path:
        """Where it grows. One whose content is known goes on growing there in another process, another day."""
        return target.with_name(f".{target.name}.{self.sha256[:16] if self.sha256 else os.getpid()}.part")


async def fetch(wire: Wire, remote: Remote, folder: Path) -> Path:
    """Below the folder: whole, or not there. One that is there with the same content is not fetched again."""
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
    """Of a file here."""
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
        # Compressed on the way, a range would be one of something else.
        request = Ask("GET", remote.address, headers={**headers, "Accept-Encoding": "identity"}).on(wire)
        try:
            async with wire.open(request) as line:
                await _check(line)
                version = line.response.headers.get("etag", "")
                await _append(line, part)
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


async def _append(line: Line, part: Path) -> None:
    """Writes what comes behind what is there; a file that has changed meanwhile comes anew, as a 200."""
    with part.open("ab" if line.response.status_code == 206 else "wb") as file:
        while chunk := await line.read(READ_SECONDS):
            file.write(chunk)


def below(folder: Path, path: str) -> Path:
    """Where a file goes. A service that is not ours could name any place on this machine."""
    pure = PurePosixPath(path)
    if pure.is_absolute() or ".." in pure.parts or not pure.parts or "\0" in path:
        raise DownloadFailed(f"the service names a file {path!r}, which is no path below a folder")
    return folder.joinpath(*pure.parts)
