"""The link of one attempt to control: its thread sends events and beats, and reads what control says.

It is the only one who talks to Redis. A Redis that is away, frozen or empty costs this thread its time and nobody else:
the supervisor goes on writing its journal, and everything from the last acknowledged event on is sent again later.
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

from footplate.contract import keys
from footplate.contract.crash_points import Moment, reached
from footplate.contract.messages import TO_ATTEMPT, AttemptBeat, AttemptReply, EventBatch, Grant
from footplate.contract.repeated_errors import Repeated
from worker.attempt.journal import CHUNK, Header, Journal
from worker.redis_client import AWAY, BLOCK_SECONDS, Listener, post

log = logging.getLogger("footplate.worker")

BATCH_EVENTS = 500
WINDOW_EVENTS = 20_000
"""Sent and not acknowledged. More would only fill Redis while nobody reads."""
WINDOW_BYTES = 8 * 1024 * 1024
GATHER_SECONDS = 0.01
"""Between two sends under load. The first event after a silence goes at once."""
LOOK_SECONDS = 0.25
"""Between two looks at the watermark while something is not acknowledged."""
HURRY_SECONDS = 0.02
"""The same, when the acknowledgement is all that the attempt waits for."""
SILENCE_SECONDS = 5.0
"""Nothing acknowledged for this long: send again. Doubles with every try that brings nothing."""
LONGEST_SILENCE_SECONDS = 60.0
HUNG_SECONDS = 60.0
"""The supervisor's loop turns twice a second. Longer than this, and nobody watches over training any more."""
OUTAGE_SECONDS = 2.0
"""A Redis that was away for longer is told in the job's history."""


def batch(header: Header, first: int, events: list[bytes]) -> bytes:
    """One entry of the stream. The events are JSON already and are not read again."""
    envelope = EventBatch(
        job=header.job,
        attempt=header.attempt,
        fence=header.fence,
        claim=header.claim,
        source=header.source,
        first=first,
        events=[],
    ).model_dump_json()
    return envelope.removesuffix("[]}").encode() + b"[" + b",".join(events) + b"]}"


class Sender:
    """What of a journal is on its way and what has arrived. Sends through whatever pipeline it is given."""

    def __init__(self, journal: Journal, acknowledged: int = 0) -> None:
        self.journal = journal
        # What the journal does not have any more was acknowledged.
        self.acknowledged = self._sent = max(acknowledged, journal.first - 1)
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
        """Everything not acknowledged goes again: it may have gone with a connection or a Redis."""
        self._sent = self.acknowledged
        self._sent_bytes.clear()
        self._moved_at = time.monotonic()

    def exchange(self, client: redis.Redis, beat: AttemptBeat | None = None) -> None:
        """One round trip: a few batches and a beat go, the watermark and Redis's epoch come."""
        header = self.journal.header
        upto, sizes = self._sent, list[tuple[int, int]]()
        with client.pipeline(transaction=False) as pipeline:
            pipeline.get(keys.EPOCH)
            pipeline.get(keys.watermark(header.job, header.attempt, header.source))
            if beat is not None:
                post(pipeline, beat)
            while upto < self.journal.last and not self._window_is_full(upto, sizes) and len(sizes) < 8:
                events = self.journal.read(upto, BATCH_EVENTS, CHUNK)
                upto += len(events)
                sizes.append((upto, sum(map(len, events))))
                pipeline.xadd(keys.EVENTS, {"batch": batch(header, self.journal.first, events)})
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
        self._watch(epoch, mark)

    def acknowledge(self, mark: int) -> None:
        if mark > self.acknowledged:
            self.acknowledged = min(mark, self.journal.last)
            self._sent = max(self._sent, self.acknowledged)
            self._sent_bytes = [one for one in self._sent_bytes if one[0] > self.acknowledged]
            self._moved_at, self._silence = time.monotonic(), SILENCE_SECONDS

    def _watch(self, epoch: bytes | None, mark: bytes | None) -> None:
        """Sends again what a Redis that restarted empty, or a stream that lost entries, may have forgotten; and what
        the service has forgotten itself, where SQL came back from a backup and stands at an earlier mark."""
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


