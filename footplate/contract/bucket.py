"""An artifact store that is not a folder: objects in a bucket, which service and nodes can reach from anywhere.

    FOOTPLATE_ARTIFACTS=s3://bucket/prefix      credentials and endpoint from AWS_*, ~/.aws or a role

A bucket has no folders, no rename and no links. A folder in a bucket is complete if its manifest exists, because the
manifest is written last. Paths are those of `footplate/contract/layout.py`.

A missing object is reported as FileNotFoundError only if the store has the service's probe file. All other errors are
raised as StoreUnreachable, and callers may retry.
"""

from __future__ import annotations

import errno
import io
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, TypeVar
from urllib.parse import unquote, urlsplit

from pydantic import AfterValidator, BeforeValidator

from footplate.contract import layout
from footplate.contract.settings import expanded

SCHEME = "s3://"
EXTRA = "footplate[s3]"
PART_BYTES, PARTS_AT_ONCE = 16 * 1024 * 1024, 4
"""The size of the parts of a multipart upload, and the number of parts that are sent at once."""
REMOVALS_AT_ONCE = 10
"""The number of objects that are deleted at once. Some stores cannot delete several objects with one request."""
AHEAD_BYTES = 4 * 1024 * 1024
"""The number of bytes that are read ahead when a file is streamed."""
CONNECT_SECONDS, READ_SECONDS = 3.0, 20.0
_OF_THIS_DISK = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EROFS})
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+]+:")
_BUCKET = re.compile(r"[a-z0-9][a-z0-9.\-]{1,61}[a-z0-9]")
T = TypeVar("T")


class StoreUnreachable(OSError):
    """Raised if the store does not answer, refuses a request, or is another store. Its files may still exist."""


@dataclass(frozen=True, slots=True)
class StoredObject:
    """An object in a listing. `path` is relative to the listed folder."""

    path: str
    bytes: int
    modified: float


def _root(text: str) -> str:
    """Checks and normalizes the address of a store, a folder or a bucket. Raises ValueError for an invalid address."""
    if "://" not in text:
        # Only folders have no scheme, and the folder `s3:` for a mistyped bucket would be on this disk.
        if _SCHEME.match(text):
            raise ValueError("write /a/folder, file:///a/folder or s3://bucket/prefix")
        return expanded(text)
    parts = urlsplit(text)
    if parts.scheme == "file" and parts.netloc in ("", "localhost") and parts.path.startswith("/"):
        return unquote(parts.path)
    if parts.scheme != "s3" or parts.query or parts.fragment:
        raise ValueError("write /a/folder, file:///a/folder or s3://bucket/prefix")
    if "@" in parts.netloc or not _BUCKET.fullmatch(parts.netloc):
        raise ValueError("write s3://bucket/prefix; keys and the endpoint come from AWS_* variables")
    if {".", "..", ""} & set(parts.path.strip("/").split("/")) and parts.path.strip("/"):
        raise ValueError("the prefix has an empty component, or a component . or ..")
    if find_spec("s3fs") is None:
        raise ValueError(f"a store in a bucket needs s3fs: pip install '{EXTRA}'")
    return SCHEME + (parts.netloc + parts.path).rstrip("/")


Root = Annotated[
    str, BeforeValidator(lambda value: os.fspath(value) if isinstance(value, Path) else value), AfterValidator(_root)
]
"""The type of the setting FOOTPLATE_ARTIFACTS."""


