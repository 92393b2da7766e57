"""What a job left behind: listed, and downloaded so that a file is whole or not there."""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from pathlib import Path, PurePosixPath
from urllib.parse import quote

import httpx2

from footplate.errors import DownloadFailed, NotFound
from footplate.sdk.asking import COME_BACK, Ask, ask_json, pause, refusal, unreachable
from footplate.sdk.models import Output
from footplate.sdk.wire import Line, Wire

READ_SECONDS = 60.0


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
        return [await self._one(one, Path(folder)) for one in wanted]

    async def _one(self, output: Output, folder: Path) -> Path:
        target = below(folder, output.path)
        target.parent.mkdir(parents=True, exist_ok=True)
        part = target.with_name(f".{target.name}.{os.getpid()}.part")
        try:
            part.touch()
            await self._fetch(f"{self._path}/{quote(output.path)}", part, output.bytes)
            if (have := part.stat().st_size) != output.bytes:
                raise DownloadFailed(
                    f"{output.path} has {have} bytes, and {output.bytes} were announced",
                    hint="it was written to meanwhile; download it again",
                )
            os.replace(part, target)
        finally:
            part.unlink(missing_ok=True)
        return target

    async def _fetch(self, path: str, part: Path, size: int) -> None:
        version, tried = "", 0
        while True:
            have = part.stat().st_size if version else 0
            if version and have == size:
                break  # only the end of the connection was missing
            headers = {"Range": f"bytes={have}-", "If-Range": version} if have else {}
            # Compressed on the way, a range would be one of something else.
            request = Ask("GET", path, headers={**headers, "Accept-Encoding": "identity"}).on(self._wire)
            try:
                async with self._wire.open(request) as line:
                    await _check(line)
                    version = line.response.headers.get("etag", "")
                    await _append(line, part)
                break
            except httpx2.TransportError as error:
                tried = tried + 1 if part.stat().st_size == have else 1
                if tried >= self._wire.tries:
                    raise unreachable(request.url, error) from error
                await self._wire.sleep(pause(tried))


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
