"""Many files as one tar, made while it is sent: nothing is copied, and its length is known before the first byte."""

from __future__ import annotations

import tarfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import IO

from service.artifact_files import exactly
from service.jobs.manifest import SealedFile

MEDIA_TYPE = "application/x-tar"
END = bytes(2 * tarfile.BLOCKSIZE)


@dataclass(frozen=True, slots=True)
class Archive:
    """The same bytes whenever it is made: names, lengths and one time, and nothing of the machine."""

    folder: str
    """What everything in it lies in."""
    files: Sequence[SealedFile]
    seconds: int
    """Since 1970: when all of it was made."""

    def __len__(self) -> int:
        return sum(len(self._header(one)) + one.bytes + len(_padding(one)) for one in self.files) + len(END)

    def pieces(self, opened: Callable[[SealedFile], IO[bytes]]) -> Iterator[bytes]:
        for one in self.files:
            with opened(one) as file:
                yield self._header(one)
                yield from exactly(file, one.bytes)
            if padding := _padding(one):
                yield padding
        yield END

    def _header(self, one: SealedFile) -> bytes:
        about = tarfile.TarInfo(f"{self.folder}/{one.path}")
        about.size, about.mtime, about.mode = one.bytes, self.seconds, 0o644
        return about.tobuf(tarfile.PAX_FORMAT)


def _padding(one: SealedFile) -> bytes:
    return bytes(-one.bytes % tarfile.BLOCKSIZE)