class RemoteStore:
    """An artifact store in a bucket, below a prefix. Each process connects when it first uses the store."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._place = url.removeprefix(SCHEME)
        self._connected: tuple[int, Any] | None = None

    def __str__(self) -> str:
        return self.url

    # Write

    def put(self, file: Path, path: str) -> None:
        """Uploads a file completely or not at all."""
        try:
            with self._translated_errors(path):
                self._fs.put_file(str(file), self._key(path), chunksize=PART_BYTES, max_concurrency=PARTS_AT_ONCE)
        except FileNotFoundError as error:
            if not file.exists():
                raise
            raise StoreUnreachable(f"the bucket of {self.url} does not exist: {error}") from error

    def write(self, content: bytes, path: str) -> None:
        try:
            with self._translated_errors(path):
                self._fs.pipe_file(self._key(path), content)
        except FileNotFoundError as error:
            raise StoreUnreachable(f"the bucket of {self.url} does not exist: {error}") from error

    def commit(self, folder: Path, names: Iterable[str], path: str, goes_on: Callable[[], bool]) -> bool:
        """Uploads files of a folder, and then its manifest. Stops and returns False as soon as `goes_on` returns False.

        An older manifest is deleted first, because it describes files that are going to be replaced.
        """
        manifest = f"{path}/{layout.MANIFEST}"
        self.remove_file(manifest)
        for name in names:
            if not goes_on():
                return False
            self.put(folder / name, f"{path}/{name}")
        if not goes_on():
            return False
        self.put(folder / layout.MANIFEST, manifest)
        return True

    def remove_file(self, path: str) -> None:
        """Deletes a file. A missing file is not an error."""
        with self._translated_errors(path), suppress(FileNotFoundError):
            self._fs.rm_file(self._key(path))

    def remove(self, folder: str) -> None:
        """Deletes a folder, all manifests in it first, so that a half-deleted checkpoint does not look complete."""
        paths = [f"{folder}/{file.path}" for file in self.files(folder)]
        manifests = [path for path in paths if path.endswith(f"/{layout.MANIFEST}")]
        for group in (manifests, sorted(set(paths).difference(manifests))):
            do_at_once(self.remove_file, group, REMOVALS_AT_ONCE)

    # Read

    def read(self, path: str) -> bytes:
        """Returns the content of a file. Raises FileNotFoundError or StoreUnreachable as `fetch` does."""
        with self._looked_for(path):
            content: bytes = self._fs.cat_file(self._key(path))
            return content

    def fetch(self, path: str, file: Path) -> None:
        """Downloads a file. Raises FileNotFoundError if the store lacks the file.

        Raises StoreUnreachable instead if the store also lacks the service's probe file, because it is then the wrong
        store.
        """
        file.parent.mkdir(parents=True, exist_ok=True)
        with self._looked_for(path):
            self._fs.get_file(self._key(path), str(file))

    def open(self, path: str) -> RemoteFile | None:
        """Opens a file for reading at any position. Returns None if the file does not exist."""
        try:
            with self._looked_for(path):
                handle = self._fs.open(self._key(path), "rb", block_size=AHEAD_BYTES, cache_type="readahead")
        except FileNotFoundError:
            return None
        return RemoteFile(self, path, handle)

    def files(self, folder: str) -> list[StoredObject]:
        """Returns all files below the folder, sorted by path."""
        place = self._key(folder)
        with self._translated_errors(folder):
            try:
                objects: Mapping[str, Mapping[str, Any]] = self._fs.find(place, detail=True)
            except FileNotFoundError:
                objects = {}
        files = [
            StoredObject(key.removeprefix(f"{place}/"), int(info["size"]), _seconds(info))
            for key, info in objects.items()
            if key != place
        ]
        return sorted(files, key=lambda file: file.path)

    def has(self, path: str) -> bool:
        with self._translated_errors(path):
            return bool(self._fs.exists(self._key(path)))

    def trouble(self) -> str | None:
        """Returns why the store cannot be used, or None if it has the service's probe file."""
        try:
            if self.has(layout.PROBE):
                return None
        except StoreUnreachable as error:
            return f"the artifact store cannot be read: {error}"
        return (
            f"{self.url} is not the service's artifact store, because {layout.PROBE} is missing: "
            "create the bucket if it does not exist, and set FOOTPLATE_ARTIFACTS as on the service"
        )

    # Connection

    @property
    def _fs(self) -> Any:
        """This process's client. A forked process needs a new one, because a fork loses connections and threads."""
        if self._connected is None or self._connected[0] != os.getpid():
            import s3fs

            limits = {"connect_timeout": CONNECT_SECONDS, "read_timeout": READ_SECONDS, "retries": {"max_attempts": 1}}
            # Listings are not cached, because other processes write to the bucket too.
            fs = s3fs.S3FileSystem(config_kwargs=limits, use_listings_cache=False, skip_instance_cache=True)
            fs.retries = 2
            self._connected = (os.getpid(), fs)
        return self._connected[1]

    def _key(self, path: str) -> str:
        return f"{self._place}/{path}"

    @contextmanager
    def _translated_errors(self, path: str) -> Iterator[None]:
        """Raises StoreUnreachable for all errors of the client except for a missing object or a full local disk."""
        try:
            yield
        except (FileNotFoundError, StoreUnreachable):
            raise
        except Exception as error:
            if isinstance(error, OSError) and error.errno in _OF_THIS_DISK:
                raise
            reason = str(error) or type(error).__name__
            raise StoreUnreachable(f"{self.url} cannot be used ({path}): {reason[:300]}") from error

    @contextmanager
    def _looked_for(self, path: str) -> Iterator[None]:
        """Raises StoreUnreachable instead of FileNotFoundError if the store lacks the service's probe file."""
        try:
            with self._translated_errors(path):
                yield
        except FileNotFoundError:
            if (why := self.trouble()) is not None:
                raise StoreUnreachable(why) from None
            raise


class RemoteFile(io.RawIOBase):
    """A file of the store, opened for reading. Reading fails if the object was replaced after it was opened."""

    def __init__(self, store: RemoteStore, path: str, handle: Any) -> None:
        self._store, self._path, self._opened = store, path, handle
        self.bytes: int = handle.size
        self.modified = _seconds(handle.details)
        self.tag = str(handle.details.get("ETag", "")).strip('"')

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = 0) -> int:
        return int(self._opened.seek(offset, whence))

    def tell(self) -> int:
        return int(self._opened.tell())

    def read(self, size: int = -1) -> bytes:
        try:
            with self._store._translated_errors(self._path):
                content: bytes = self._opened.read(size)
                return content
        except FileNotFoundError as error:
            raise StoreUnreachable(f"{self._path} was deleted while it was read") from error

    def close(self) -> None:
        self._opened.close()
        super().close()


def do_at_once(do: Callable[[T], object], items: Iterable[T], most: int) -> None:
    """Calls `do` with every item, in up to `most` threads. An error ends the remaining calls and is raised."""
    with ThreadPoolExecutor(most) as threads:
        for _ in threads.map(do, items):
            pass


def stays_inside(path: str) -> bool:
    """Returns True if a relative path cannot lead out of the folder to which it is appended."""
    return path.isprintable() and {"", ".", ".."}.isdisjoint(path.split("/"))


def _seconds(info: Mapping[str, Any]) -> float:
    modified_at = info.get("LastModified")
    return float(modified_at.timestamp()) if modified_at is not None and hasattr(modified_at, "timestamp") else 0.0
