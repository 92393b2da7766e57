"""The thread through which one attempt's supervisor talks to control, by Redis.

The thread sends events and heartbeats, and receives control's replies. If Redis is down or frozen, only this thread
waits. The supervisor goes on writing its journal. When Redis answers, the thread sends all events that SQL has not
acknowledged.
"""

from __future__ import annotations

import logging
import os
import select
import signal
import threading
import time
from queue import SimpleQueue

import redis
from pydantic import ValidationError

from footplate.contract import redis_keys
from footplate.contract.crash_points import Moment, reached
from footplate.contract.messages import TO_ATTEMPT, AttemptBeat, AttemptReply, EventBatch, Grant
from footplate.contract.repeated_errors import ErrorLog
from worker.attempt.journal import CHUNK, Journal, JournalName
from worker.redis_client import BLOCK_SECONDS, REDIS_ERRORS, Listener, post

log = logging.getLogger("footplate.worker")

BATCH_EVENTS = 500
WINDOW_EVENTS = 20_000
"""The most events that are sent and not acknowledged. More would only fill Redis while control does not read."""
WINDOW_BYTES = 8 * 1024 * 1024
GATHER_SECONDS = 0.01
"""The pause between two sends under load. The first event after a silence is sent at once."""
LOOK_SECONDS = 0.25
"""The interval of reads of the watermark while events are unacknowledged. SQL has all events up to the watermark."""
HURRY_SECONDS = 0.02
"""The interval of reads of the watermark if the attempt has ended and waits for nothing else."""
SILENCE_SECONDS = 5.0
"""The time without an acknowledgement after which events are sent again. The time doubles with each try."""
LONGEST_SILENCE_SECONDS = 60.0
HUNG_SECONDS = 60.0
"""The time without a turn of the supervisor's loop after which the supervisor counts as hung. The loop should turn
twice a second."""
OUTAGE_SECONDS = 2.0
"""The length from which an outage of Redis is noted in the job's history."""


def batch(name: JournalName, first: int, events: list[bytes]) -> bytes:
    """Returns an EventBatch as JSON. Its events are JSON already, and are not parsed."""
    envelope = EventBatch(**dict(name), first=first, events=[]).model_dump_json()
    return envelope.removesuffix("[]}").encode() + b"[" + b",".join(events) + b"]}"


class Sender:
    """Sends a journal's events, and again those that are not acknowledged in time."""

    def __init__(self, journal: Journal, watermark: int = 0) -> None:
        self.journal = journal
        # Events before `journal.first` were dropped, because they were acknowledged.
        self.acknowledged = self._sent = max(watermark, journal.first - 1)
        self._sent_bytes: list[tuple[int, int]] = []
        self._epoch: bytes | None = None
        self._silence = SILENCE_SECONDS
        self._moved_at = time.monotonic()

    @property
    def has_more(self) -> bool:
        return self._sent < self.journal.last and not self._window_is_full()

    @property
    def is_waiting(self) -> bool:
        return self.acknowledged < self._sent

    def rewind(self) -> None:
        """Makes the next `exchange` send all unacknowledged events again, because they may be lost."""
        self._sent = self.acknowledged
        self._sent_bytes.clear()
        self._moved_at = time.monotonic()

    def exchange(self, client: redis.Redis, beat: AttemptBeat | None = None) -> None:
        """Sends a few batches of events and a heartbeat, and reads which events SQL has, in one round trip to Redis."""
        name = self.journal.name
        upto, sizes = self._sent, list[tuple[int, int]]()
        with client.pipeline(transaction=False) as pipeline:
            pipeline.get(redis_keys.EPOCH)
            pipeline.get(redis_keys.watermark(name.job, name.attempt, name.source))
            if beat is not None:
                post(pipeline, beat)
            while upto < self.journal.last and not self._window_is_full(upto, sizes) and len(sizes) < 8:
                events = self.journal.read(upto, BATCH_EVENTS, CHUNK)
                upto += len(events)
                sizes.append((upto, sum(map(len, events))))
                pipeline.xadd(redis_keys.EVENTS, {"batch": batch(name, self.journal.first, events)})
            if sizes:
                reached(Moment.BEFORE_SEND)
            epoch, mark, *_ = pipeline.execute()
            if sizes:
                reached(Moment.AFTER_SEND)
        if not self.is_waiting:
            self._moved_at = time.monotonic()
        self._sent = upto
        self._sent_bytes += sizes
        self.acknowledge(int(mark or 0))
        self._rewind_if_lost(epoch, mark)

    def acknowledge(self, mark: int) -> None:
        if mark > self.acknowledged:
            self.acknowledged = min(mark, self.journal.last)
            self._sent = max(self._sent, self.acknowledged)
            self._sent_bytes = [message for message in self._sent_bytes if message[0] > self.acknowledged]
            self._moved_at, self._silence = time.monotonic(), SILENCE_SECONDS

    def _rewind_if_lost(self, epoch: bytes | None, mark: bytes | None) -> None:
        """Sends events again if Redis was replaced or emptied, or if the watermark has not moved for long.

        A new `epoch` shows that Redis was replaced or emptied. If SQL was restored from a backup, the watermark is even
        lower than before.
        """
        if epoch != self._epoch:
            if self._epoch is not None or epoch is None:
                self.rewind()
            self._epoch = epoch
        elif self.is_waiting and time.monotonic() - self._moved_at > self._silence:
            self._silence = min(self._silence * 2, LONGEST_SILENCE_SECONDS)
            if mark is not None:
                self.acknowledged = min(self.acknowledged, max(int(mark), self.journal.first - 1))
            self.rewind()

    def _window_is_full(self, upto: int | None = None, sizes: list[tuple[int, int]] | None = None) -> bool:
        if (self._sent if upto is None else upto) - self.acknowledged >= WINDOW_EVENTS:
            return True
        return sum(size for _, size in self._sent_bytes) + sum(size for _, size in sizes or ()) >= WINDOW_BYTES


