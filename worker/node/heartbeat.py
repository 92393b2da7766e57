"""The node's own thread in the Celery parent: tells control that it is there, what it has and what it runs.

It also sends what dead attempts have left in their journals, and keeps a canary going through the node's own queue:
a worker that is alive and takes no work is of no use to anybody, so an idle one that does not consume starts anew.
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
from footplate.contract.host.artifacts import StoreWatch, store_trouble
from footplate.contract.host.scratch import sweep
from footplate.contract.messages import BOOT_ID, FileRoot, FileRoots, Gpu, NodeBeat, NodeReply, RunningAttempt
from footplate.contract.repeated_errors import Repeated
from worker.attempt.control_link import Sender
from worker.attempt.journal import SUFFIX, UNREADABLE, Header, Journal, header_of, is_owned
from worker.celery_app import app, queue_of
from worker.identity import Node
from worker.redis_client import AWAY, BLOCK_SECONDS, connect, post
from worker.settings import WorkerSettings

log = logging.getLogger("footplate.worker")

CANARY_BEATS = 3
"""Between two canaries, when they come back."""
LOST_BEATS, LOST_SECONDS = 8, 4.0
"""A canary that has not come back after so many beats, and not before so long: this node does not consume."""
RESTART_BEATS, RESTART_SECONDS = 30, 8.0
RESEND_AT_ONCE = 4
LEFTOVER_SECONDS = 3.0
KEEP_JOURNALS_SECONDS = 7 * 86400
TELL_DEAD_SECONDS = 60.0
"""How long each beat names an attempt whose supervisor died: a beat may be lost. A lease ends it, too."""
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
        self._resender = Resender(node.places.journals)
        self._refused: str | None = None
        self._not_ready: str | None = None
        self._store = StoreWatch(settings.bucket, node.id) if settings.bucket else None
        self._said_of_store: str | None = None
        self._swept_at = 0.0
        self._said = Repeated(log, "the node")
        # Looked at once: a file system that hangs later must not silence the node.
        self._roots = _roots(settings)

    def run(self) -> None:
        client = connect(self._settings.redis)
        if self._store is not None:
            self._store.begin()
        turn = self._send_leftovers
        while True:
            try:
                turn(client)
                turn = self._beat
            except AWAY as error:
                turn = self._beat
                self._said.failed("is not heard: Redis is away (%s)", error)
                self._canary.forgive()
                time.sleep(min(1.0, self._settings.beat_seconds))
            except Exception as error:
                # This thread is the node's voice: nothing that one turn trips over may end it.
                turn = self._beat
                self._said.failed("failed to say that it is there: %r", error, trace=True)
                time.sleep(1.0)
            else:
                self._said.went_well()

    def say_now(self) -> None:
        """The next beat goes out at once."""
        self._wanted.set()

    def running(self) -> list[RunningAttempt]:
        """What supervisors of this node hold: an attempt runs as long as somebody has its journal locked."""
        found = []
        for path in self._node.places.journals.glob(f"*{SUFFIX}"):
            if path not in self._resender.taken and is_owned(path) and (header := header_of(path)):
                found.append(_attempt_of(header))
        return found

    def _send_leftovers(self, client: redis.Redis) -> None:
        """What the last start has left goes first: a `done` that was not sent yet is better than a lost attempt."""
        deadline = time.monotonic() + LEFTOVER_SECONDS
        self._resender.turn(client)
        while self._resender.taken and time.monotonic() < deadline:
            time.sleep(0.02)
            self._resender.turn(client)

    def _beat(self, client: redis.Redis) -> None:
        self._wanted.clear()
        running = self.running()
        with client.pipeline(transaction=False) as pipeline:
            post(pipeline, self._message(running))
            pipeline.get(keys.canary(self._node.id, self._node.boot))
            *_, canary = pipeline.execute()
        self._canary.look(int(canary or 0))
        if self._canary.is_overdue() and not running and not self._node.places.is_draining():
            start_anew()
        self._resender.turn(client)
        self._sweep()
        self._listen(client)

    def _listen(self, client: redis.Redis) -> None:
        until = time.monotonic() + self._settings.beat_seconds
        key = keys.node_reply(self._node.id, self._node.boot)
        while not self._wanted.is_set() and (left := until - time.monotonic()) > 0:
            # In short turns while there is something to send, or to notice.
            longest = 0.1 if self._resender.taken or self._catalogue is None else 0.5
            popped = client.blpop([key], timeout=max(0.01, min(left, longest, BLOCK_SECONDS)))
            if popped is not None:
                self._hear(popped[1])
            # A supervisor that was killed leaves its journal: the sooner that is found, the sooner its job goes on.
            if self._resender.turn(client) or self._has_news():
                self.say_now()

    def _has_news(self) -> bool:
        """Whether this node takes work may have changed, or its catalogue has just been written."""
        is_store_same = self._store is None or self._store.trouble == self._said_of_store
        has_catalogue = self._catalogue is None and self._node.places.catalogue.exists()
        return has_catalogue or not is_store_same or self._node.places.why_not_ready() != self._not_ready

    def _store_trouble(self) -> str | None:
        if self._store is None:
            return store_trouble(self._settings.artifacts_path)
        self._said_of_store = self._store.trouble
        return self._said_of_store

    def _sweep(self) -> None:
        if time.monotonic() - self._swept_at > SWEEP_SECONDS:
            self._swept_at = time.monotonic()
            sweep(self._node.id)
            sweep(self._node.id, self._node.places.work)

    def _hear(self, raw: bytes | str) -> None:
        try:
            reply = NodeReply.model_validate_json(raw)
        except ValidationError as error:
            log.warning("control's word to this node cannot be read: %s", error)
            return
        self._known_catalogue = reply.catalogue_known
        if reply.refused and reply.refused != self._refused:
            log.error("the service gives this node no work: %s", reply.refused)
        self._refused = reply.refused
        wish = self._node.places.drain_by_control
        if reply.drain and not wish.exists():
            log.info("control drains this node")
            wish.touch()
        elif not reply.drain and wish.exists():
            log.info("control wants this node back")
            wish.unlink()

    def _message(self, running: list[RunningAttempt]) -> NodeBeat:
        self._number += 1
        settings, node = self._settings, self._node
        self._catalogue = catalogue = self._catalogue or _catalogue(node, settings)
        self._not_ready, store = node.places.why_not_ready(), self._store_trouble()
        is_known = catalogue is None or self._known_catalogue == catalogue["hash"]
        return NodeBeat(
            node=node.id,
            boot=node.boot,
            number=self._number,
            name=settings.node_name,
            pool=settings.pool,
            slots=self._node.slots,
            gpus=self._gpus,
            draining=node.places.is_draining(),
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
            unreadable=sum(1 for _ in node.places.journals.glob(f"*{UNREADABLE}")),
        )


class Canary:
    """A message to ourselves, through our own queue and our own pool."""

    def __init__(self, node: Node, beat_seconds: float) -> None:
        self._node = node
        self._every = CANARY_BEATS * beat_seconds
        self._lost_after = max(LOST_BEATS * beat_seconds, LOST_SECONDS)
        self._restart_after = max(RESTART_BEATS * beat_seconds, RESTART_SECONDS)
        self._sent = self._seen = 0
        self._sent_at = 0.0
        self._back_at = time.monotonic()

    def look(self, seen: int) -> None:
        """What Redis says came back; sends the next where one is due."""
        now = time.monotonic()
        if seen >= self._sent:
            self._back_at = now
            if now - self._sent_at >= self._every:
                self._send(now)
        elif now - self._sent_at >= self._lost_after:
            # Lost with its Redis, perhaps; or this node does not consume.
            self._send(now)

    def is_back(self) -> bool:
        return time.monotonic() - self._back_at < self._lost_after

    def is_overdue(self) -> bool:
        return time.monotonic() - self._back_at > self._restart_after

    def forgive(self) -> None:
        """With Redis away nothing comes back, and that is not our fault. The next one goes as soon as it is there."""
        self._back_at = time.monotonic()
        self._sent_at = 0.0

    def _send(self, now: float) -> None:
        self._sent += 1
        self._sent_at = now
        # A connection of its own each time declares the queue anew: a Redis that was emptied learns its binding again.
        with suppress(KombuError, *AWAY), app.connection_for_write() as connection:
            options: dict[str, Any] = {"queue": queue_of(self._node.id), "connection": connection, "retry": False}
            app.send_task(keys.CANARY_TASK, kwargs={"number": self._sent}, expires=60, **options)


class Resender:
    """What dead attempts have left goes on its way, a few journals at a time."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.taken: dict[Path, Sender] = {}
        self._dead: list[tuple[float, RunningAttempt]] = []

    @property
    def unsent(self) -> int:
        """Events of dead attempts that SQL does not have."""
        return sum(sender.journal.last - sender.acknowledged for sender in self.taken.values())

    def dead(self) -> list[RunningAttempt]:
        """Attempts without a `done`, whose supervisor is gone: nobody will say how they ended."""
        self._dead = [one for one in self._dead if time.monotonic() - one[0] < TELL_DEAD_SECONDS]
        return [attempt for _, attempt in self._dead]

    def turn(self, client: redis.Redis) -> bool:
        """Whether there is a death to tell: after the attempt's last events, or its checkpoints would come too late."""
        self._take()
        known = len(self._dead)
        for path, sender in list(self.taken.items()):
            sender.exchange(client)
            if sender.acknowledged >= sender.journal.last:
                log.info("%s: all %d events of a dead attempt have arrived", path.name, sender.journal.last)
                if not sender.journal.is_done:
                    self._dead.append((time.monotonic(), _attempt_of(sender.journal.header)))
                sender.journal.delete()
                del self.taken[path]
        return len(self._dead) > known

    def _take(self) -> None:
        for path in self._folder.glob(f"*{UNREADABLE}"):
            _drop_if_old(path, "nobody has looked at this broken journal for seven days")
        for path in self._folder.glob(f"*{SUFFIX}"):
            if len(self.taken) >= RESEND_AT_ONCE:
                return
            if path in self.taken or is_owned(path):
                continue
            # Its owner may delete it between two of these lines.
            with suppress(FileNotFoundError):
                if _drop_if_old(path, "nobody has taken these events for seven days"):
                    continue
                if (journal := Journal.reopen(path)) is not None:
                    self.taken[path] = Sender(journal)


def _drop_if_old(path: Path, why: str) -> bool:
    is_old = time.time() - path.stat().st_mtime > KEEP_JOURNALS_SECONDS
    if is_old:
        log.error("%s: %s; it is dropped", path.name, why)
        path.unlink()
    return is_old


def _attempt_of(header: Header) -> RunningAttempt:
    return RunningAttempt(job=header.job, attempt=header.attempt, fence=header.fence, claim=header.claim)


def _catalogue(node: Node, settings: WorkerSettings) -> dict[str, Any] | None:
    """The catalogue and its hash, once the warm parent's child has written them. It knows no secret, not even by name,
    and no setting: those are added here."""
    with suppress(FileNotFoundError):
        written = json.loads(node.places.catalogue.read_text())["catalogue"]
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
    known = {"python": python_version()}
    for name in ("footplate", "torch", "accelerate"):
        with suppress(PackageNotFoundError):
            known[name] = version(name)
    return known


def start_anew() -> None:
    """This very program again, in this very process: its children die with the thread that forked them."""
    log.error("this node is idle and does not consume: starting anew")
    os.execv(sys.executable, sys.orig_argv)
