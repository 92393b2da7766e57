"""Bundles of your own code. A folder is zipped, and the zip is uploaded unless the service already has it."""

from __future__ import annotations

import io
import os
import stat
import zipfile
from collections import Counter
from collections.abc import AsyncGenerator, Iterator
from hashlib import sha256
from pathlib import Path

from footplate.contract.bundles import MAX_BYTES, MAX_ENTRIES, MAX_UNPACKED_BYTES, MIB
from footplate.errors import InvalidRequest, NotFound, invalid
from footplate.sdk.models import Bundle
from footplate.sdk.request import ApiRequest, listed, path_segment, send, send_for
from footplate.sdk.wire import Wire

LEFT_OUT = frozenset({"__pycache__", "node_modules", "venv"})
"""Folders that are left out, besides names that begin with a dot."""
_LONG_AGO = (1980, 1, 1, 0, 0, 0)


class AsyncBundles:
    """The bundles of code on the service. A spec names one by its sha256.

    For example `"code": {"bundle": (await client.bundles.upload("my_folder")).sha256}`.
    """

    def __init__(self, wire: Wire) -> None:
        self._wire = wire

    async def upload(self, path: str | os.PathLike[str]) -> Bundle:
        """Uploads a folder, a Python file or a zip. A bundle that the service has already is not sent again.

        Of a folder all files are sent, except `__pycache__`, `venv`, `node_modules` and names that begin with a dot.
        Named pipes, sockets and devices are left out, too.
        """
        data = packed(Path(path))
        try:
            return await self.get(sha256(data).hexdigest())
        except NotFound:
            pass
        headers = {"Content-Type": "application/zip"}
        request = ApiRequest("POST", "/bundles", headers=headers, body=data, is_repeatable=True)
        return await send_for(Bundle, self._wire, request)

    async def get(self, sha256: str) -> Bundle:
        return await send_for(Bundle, self._wire, ApiRequest("GET", f"/bundles/{path_segment(sha256, 'bundle')}"))

    def list(self) -> AsyncGenerator[Bundle, None]:
        """Yields bundles, newest first. Pages are requested as they are needed."""
        return listed(Bundle, self._wire, "/bundles")

    async def delete(self, sha256: str) -> None:
        """Deletes the bundle, unless a job that has not ended needs it."""
        await send(self._wire, ApiRequest("DELETE", f"/bundles/{path_segment(sha256, 'bundle')}"))


def packed(path: Path) -> bytes:
    """Returns the zip of a folder or a Python file, or the content of a zip file.

    The same files always give the same bytes, because the sha256 of a zip identifies the bundle. Of a file's mode, only
    the executable bit is kept.
    """
    if path.is_file() and path.suffix != ".py":
        if not zipfile.is_zipfile(path):
            detail = f"{str(path)!r} is not a folder, a .py file or a zip"
            raise invalid("not_a_zip", detail, "name the folder of your modules")
        return path.read_bytes()
    files = [path] if path.is_file() else sorted(_files(path))
    root = path.parent if path.is_file() else path
    if not files:
        raise invalid("empty_bundle", f"{str(path)!r} has no file to upload", "name the folder of your modules")
    sizes = [file.stat().st_size for file in files]
    # The files are counted before they are read, because the folder may hold a run's checkpoints.
    if len(files) > MAX_ENTRIES or sum(sizes) > MAX_UNPACKED_BYTES:
        raise _too_large(path, [file.relative_to(root) for file in files], sizes)
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for file in files:
            entry = zipfile.ZipInfo(file.relative_to(root).as_posix(), _LONG_AGO)
            mode = 0o755 if file.stat().st_mode & stat.S_IXUSR else 0o644
            entry.compress_type, entry.external_attr = zipfile.ZIP_DEFLATED, (stat.S_IFREG | mode) << 16
            archive.writestr(entry, file.read_bytes())
    if buffer.tell() > MAX_BYTES:
        raise _too_large(path, [file.relative_to(root) for file in files], sizes)
    return buffer.getvalue()


def _too_large(path: Path, files: list[Path], sizes: list[int]) -> InvalidRequest:
    """Returns the error for a folder that no bundle can hold. It names the largest files and folders at its top."""
    largest: Counter[str] = Counter()
    for file, size in zip(files, sizes, strict=True):
        largest[file.parts[0]] += size
    names = ", ".join(f"{name} ({size / MIB:,.1f} MiB)" for name, size in largest.most_common(3))
    detail = (
        f"{str(path)!r} is too large for a bundle of code: {len(files):,} files with {sum(sizes) / MIB:,.1f} MiB. At "
        f"most {MAX_ENTRIES:,} files, {MAX_UNPACKED_BYTES // MIB} MiB and a zip of {MAX_BYTES // MIB} MiB are allowed. "
        f"The largest here: {names}"
    )
    hint = "name a folder that holds only code; specs name rows and weights as data://… and models://…"
    return invalid("bundle_too_large", detail, hint)


def _files(folder: Path) -> Iterator[Path]:
    """Yields the files of a folder that belong to a bundle. Links to folders are not followed."""
    for at, folders, names in os.walk(folder, onerror=_refuse):
        folders[:] = [name for name in folders if name not in LEFT_OUT and not name.startswith(".")]
        files = (Path(at, name) for name in names if not name.startswith("."))
        # Reading a named pipe would wait for a writer. The `stat` of a broken link raises an error that names the link.
        yield from (file for file in files if stat.S_ISREG(file.stat().st_mode))


def _refuse(error: OSError) -> None:
    raise error