class Heartbeats:
    """Makes the heartbeats of one attempt, and kills this process if its supervisor hangs."""

    def __init__(self, grant: Grant, journal: Journal) -> None:
        self.last_command = max((command.no for command in grant.commands), default=0)
        """The number of the newest command that training has."""
        self.due_at = 0.0
        self._grant, self._journal = grant, journal
        self._number = self._unattended = 0

    def record_turn(self) -> None:
        """Records that the supervisor's loop works. A supervisor that hangs is killed."""
        self._unattended = 0

    def next(self) -> AttemptBeat:
        """Returns the next heartbeat. Kills this process if its loop hangs, so that control retries the job."""
        # Heartbeats are counted, not seconds. A process that was frozen sent no heartbeats, and must not be killed.
        self._unattended += 1
        if self._unattended * self._grant.beat_seconds > HUNG_SECONDS and not self._journal.is_done:
            log.critical(
                "%s attempt %s: the supervisor's loop has hung for %.0f s, so this process and its training are killed",
                self._grant.job, self._grant.attempt, HUNG_SECONDS,
            )  # fmt: skip
            os.kill(os.getpid(), signal.SIGKILL)
        self._number += 1
        self.due_at = time.monotonic() + self._grant.beat_seconds
        name, journaled = self._journal.name, self._journal.last
        return AttemptBeat(**dict(name), number=self._number, journaled=journaled, last_command=self.last_command)


class RedisOutage:
    """Measures the outages of Redis as one attempt's link sees them."""

    def __init__(self) -> None:
        self._answered_at = time.monotonic()
        self._since: float | None = None

    def begin(self, error: Exception) -> float:
        """Records that Redis failed, and returns the seconds until the next try."""
        now = time.monotonic()
        if self._since is None:
            # A broken connection is noticed at once, but a frozen Redis only after its timeout.
            self._since = self._answered_at if isinstance(error, TimeoutError | redis.TimeoutError) else now
        return 0.2 if now - self._answered_at < 10 else 1.0

    def end(self) -> float:
        """Records that Redis answered. Returns the length in seconds of the outage that has now ended, or 0."""
        self._answered_at = time.monotonic()
        since, self._since = self._since, None
        return 0.0 if since is None else self._answered_at - since


