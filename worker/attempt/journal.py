"""The events of one attempt, numbered and kept on the node's disk until SQL has them.

The name of the file holds the attempt. Each line is a CRC-32 in hex, a space, and an event as JSON. `read` checks every
line again. A line that the disk has lost becomes a `gap` event, so that no reader waits for a number that never comes.
The supervisor of the attempt locks the file. A journal without a lock belongs to a supervisor that died, and the node
sends its events.
"""

from __future__ import annotations

import fcntl
import logging
import os
import re
import threading
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

from footplate.contract.crash_points import Moment, reached
from footplate.contract.errors import AttemptError
from footplate.contract.events import KEPT, Kind
from footplate.contract.host.linux import try_lock
from footplate.contract.messages import RunningAttempt
from footplate.contract.safe_paths import sync_folder
from worker.attempt.journal_lines import SEQ, encode, gap, seal, unseal

log = logging.getLogger("footplate.worker")

SUFFIX = ".journal"
NAME = re.compile(r"(?P<job>job_\w+)-(?P<attempt>\d+)-(?P<fence>\d+)-(?P<source>\d+)-(?P<claim>claim_\w+)\.journal")
UNREADABLE = ".unreadable"
"""The suffix of journals that cannot be sent. They are set aside for an operator."""
DROP_BYTES = 16 * 1024 * 1024
"""If acknowledged events take at least this many bytes of the file, they are removed from it."""
INDEX_EVERY = 256
"""The number of lines between two entries of the index, which holds the offset of every 256th line."""
CHUNK = 256 * 1024
_unforked = threading.Lock()
"""Held while code tests whether a journal is locked, because such a test locks the journal for a moment.

Celery's main thread may fork at any time. A child that is forked in that moment would keep the journal locked.
"""
os.register_at_fork(before=_unforked.acquire, after_in_parent=_unforked.release, after_in_child=_unforked.release)


class JournalFull(AttemptError):
    """The disk is full, or too many events wait on it. The attempt fails, because no event may be lost silently."""

    code = "journal_full"

    @classmethod
    def of(cls, error: OSError) -> Self:
        return cls(f"the node's disk does not take the attempt's events: {error.strerror}")


class JournalName(RunningAttempt):
    """The attempt and the node that a journal's events come from, as the name of its file holds them."""

    source: int = 0

    @property
    def file_name(self) -> str:
        return f"{self.job}-{self.attempt}-{self.fence}-{self.source}-{self.claim}{SUFFIX}"

    @classmethod
    def of(cls, path: Path) -> Self | None:
        """Parses a file's name. Returns None if the file is not a journal."""
        if (match := NAME.fullmatch(path.name)) is None:
            return None
        return cls.model_validate(match.groupdict())


