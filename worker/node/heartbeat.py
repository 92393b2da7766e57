"""The heartbeat thread in the Celery parent. It reports to control what the node has and what it runs.

It also sends the journals of dead attempts. A canary, which is a message through the node's own queue, shows that the
node still takes messages. An idle node whose canary does not come back restarts itself.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import threading
import time
from contextlib import suppress
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from platform import python_version
from typing import Any

import redis
from kombu.exceptions import KombuError
from pydantic import ValidationError

from footplate.contract import keys
from footplate.contract.components import HUB_ON, HUBS, SECRETS, Catalogue, Described
from footplate.contract.host.scratch import sweep
from footplate.contract.messages import BOOT_ID, FileRoot, FileRoots, Gpu, NodeBeat, NodeReply, RunningAttempt
from footplate.contract.repeated_errors import Repeated
from worker.attempt.control_link import Sender
from worker.attempt.journal import SUFFIX, UNREADABLE, Journal, JournalName, is_owned
from worker.celery_app import app, queue_of
from worker.identity import Node
from worker.node.store_watch import StoreWatch, store_trouble
from worker.redis_client import BLOCK_SECONDS, REDIS_ERRORS, connect, post
from worker.settings import WorkerSettings

log = logging.getLogger("footplate.worker")

CANARY_BEATS = 3
"""The number of heartbeats after which the next canary is sent, if the last one has come back."""
LOST_BEATS, LOST_SECONDS = 8, 4.0
"""A canary that is out for this number of heartbeats, and for this time, means that the node takes no messages."""
RESTART_BEATS, RESTART_SECONDS = 30, 8.0
RESEND_AT_ONCE = 4
LEFTOVER_SECONDS = 3.0
KEEP_JOURNALS_SECONDS = 7 * 86400
REPORT_DEAD_SECONDS = 60.0
"""The time for which heartbeats name an attempt whose supervisor died, because a heartbeat may be lost."""
SWEEP_SECONDS = 10.0


class Heartbeat(threading.Thread):
    def __init__(self, settings: WorkerSettings, node: Node, gpus: list[Gpu]) -> None:
        super().__init__(name="heartbeat", daemon=True)
        self._settings, self._node, self._gpus = settings, node, gpus
        self._number = 0
        self._wanted = threading.Event()
        self._catalogue: dict[str, Any] | None = None
        self._known_catalogue: str | None = None
        self._canary = Canary(node, settings.beat_seconds)
        self._resender = Resender(node.folder.journals)
        self._refused: str | None = None
        self._not_ready: str | None = None
        self._store = StoreWatch(settings.bucket, node.id) if settings.bucket else None
        self._reported_store: str | None = None
        self._swept_at = 0.0
        self._failures = Repeated(log, "the node")
        # Read once, because a file system that hangs later must not stop heartbeats.
        self._roots = _roots(settings)

    def run(self) -> None:
        client = connect(self._settings.redis)
        if self._store is not None:
            self._store.begin()
        step = self._send_leftovers
        while True:
            try:
                step(client)
                step = self._beat
            except REDIS_ERRORS as error:
                step = self._beat
                self._failures.failed("cannot report: Redis does not answer (%s)", error)
                self._canary.reset_clock()
                time.sleep(min(1.0, self._settings.beat_seconds))
            except Exception as error:
                # No error may end this thread, because the node has no other connection to control.
                step = self._beat
                self._failures.failed("failed to send its heartbeat: %r", error, trace=True)
                time.sleep(1.0)
            else:
                self._failures.went_well()

    def send_now(self) -> None:
        """Makes the thread send the next heartbeat at once."""
        self._wanted.set()

    def running(self) -> list[RunningAttempt]:
        """Returns the attempts of this node. An attempt runs as long as its supervisor has its journal locked."""
        attempts = []
        for path in self._node.folder.journals.glob(f"*{SUFFIX}"):
            if path not in self._resender.senders and is_owned(path) and (name := JournalName.of(path)):
                attempts.append(_attempt_of(name))
        return attempts

    def _send_leftovers(self, client: redis.Redis) -> None:
        """Sends journals of the last start before any heartbeat, so that finished attempts do not count as lost."""
        deadline = time.monotonic() + LEFTOVER_SECONDS
        self._resender.send(client)
        while self._resender.senders and time.monotonic() < deadline:
            time.sleep(0.02)
            self._resender.send(client)

    def _beat(self, client: redis.Redis) -> None:
        self._wanted.clear()
        running = self.running()
        with client.pipeline(transaction=False) as pipeline:
            post(pipeline, self._message(running))
            pipeline.get(keys.canary(self._node.id, self._node.boot))
            *_, canary = pipeline.execute()
        self._canary.record(int(canary or 0))
        if self._canary.is_overdue() and not running and not self._node.folder.is_draining():
            restart()
        self._resender.send(client)
        self._sweep()
        self._listen(client)

    def _listen(self, client: redis.Redis) -> None:
        until = time.monotonic() + self._settings.beat_seconds
        key = keys.node_reply(self._node.id, self._node.boot)
        while not self._wanted.is_set() and (left := until - time.monotonic()) > 0:
            # In short turns while journals are being sent, or the catalogue is awaited.
            longest = 0.1 if self._resender.senders or self._catalogue is None else 0.5
            popped = client.blpop([key], timeout=max(0.01, min(left, longest, BLOCK_SECONDS)))
            if popped is not None:
                self._receive(popped[1])
            # A killed supervisor leaves its journal. Its job is retried once the journal is sent.
            if self._resender.send(client) or self._has_news():
                self.send_now()

    def _has_news(self) -> bool:
        """Returns True if the node's readiness has changed, or its catalogue has been written."""
        is_store_same = self._store is None or self._store.trouble == self._reported_store
        has_catalogue = self._catalogue is None and self._node.folder.catalogue.exists()
        return has_catalogue or not is_store_same or self._node.folder.why_not_ready() != self._not_ready

    def _store_trouble(self) -> str | None:
        if self._store is None:
            return store_trouble(self._settings.artifacts_path)
        self._reported_store = self._store.trouble
        return self._reported_store

    def _sweep(self) -> None:
        if time.monotonic() - self._swept_at > SWEEP_SECONDS:
            self._swept_at = time.monotonic()
            sweep(self._node.id)
            sweep(self._node.id, self._node.folder.work)

    def _receive(self, raw: bytes | str) -> None:
        try:
            reply = NodeReply.model_validate_json(raw)
        except ValidationError as error:
            log.warning("cannot parse control's reply to this node: %s", error)
            return
        self._known_catalogue = reply.catalogue_known
        if reply.refused and reply.refused != self._refused:
            log.error("the service gives this node no work: %s", reply.refused)
        self._refused = reply.refused
        wish = self._node.folder.drain_by_control
        if reply.drain and not wish.exists():
            log.info("control drains this node")
            wish.touch()
        elif not reply.drain and wish.exists():
            log.info("control ends the drain of this node")
            wish.unlink()

    def _message(self, running: list[RunningAttempt]) -> NodeBeat:
        self._number += 1
        settings, node = self._settings, self._node
        self._catalogue = catalogue = self._catalogue or _catalogue(node, settings)
        self._not_ready, store = node.folder.why_not_ready(), self._store_trouble()
        is_known = catalogue is None or self._known_catalogue == catalogue["hash"]
        return NodeBeat(
            node=node.id,
            boot=node.boot,
            number=self._number,
            name=settings.node_name,
            pool=settings.pool,
            slots=self._node.slots,
            gpus=self._gpus,
            draining=node.folder.is_draining(),
            consuming=self._canary.is_back(),
            store_ok=store is None,
            trouble=self._not_ready or store,
            exposed=node.rights.exposed,
            roots=self._roots,
            catalogue_hash=catalogue["hash"] if catalogue else None,
            catalogue=catalogue["catalogue"] if catalogue and not is_known else None,
            versions=versions(),
            running=running,
            dead=self._resender.dead(),
            unsent=self._resender.unsent,
            unreadable=sum(1 for _ in node.folder.journals.glob(f"*{UNREADABLE}")),
        )


