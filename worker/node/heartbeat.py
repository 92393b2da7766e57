"""The heartbeat thread in the Celery parent. It reports to control what the node has and what it runs.

The thread also drives the canary (`canary.py`), sends the journals of dead attempts (`resender.py`), and removes the
temporary folders of killed supervisors. A second thread checks the artifact store, which may hang.
"""

from __future__ import annotations

import json
import logging
import os
import threading
import time
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from itertools import chain, repeat
from pathlib import Path
from platform import python_version

import redis
from pydantic import ValidationError

from footplate.contract import layout, redis_keys
from footplate.contract.bucket import RemoteStore, StoreUnreachable
from footplate.contract.components import HUB_ON, HUBS, SECRETS, Catalogue, Described
from footplate.contract.host.scratch import sweep
from footplate.contract.ids import NodeId
from footplate.contract.messages import BOOT_ID, FileRoot, FileRoots, Gpu, NodeBeat, NodeReply, RunningAttempt
from footplate.contract.repeated_errors import ErrorLog
from worker.attempt.journal import UNREADABLE
from worker.identity import Node
from worker.node.canary import Canary, restart_if_idle
from worker.node.resender import Resender
from worker.redis_client import BLOCK_SECONDS, REDIS_ERRORS, connect, post
from worker.settings import WorkerSettings

log = logging.getLogger("footplate.worker")

LEFTOVER_SECONDS = 3.0
"""The longest time for which the first heartbeat waits until the journals of the node's last start are sent."""
SWEEP_SECONDS = 10.0
"""The interval between two searches for temporary folders of killed supervisors."""


class Heartbeat(threading.Thread):
    """Sends a heartbeat at an interval, and at once if something has changed. Carries out what the replies say."""

    def __init__(self, settings: WorkerSettings, node: Node, gpus: list[Gpu]) -> None:
        super().__init__(name="heartbeat", daemon=True)
        self._settings, self._node, self._gpus = settings, node, gpus
        self._number = 0
        self._wanted = threading.Event()
        self._catalogue: Catalogue | None = None
        self._known_catalogue: str | None = None
        self._canary = Canary(node, settings.beat_seconds)
        self.resender = Resender(node.folder.journals)
        self._refused: str | None = None
        self._store = StoreWatch(settings, node.id)
        self._reported_trouble: tuple[str | None, str | None] = (None, None)
        """The reasons in the last heartbeat: why the node is not ready, and what is wrong with its artifact store."""
        self._swept_at = 0.0
        self._failures = ErrorLog(log, "the node")
        # The folders are examined only once, because a file system that hangs later must not stop heartbeats.
        self._roots = _roots(settings)
        self._versions = {"python": python_version()}
        for name in ("footplate", "torch", "accelerate"):
            with suppress(PackageNotFoundError):
                self._versions[name] = version(name)

    def run(self) -> None:
        client = connect(self._settings.redis)
        self._store.start()
        for step in chain([self._send_leftovers], repeat(self._beat)):
            try:
                step(client)
            except REDIS_ERRORS as error:
                self._failures.failed("cannot report: Redis does not answer (%s)", error)
                self._canary.reset_clock()
                time.sleep(min(1.0, self._settings.beat_seconds))
            except Exception as error:
                # No error may end this thread, because the node has no other connection to control.
                self._failures.failed("failed to send its heartbeat: %r", error, trace=True)
                time.sleep(1.0)
            else:
                self._failures.went_well()

    def send_now(self) -> None:
        """Makes the thread send the next heartbeat at once."""
        self._wanted.set()

    def _send_leftovers(self, client: redis.Redis) -> None:
        """Sends journals of the last start before any heartbeat, so that finished attempts do not count as lost."""
        deadline = time.monotonic() + LEFTOVER_SECONDS
        self.resender.send(client)
        while self.resender.senders and time.monotonic() < deadline:
            time.sleep(0.02)
            self.resender.send(client)

    def _beat(self, client: redis.Redis) -> None:
        self._wanted.clear()
        running = self.resender.running()
        with client.pipeline(transaction=False) as pipeline:
            post(pipeline, self._message(running))
            pipeline.get(redis_keys.canary(self._node.id, self._node.boot))
            *_, canary = pipeline.execute()
        self._canary.record(int(canary or 0))
        if self._canary.is_overdue() and not self._node.folder.is_draining():
            restart_if_idle(self._node)
        self.resender.send(client)
        if time.monotonic() - self._swept_at > SWEEP_SECONDS:
            self._swept_at = time.monotonic()
            sweep(self._node.id)
            sweep(self._node.id, self._node.folder.work)
        self._listen(client)

    def _listen(self, client: redis.Redis) -> None:
        until = time.monotonic() + self._settings.beat_seconds
        key = redis_keys.node_reply(self._node.id, self._node.boot)
        while not self._wanted.is_set() and (seconds_left := until - time.monotonic()) > 0:
            # The wait is short while journals are being sent, or while the catalogue is not known yet.
            longest_wait = 0.1 if self.resender.senders or self._catalogue is None else 0.5
            entry = client.blpop([key], timeout=max(0.01, min(seconds_left, longest_wait, BLOCK_SECONDS)))
            if entry is not None:
                self._receive(entry[1])
            # A killed supervisor leaves its journal. Its job is retried once the journal is sent.
            if self.resender.send(client) or self._has_news():
                self.send_now()

    def _has_news(self) -> bool:
        """Returns True if the node's readiness has changed, or its catalogue has been written."""
        has_catalogue = self._catalogue is None and self._node.folder.catalogue.exists()
        return has_catalogue or (self._node.folder.why_not_ready(), self._store.trouble) != self._reported_trouble

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
        drain_file = self._node.folder.drain_by_control
        if reply.drain and not drain_file.exists():
            log.info("control drains this node")
            drain_file.touch()
        elif not reply.drain and drain_file.exists():
            log.info("control has ended the drain: this node takes attempts again")
            drain_file.unlink()

    def _message(self, running: list[RunningAttempt]) -> NodeBeat:
        self._number += 1
        settings, node = self._settings, self._node
        self._catalogue = catalogue = self._catalogue or _catalogue(node, settings)
        not_ready, store_trouble = self._reported_trouble = node.folder.why_not_ready(), self._store.trouble
        is_known = catalogue is None or self._known_catalogue == catalogue.hash
        return NodeBeat(
            node=node.id,
            boot=node.boot,
            number=self._number,
            name=settings.node_name,
            pool=settings.pool,
            slots=self._node.slots,
            gpus=self._gpus,
            draining=node.folder.drain.exists(),
            consuming=self._canary.is_back(),
            store_ok=store_trouble is None,
            trouble=not_ready or store_trouble,
            exposed=node.rights.exposed,
            roots=self._roots,
            catalogue_hash=catalogue.hash if catalogue else None,
            catalogue=catalogue.as_json() if catalogue and not is_known else None,
            versions=self._versions,
            running=running,
            dead=self.resender.dead(),
            unsent=self.resender.unsent,
            unreadable=sum(1 for _ in node.folder.journals.glob(f"*{UNREADABLE}")),
        )