class ControlLink(threading.Thread):
    """The thread that talks to control. Each reply or outage in its queues also makes the eventfd `wake` readable."""

    def __init__(self, client: redis.Redis, grant: Grant, journal: Journal, wake: int) -> None:
        super().__init__(name=f"link-{grant.claim}", daemon=True)
        self.replies: SimpleQueue[AttemptReply] = SimpleQueue()
        self.outages: SimpleQueue[float] = SimpleQueue()
        """The seconds of each outage of Redis, put here when Redis answers again."""
        self.is_hurried = False
        """True if the attempt waits for nothing but its last acknowledgement."""
        self.beats = Heartbeats(grant, journal)
        self._client, self._claim = client, grant.claim
        self._sender = Sender(journal, grant.watermark)
        self._send_event = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        # The thread has descriptors of its own, and closes them itself. `close` does not wait for a thread that hangs.
        self._send_event_copy, self._wake = os.dup(self._send_event), os.dup(wake)
        self._closing = threading.Event()
        self._sent_at = 0.0
        self._outage = RedisOutage()
        self._failures = ErrorLog(log, f"{grant.job} attempt {grant.attempt}")

    @property
    def acknowledged(self) -> int:
        return self._sender.acknowledged

    def send_now(self, *, beat: bool = False) -> None:
        """Makes the thread send now. With `beat` it also sends a heartbeat, for news that control needs at once."""
        if beat:
            self.beats.due_at = 0.0
        os.eventfd_write(self._send_event, 1)

    def close(self, within: float = 1.0) -> None:
        """Ends the thread. If the thread waits for a frozen Redis, it is left behind after `within` seconds."""
        self._closing.set()
        self.send_now()
        self.join(within)
        os.close(self._send_event)

    def run(self) -> None:
        try:
            self._connect_and_talk()
        finally:
            os.close(self._send_event_copy)
            os.close(self._wake)

    def _connect_and_talk(self) -> None:
        while not self._closing.is_set():
            listener = None
            try:
                listener = Listener(self._client, redis_keys.reply(self._claim))
                self._sender.rewind()
                self._talk(listener)
            except REDIS_ERRORS as error:
                pause = self._outage.begin(error)
                self._failures.failed("cannot report: Redis does not answer (%s)", error)
                self._closing.wait(pause)
            except Exception as error:
                # No error may end this thread, because the attempt has no other connection to control.
                self._failures.failed("cannot exchange messages with control: %r", error, trace=True)
                self._closing.wait(1.0)
            finally:
                if listener is not None:
                    listener.close()

    def _talk(self, listener: Listener) -> None:
        heard_at = time.monotonic()
        while not self._closing.is_set():
            self._exchange()
            readable, _, _ = select.select([listener.fd, self._send_event_copy], [], [], self._pause())
            now = time.monotonic()
            if listener.fd in readable:
                heard_at = now
                self._receive(listener.read())
            elif now - heard_at > BLOCK_SECONDS + 3:
                raise TimeoutError("Redis does not answer")
            if self._send_event_copy in readable:
                os.eventfd_read(self._send_event_copy)

    def _pause(self) -> float:
        """Returns how many seconds the thread may wait for replies before it must send again."""
        now = time.monotonic()
        if self._sender.has_more:
            return max(0.0, self._sent_at + GATHER_SECONDS - now)
        due = self.beats.due_at - now
        if self._sender.is_waiting:
            due = min(due, HURRY_SECONDS if self.is_hurried else LOOK_SECONDS)
        return max(0.0, due)

    def _exchange(self) -> None:
        now = time.monotonic()
        beat = self.beats.next() if now >= self.beats.due_at else None
        if beat is None and self._sender.has_more and now < self._sent_at + GATHER_SECONDS:
            return
        before = self._sender.acknowledged
        self._sent_at = now
        self._sender.exchange(self._client, beat)
        self._failures.went_well()
        if (outage_seconds := self._outage.end()) > OUTAGE_SECONDS:
            self.outages.put(outage_seconds)
        if self._sender.acknowledged != before or outage_seconds > OUTAGE_SECONDS:
            os.eventfd_write(self._wake, 1)

    def _receive(self, raw: bytes | None) -> None:
        if raw is None:
            return
        try:
            message = TO_ATTEMPT.validate_json(raw)
        except ValidationError as error:
            log.warning("cannot parse control's reply to claim %s: %s", self._claim, error)
            return
        if isinstance(message, AttemptReply):
            # A closed attempt's events are all in SQL, or will never be.
            self._sender.acknowledge(self._sender.journal.last if message.closed else message.watermark)
            self.replies.put(message)
            os.eventfd_write(self._wake, 1)