class Canary:
    """A message from the node to itself, through its own queue and pool."""

    def __init__(self, node: Node, beat_seconds: float) -> None:
        self._node = node
        self._every = CANARY_BEATS * beat_seconds
        self._lost_after = max(LOST_BEATS * beat_seconds, LOST_SECONDS)
        self._restart_after = max(RESTART_BEATS * beat_seconds, RESTART_SECONDS)
        self._sent = self._seen = 0
        self._sent_at = 0.0
        self._back_at = time.monotonic()

    def record(self, seen: int) -> None:
        """Records the number of the newest canary that came back, and sends the next canary when it is due."""
        now = time.monotonic()
        if seen >= self._sent:
            self._back_at = now
            if now - self._sent_at >= self._every:
                self._send(now)
        elif now - self._sent_at >= self._lost_after:
            # The canary was lost with the data of Redis, or this node takes no messages.
            self._send(now)

    def is_back(self) -> bool:
        return time.monotonic() - self._back_at < self._lost_after

    def is_overdue(self) -> bool:
        return time.monotonic() - self._back_at > self._restart_after

    def reset_clock(self) -> None:
        """Restarts the canary's clock, because no canary can come back while Redis does not answer."""
        self._back_at = time.monotonic()
        self._sent_at = 0.0

    def _send(self, now: float) -> None:
        self._sent += 1
        self._sent_at = now
        # A new connection declares the queue again, because an emptied Redis has lost its binding.
        with suppress(KombuError, *REDIS_ERRORS), app.connection_for_write() as connection:
            options: dict[str, Any] = {"queue": queue_of(self._node.id), "connection": connection, "retry": False}
            app.send_task(keys.CANARY_TASK, kwargs={"number": self._sent}, expires=60, **options)