def _catalogue(node: Node, settings: WorkerSettings) -> Catalogue | None:
    """Returns the node's catalogue, once the warm parent's child has written the file.

    That child knows neither secrets nor settings, so the names of secrets and hubs are added here.
    """
    with suppress(FileNotFoundError):
        groups = json.loads(node.folder.catalogue.read_text())
        secrets = {name: Described(name=name, group=SECRETS, args={}) for name in sorted(node.secrets)}
        hubs = {HUB_ON: Described(name=HUB_ON, group=HUBS, args={})} if settings.hub == "on" else {}
        return Catalogue.model_validate({**groups, SECRETS: secrets, HUBS: hubs})
    return None


def _roots(settings: WorkerSettings) -> FileRoots | None:
    with suppress(OSError):
        machine = BOOT_ID.read_text().strip()
        return FileRoots(
            machine=machine, data=FileRoot.at(settings.data_path), models=FileRoot.at(settings.models_path)
        )
    return None


class StoreWatch(threading.Thread):
    """Checks the artifact store at an interval. A bucket or a network disk may hang, and heartbeats must not wait."""

    EVERY_SECONDS, TROUBLE_SECONDS = 5.0, 0.5
    """The interval between two checks, and the shorter one while attempts cannot use the store."""

    def __init__(self, settings: WorkerSettings, node: NodeId) -> None:
        super().__init__(name="store-watch", daemon=True)
        self._folder, self._bucket, self._mark = settings.artifacts_path, settings.bucket, f"nodes/{node}"
        self._has_written = False
        self.trouble: str | None = "it has not had an answer from its artifact store yet"

    def run(self) -> None:
        while True:
            self.trouble = self._bucket_trouble(self._bucket) if self._bucket else folder_trouble(self._folder)
            time.sleep(self.EVERY_SECONDS if self.trouble is None else self.TROUBLE_SECONDS)

    def _bucket_trouble(self, bucket: RemoteStore) -> str | None:
        try:
            if (why := bucket.trouble()) is None and not self._has_written:
                bucket.write(b"", self._mark)
        except StoreUnreachable as error:
            why = f"it may not write to the artifact store: {error}"
        # A write costs more than a read, so writing is only tested at first and after each error.
        self._has_written = why is None
        return why


def folder_trouble(root: Path) -> str | None:
    """Returns why no attempt could use the artifact store in this folder, or None."""
    probe = root / layout.PROBE
    try:
        with probe.open("rb"):
            pass
    except FileNotFoundError:
        return f"{root} is not the service's artifact store, because it has no {probe.name}: mount the store there"
    except OSError as error:
        return f"it cannot read the artifact store: {error.strerror} ({probe})"
    if not os.access(root, os.W_OK | os.X_OK):
        return f"it may not write to the artifact store {root}: mount it writable, or fix its rights"
    return None