class ControlLink(threading.Thread):
    """Starts with the grant, ends with `close`. `replies` fills as control speaks; `wake` is told when it did."""

    def __init__(self, client: redis.Redis, grant: Grant, journal: Journal, wake: int) -> None:
        super().__init__(name=f"link-{grant.claim}", daemon=True)
        self.replies: SimpleQueue[AttemptReply] = SimpleQueue()
        self.outages: SimpleQueue[float] = SimpleQueue()
        """For how many seconds Redis did not answer, once it does again."""
        self.is_hurried = False
        self.last_command = max((command.no for command in grant.deeds), default=0)
        """The number of the newest command that training has. Heartbeats report this number."""
        self._client, self._grant = client, grant
        self._sender = Sender(journal, grant.watermark)
        self._poke = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        # The thread's own, which it closes: where it hangs, `close` does not wait for it.
        self._poked, self._wake = os.dup(self._poke), os.dup(wake)
        self._closing = threading.Event()
        self._number = self._beats_unattended = 0
        self._beat_due = self._sent_at = 0.0
        self._answered_at = time.monotonic()
        self._away_since: float | None = None
        self._said = Repeated(log, f"{grant.job} attempt {grant.attempt}")

    @property
    def acknowledged(self) -> int:
        return self._sender.acknowledged

    def poke(self, *, beat: bool = False) -> None:
        """There is something new to send; a beat too, where control should hear at once."""
        if beat:
            self._beat_due = 0.0
        os.eventfd_write(self._poke, 1)

    def turned(self) -> None:
        """The supervisor's loop has: who does not say so hangs, and would have its lease for ever."""
        self._beats_unattended = 0

    def close(self, within: float = 1.0) -> None:
        """Ends the thread. One that hangs in a frozen Redis is left to its timeout."""
        self._closing.set()
        self.poke()
        self.join(within)
        os.close(self._poke)

    def run(self) -> None:
        try:
            self._speak()
        finally:
            os.close(self._poked)
            os.close(self._wake)

    def _speak(self) -> None:
        while not self._closing.is_set():
            listener = None
            try:
                listener = Listener(self._client, keys.reply(self._grant.claim))
                self._sender.rewind()
                self._talk(listener)
            except AWAY as error:
                if self._away_since is None:
                    # A broken line is noticed at once, a silent Redis only by its silence.
                    is_silent = isinstance(error, TimeoutError | redis.TimeoutError)
                    self._away_since = self._answered_at if is_silent else time.monotonic()
                self._said.failed("is not heard: Redis is away (%s)", error)
                self._closing.wait(0.2 if time.monotonic() - self._answered_at < 10 else 1.0)
            except Exception as error:
                # This thread is the attempt's voice: nothing that one turn trips over may end it.
                self._said.failed("failed to talk to control: %r", error, trace=True)
                self._closing.wait(1.0)
            finally:
                if listener is not None:
                    listener.close()

    def _talk(self, listener: Listener) -> None:
        heard_at = time.monotonic()
        while not self._closing.is_set():
            self._exchange()
            readable, _, _ = select.select([listener.fd, self._poked], [], [], self._pause())
            now = time.monotonic()
            if listener.fd in readable:
                heard_at = now
                self._hear(listener.take())
            elif now - heard_at > BLOCK_SECONDS + 3:
                raise TimeoutError("Redis does not answer")
            if self._poked in readable:
                os.eventfd_read(self._poked)

    def _pause(self) -> float:
        """How long there is nothing to do, if nobody speaks."""
        now = time.monotonic()
        if self._sender.has_more:
            return max(0.0, self._sent_at + GATHER_SECONDS - now)
        due = self._beat_due - now
        if self._sender.is_waiting:
            due = min(due, HURRY_SECONDS if self.is_hurried else LOOK_SECONDS)
        return max(0.0, due)

    def _exchange(self) -> None:
        now = time.monotonic()
        beat = self._beat() if now >= self._beat_due else None
        if beat is None and self._sender.has_more and now < self._sent_at + GATHER_SECONDS:
            return
        before = self._sender.acknowledged
        self._sent_at = now
        self._sender.exchange(self._client, beat)
        self._note_answer()
        if self._sender.acknowledged != before:
            os.eventfd_write(self._wake, 1)

    def _note_answer(self) -> None:
        self._answered_at = time.monotonic()
        self._said.went_well()
        away_since, self._away_since = self._away_since, None
        if away_since is not None and self._answered_at - away_since > OUTAGE_SECONDS:
            self.outages.put(self._answered_at - away_since)
            os.eventfd_write(self._wake, 1)

    def _beat(self) -> AttemptBeat:
        self._look_at_the_supervisor()
        self._number += 1
        self._beat_due = time.monotonic() + self._grant.beat_seconds
        grant = self._grant
        return AttemptBeat(
            job=grant.job,
            attempt=grant.attempt,
            fence=grant.fence,
            claim=grant.claim,
            source=grant.source,
            number=self._number,
            journaled=self._sender.journal.last,
            deeds=self.last_command,
        )

    def _look_at_the_supervisor(self) -> None:
        """Where it hangs, it is killed: so training goes too, the node says that it is dead, and the job goes on."""
        # Counted in beats: one that was frozen has missed as many as its loop.
        self._beats_unattended += 1
        if self._beats_unattended * self._grant.beat_seconds > HUNG_SECONDS and not self._sender.journal.is_done:
            log.critical(
                "%s attempt %s: its supervisor hangs, and is killed with its training",
                self._grant.job, self._grant.attempt,
            )  # fmt: skip
            os.kill(os.getpid(), signal.SIGKILL)

    def _hear(self, raw: bytes | None) -> None:
        if raw is None:
            return
        try:
            message = TO_ATTEMPT.validate_json(raw)
        except ValidationError as error:
            log.warning("control's word to %s cannot be read: %s", self._grant.claim, error)
            return
        if isinstance(message, AttemptReply):
            self._sender.acknowledge(message.watermark)
            self.replies.put(message)
            os.eventfd_write(self._wake, 1)