class Resender:
    """Sends the journals that dead supervisors have left, a few at a time."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.senders: dict[Path, Sender] = {}
        self._dead: list[tuple[float, RunningAttempt]] = []

    @property
    def unsent(self) -> int:
        """The number of events of dead attempts that SQL does not have."""
        return sum(sender.journal.last - sender.acknowledged for sender in self.senders.values())

    def dead(self) -> list[RunningAttempt]:
        """Returns the attempts whose supervisor died before it reported their end."""
        self._dead = [(at, attempt) for at, attempt in self._dead if time.monotonic() - at < REPORT_DEAD_SECONDS]
        return [attempt for _, attempt in self._dead]

    def send(self, client: redis.Redis) -> bool:
        """Sends some events of each journal. Returns True if `dead` has a new attempt.

        An attempt is dead once all of its events have arrived, because they may include its last checkpoints.
        """
        self._take()
        dead_before = len(self._dead)
        for path, sender in list(self.senders.items()):
            sender.exchange(client)
            if sender.acknowledged >= sender.journal.last:
                log.info("%s: all %d events of a dead attempt have arrived", path.name, sender.journal.last)
                if not sender.journal.is_done:
                    self._dead.append((time.monotonic(), _attempt_of(sender.journal.name)))
                sender.journal.delete()
                del self.senders[path]
        return len(self._dead) > dead_before

    def _take(self) -> None:
        for path in self._folder.glob(f"*{UNREADABLE}"):
            _drop_if_old(path, "this broken journal is seven days old")
        for path in self._folder.glob(f"*{SUFFIX}"):
            if len(self.senders) >= RESEND_AT_ONCE:
                return
            if path in self.senders or is_owned(path):
                continue
            # Its owner may delete it between two of these lines.
            with suppress(FileNotFoundError):
                if _drop_if_old(path, "control has not taken these events for seven days"):
                    continue
                if (journal := Journal.reopen(path)) is not None:
                    self.senders[path] = Sender(journal)


def _drop_if_old(path: Path, why: str) -> bool:
    is_old = time.time() - path.stat().st_mtime > KEEP_JOURNALS_SECONDS
    if is_old:
        log.error("%s is deleted: %s", path.name, why)
        path.unlink()
    return is_old


def _attempt_of(name: JournalName) -> RunningAttempt:
    return RunningAttempt(job=name.job, attempt=name.attempt, fence=name.fence, claim=name.claim)


def _catalogue(node: Node, settings: WorkerSettings) -> dict[str, Any] | None:
    """Returns the catalogue and its hash, once the warm parent's child has written the file.

    That child knows neither secrets nor settings, so the names of secrets and hubs are added here.
    """
    with suppress(FileNotFoundError):
        written = json.loads(node.folder.catalogue.read_text())["catalogue"]
        held = {name: Described(name=name, group=SECRETS, args={}) for name in sorted(node.secrets)}
        hubs = {HUB_ON: Described(name=HUB_ON, group=HUBS, args={})} if settings.hub == "on" else {}
        whole = Catalogue.model_validate({**written, SECRETS: held, HUBS: hubs})
        return {"hash": whole.hash, "catalogue": whole.as_json()}
    return None


def _roots(settings: WorkerSettings) -> FileRoots | None:
    with suppress(OSError):
        machine = BOOT_ID.read_text().strip()
        return FileRoots(
            machine=machine, data=FileRoot.at(settings.data_path), models=FileRoot.at(settings.models_path)
        )
    return None


@cache
def versions() -> dict[str, str]:
    installed = {"python": python_version()}
    for name in ("footplate", "torch", "accelerate"):
        with suppress(PackageNotFoundError):
            installed[name] = version(name)
    return installed


def restart() -> None:
    """Replaces this process by a new start of the node. Its children die when the thread that forked them ends."""
    log.error("this node is idle and takes no messages, so it restarts")
    os.execv(sys.executable, sys.orig_argv)