class Journal:
    """The journal of one attempt. One thread appends events while another thread reads them."""

    def __init__(self, path: Path, fd: int, name: JournalName, max_bytes: int) -> None:
        self.path, self.name = path, name
        self.size = 0
        """The bytes of whole lines in the file."""
        self.first = 1
        """The number of the oldest event in the file."""
        self.last = 0
        """The number of the newest event."""
        self.is_done = False
        self._lock = threading.Lock()
        """Held while events are read, and while `drop_acknowledged` moves every line."""
        self._fd, self._max_bytes = fd, max_bytes
        self._index: list[tuple[int, int]] = []
        self._cursor = (1, 0)
        self._unwritten: list[bytes] = []
        """Lines that the disk did not take, and that are in memory only. Only `done` may be among them."""
        self._dirty = self._is_folder_synced = False

    @classmethod
    def create(cls, folder: Path, name: JournalName, max_mb: float) -> Self:
        """Makes an empty journal.

        The file is locked before it gets its name, because a journal without a lock belongs to a dead supervisor.
        """
        path = folder / name.file_name
        new_file = path.with_suffix(".new")
        fd = os.open(new_file, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        fcntl.flock(fd, fcntl.LOCK_EX)
        new_file.rename(path)
        return cls(path, fd, name, int(max_mb * 1024 * 1024))

    @classmethod
    def in_memory(cls, name: JournalName, max_mb: float) -> Self:
        """Makes a journal in memory. An attempt uses it to report that it cannot write to the node's disk."""
        fd = os.memfd_create("footplate-journal", os.MFD_CLOEXEC)
        return cls(Path(os.devnull), fd, name, int(max_mb * 1024 * 1024))

    @classmethod
    def reopen(cls, path: Path) -> Self | None:
        """Opens the journal of a dead supervisor, and cuts a partial line at its end.

        Returns None if the supervisor is alive, or if the file's name is not that of a journal.
        """
        try:
            fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            return None
        name = JournalName.of(path)
        if name is None:
            log.error("%s is not the name of a journal. The file is set aside, and its events are lost", path)
            path.rename(path.with_suffix(UNREADABLE))
        if name is None or not try_lock(fd):
            os.close(fd)
            return None
        journal = cls(path, fd, name, 0)
        journal._recover()
        return journal

    def append(self, events: Iterable[dict[str, Any]], *, even_if_full: bool = False) -> None:
        """Numbers events and writes them to the file. Waits for the disk if one of the events must never be lost."""
        lines: list[bytes] = []
        index: list[tuple[int, int]] = []
        offset, seq, must_sync, is_done = self.size, self.last, False, False
        for event in events:
            seq += 1
            kind = event["kind"]
            line = seal(encode(seq, event))
            if seq % INDEX_EVERY == 1:
                index.append((seq, offset))
            offset += len(line)
            lines.append(line)
            must_sync = must_sync or kind in KEPT
            is_done = is_done or kind == Kind.DONE
        if not lines:
            return
        if offset > self._max_bytes and not even_if_full:
            raise JournalFull(
                f"{self._max_bytes / 1024**2:.0f} MB of this attempt's events wait on the node's disk, and no more may "
                "wait",
                hint="bring the service or its Redis back, log less often, or raise FOOTPLATE_JOURNAL_MAX_MB",
            )
        try:
            self._write(b"".join(lines))
            self._index += index
        except OSError as error:
            if not even_if_full:
                raise JournalFull.of(error) from error
            self._unwritten += lines
        self.last = seq
        self.is_done = self.is_done or is_done
        reached(Moment.AFTER_JOURNAL_WRITE)
        if must_sync:
            try:
                self.sync()
            except OSError as error:
                # The events are in the file and will be sent, but the disk did not confirm them.
                if not even_if_full:
                    raise JournalFull.of(error) from error

    def sync(self) -> None:
        """Waits until the disk has all events, and at the first call also the file's name."""
        if not self._dirty:
            return
        self._dirty = False
        os.fdatasync(self._fd)
        if not self._is_folder_synced:
            self._is_folder_synced = True
            sync_folder(self.path.parent)
        reached(Moment.AFTER_JOURNAL_SYNC)

    def read(self, after: int, max_events: int, max_bytes: int = CHUNK) -> list[bytes]:
        """Returns the events after number `after` as JSON. An event that is lost is returned as a gap.

        Returns at least one event if there is one, even if it is larger than `max_bytes`.
        """
        events: list[bytes] = []
        last, total = self.last, 0
        with self._lock:
            for event in self._from(max(after + 1, self.first), last):
                if events and (len(events) == max_events or total + len(event) > max_bytes):
                    break
                events.append(event)
                total += len(event) + 1
        return events

    def drop_acknowledged(self, watermark: int) -> None:
        """Removes acknowledged events from the file, if they are a large part of it."""
        place = bisect_right(self._index, (watermark + 1, 1 << 62)) - 1
        if place < 0 or self._unwritten:
            return
        seq, start = self._index[place]
        if start < min(DROP_BYTES, self._max_bytes // 4):
            return
        new_file = self.path.with_suffix(".new")
        fd = os.open(new_file, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            remaining_bytes = os.pread(self._fd, self.size - start, start)
            if os.write(fd, remaining_bytes) == len(remaining_bytes):
                os.fdatasync(fd)
                with self._lock:
                    new_file.rename(self.path)
                    os.dup2(fd, self._fd, inheritable=False)
                    self.first, self.size = seq, self.size - start
                    self._index = [(number, offset - start) for number, offset in self._index if number >= seq]
                    self._cursor = self._index[0]
        finally:
            os.close(fd)
            new_file.unlink(missing_ok=True)

    def close(self) -> None:
        """Closes the file, which unlocks it, so that the node's heartbeat thread sends the rest of the events."""
        with suppress(OSError):
            self.sync()
        os.close(self._fd)

    def delete(self) -> None:
        if self.path.suffix == SUFFIX:
            self.path.unlink(missing_ok=True)
        os.close(self._fd)

    def _write(self, data: bytes) -> None:
        byte_count = 0
        try:
            while byte_count < len(data):
                byte_count += os.pwrite(self._fd, data[byte_count:], self.size + byte_count)
        except OSError:
            # A partial line is cut off, because otherwise lines that are written after it would look corrupt.
            os.ftruncate(self._fd, self.size)
            raise
        self._dirty = True
        self.size += len(data)

    def _from(self, seq: int, last: int) -> Iterator[bytes]:
        """Yields the events from `seq` to `last`. An event whose line is broken or missing becomes a gap."""
        if self._cursor[0] > seq or self._cursor[0] <= seq - INDEX_EVERY:
            place = bisect_right(self._index, (seq, 1 << 62)) - 1
            self._cursor = self._index[place] if place >= 0 else (self.first, 0)
        next_seq, offset = self._cursor
        next_seq = min(next_seq, seq)
        for line, end in self._lines(offset):
            event = unseal(line)
            match = SEQ.match(event) if event else None
            if match is None or event is None or not next_seq <= (number := int(match[1])) <= last:
                continue
            while next_seq < number:
                if next_seq >= seq:
                    yield gap(next_seq)
                next_seq += 1
            next_seq = number + 1
            if number >= seq:
                yield event
                # The cursor moves only if the reader continues. A reader may stop at a large event, and read it again.
                self._cursor = (next_seq, end)
        while next_seq <= last:
            if next_seq >= seq:
                yield gap(next_seq)
            next_seq += 1

    def _lines(self, offset: int) -> Iterator[tuple[bytes, int]]:
        """Yields each line of the file and the offset of its end, and then the unwritten lines."""
        size, partial_line = self.size, b""
        while offset < size:
            length = min(CHUNK, size - offset)
            try:
                chunk = os.pread(self._fd, length, offset)
            except OSError as error:
                # These lines become gaps, because waiting for a disk to recover could take for ever.
                log.error("%s cannot be read at byte %d: %s", self.path, offset, error)
                chunk = bytes(length)
            if not chunk:
                break
            start = offset - len(partial_line)
            offset += len(chunk)
            *lines, partial_line = (partial_line + chunk).split(b"\n")
            for line in lines:
                start += len(line) + 1
                yield line, start
        for line in self._unwritten:
            yield line[:-1], size

    def _recover(self) -> None:
        """Reads the whole file: finds the numbers of its events, and cuts what follows the last valid line."""
        self.size = os.fstat(self._fd).st_size
        valid_bytes = self.first = 0
        for line, end in self._lines(0):
            event = unseal(line)
            if event is None:
                continue
            if match := SEQ.match(event):
                self.last = max(self.last, int(match[1]))
                self.first = self.first or self.last
                self.is_done = self.is_done or match[2] == Kind.DONE.encode()
                if self.last % INDEX_EVERY == 1:
                    self._index.append((self.last, end - len(line) - 1))
            valid_bytes = end
        os.ftruncate(self._fd, valid_bytes)
        self.size = valid_bytes
        self.first = self.first or 1
        self._cursor = (self.first, 0)


def is_owned(path: Path) -> bool:
    """Returns True if a supervisor has the journal locked, which means that it is alive."""
    with _unforked:
        try:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return False
        try:
            return not try_lock(fd, shared=True)
        finally:
            os.close(fd)
