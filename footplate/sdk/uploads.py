"""Operations on uploaded data files, which many specs can name."""

from __future__ import annotations

import os
import stat
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from pathlib import Path

import httpx2

from footplate.errors import DownloadFailed, NotFound, invalid
from footplate.sdk.files import RemoteFile, fetch, sha256_of
from footplate.sdk.models import UploadedFile
from footplate.sdk.request import ApiRequest, listed, path_segment, send, send_for
from footplate.sdk.wire import OnBytes, Wire

CHUNK_BYTES = 256 * 1024


class AsyncFiles:
    """Uploaded files: `file = await client.files.upload("rows.jsonl")`, then `"data": file.id`."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire

    async def upload(
        self, path: str | os.PathLike[str], *, name: str | None = None, tokenizer: str | None = None
    ) -> UploadedFile:
        """Uploads a file of JSON lines, CSV, Parquet or text. The result's `report` has rows, columns and bad rows.

        With a `tokenizer` such as models://bert-base-uncased, the report counts the tokens of all texts. A file that
        the service already has is not sent again, unless its stored report lacks these numbers.
        """
        from footplate.contract.files import file_id, kind_of, no_reader

        source = Path(path)
        name = source.name if name is None else name
        if source.is_dir():
            raise invalid("not_a_file", f"{str(source)!r} is a folder", "name the files in it")
        if not stat.S_ISREG(source.stat().st_mode):
            detail = f"{str(source)!r} is not a regular file"
            raise invalid("not_a_file", detail, "write the rows to a file, which is read twice")
        if (kind := kind_of(name)) is None:
            raise invalid("unknown_kind", *no_reader(name))
        local_sha256 = await sha256_of(self._wire, source)
        try:
            stored_file = await self.get(file_id(local_sha256, kind))
            if tokenizer is None or (stored_file.report is not None and stored_file.report.tokenizer == tokenizer):
                return stored_file
        except NotFound:
            pass
        headers = {"Content-Type": "application/octet-stream", "Content-Length": str(source.stat().st_size)}
        params, content = {"name": name, "tokenizer": tokenizer}, _Chunks(source, self._wire.on_bytes)
        request = ApiRequest("POST", "/files", params, headers, stream=content, is_repeatable=True)
        file = await send_for(UploadedFile, self._wire, request)
        if file.sha256 != local_sha256:
            raise DownloadFailed(f"{source} was written to while it was uploaded", hint="upload it again")
        return file

    async def get(self, file: str) -> UploadedFile:
        return await send_for(UploadedFile, self._wire, ApiRequest("GET", f"/files/{path_segment(file, 'file')}"))

    def list(self) -> AsyncGenerator[UploadedFile, None]:
        """Yields files, newest first. Pages are requested as they are needed."""
        return listed(UploadedFile, self._wire, "/files")

    async def download(self, file: str, folder: str | os.PathLike[str]) -> Path:
        """Downloads the file under its name, and moves it into place after its sha256 was verified."""
        uploaded_file = await self.get(file)
        remote = RemoteFile(
            f"/files/{uploaded_file.id}/content", uploaded_file.name, uploaded_file.bytes, uploaded_file.sha256
        )
        return await fetch(self._wire, remote, Path(folder))

    async def delete(self, file: str) -> None:
        """Deletes the file, unless a job that has not ended names it."""
        await send(self._wire, ApiRequest("DELETE", f"/files/{path_segment(file, 'file')}"))


class _Chunks(httpx2.SyncByteStream, httpx2.AsyncByteStream):
    """The content of a file as a request body, in chunks, for both kinds of client. Each try reads the whole file."""

    def __init__(self, path: Path, on_bytes: OnBytes | None) -> None:
        self._path, self._on_bytes = path, on_bytes

    def __iter__(self) -> Iterator[bytes]:
        size = self._path.stat().st_size
        with self._path.open("rb") as file:
            while chunk := file.read(CHUNK_BYTES):
                yield chunk
                if self._on_bytes is not None:
                    self._on_bytes(self._path.name, file.tell(), size)

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for chunk in self:
            yield chunk
