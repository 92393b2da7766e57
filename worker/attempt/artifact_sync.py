"""Copies an attempt's files between this node and a bucket.

Training works in a folder of this node that is laid out like the store, and does not know about the bucket.

    fetch     before training: the bundle, uploaded files, and the newest checkpoint that verifies
    hold      a checkpoint is reported only after the bucket has all of its files, the manifest last
    finish    everything else that the attempt leaves (`output_files.py`), before its end is reported

All copying runs in one thread of the supervisor's process. Training holds no key of the store, and never waits. A store
that does not answer is retried until the attempt gives up. Files that are committed there stay.
"""

from __future__ import annotations

import hashlib
import json
import logging
import re
import shutil
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path, PurePosixPath
from queue import SimpleQueue
from typing import Any

from footplate.contract import layout
from footplate.contract.bucket import RemoteStore, StoreUnreachable, stays_inside
from footplate.contract.events import CheckpointData, Kind
from footplate.contract.files import named_in, texts_of
from footplate.contract.host.artifacts import AttemptFiles
from footplate.contract.host.data_fingerprint import RECORD
from footplate.contract.host.tracker_folders import FOLDERS as TRACKED
from footplate.contract.messages import CheckpointOffer, Grant
from footplate.contract.safe_paths import NOT_THERE, link_below
from worker.attempt.background import Background, Event
from worker.attempt.output_files import AttemptOutputs, is_a_script

log = logging.getLogger("footplate.worker")

ASIDE, STATE = ".shipping", "trainer_state.json"
_NAME = re.compile(r"checkpoint-\d+")


class ArtifactSync(Background):
    """Copies the files of one attempt in a thread, and reports with `events` what it has done."""

    def __init__(self, store: RemoteStore, grant: Grant, root: Path, wake: int) -> None:
        super().__init__(wake)
        self._store, self._grant, self._root = store, grant, root
        self._files = AttemptFiles(root, grant.job, grant.attempt)
        self._left = AttemptOutputs(store, grant, self._files)
        self._tasks: SimpleQueue[Callable[[], object] | None] = SimpleQueue()
        self._open_tasks = 0
        self._sent: set[Path] = set()
        self._let_go: list[str] = []
        self._thread = threading.Thread(target=self._run, name="shipping", daemon=True)
        self._thread.start()

    @property
    def is_idle(self) -> bool:
        return self._open_tasks == 0

    def fetch(self) -> None:
        self._add(self._fetch)

    def hold(self, events: list[Event]) -> list[Event]:
        """Returns the events that may be sent at once, which are all except committed checkpoints.

        The event of a committed checkpoint is put into `events` after its files were uploaded to the bucket.
        """
        passed = []
        for event in events:
            if event["kind"] == Kind.CHECKPOINT and event["data"].get("status") == "committed":
                self._add(partial(self._ship, event))
            else:
                passed.append(event)
        return passed

    def finish(self) -> None:
        self._add(partial(self._retry_while_unreachable, "what the attempt leaves", self._send_left))

    def give_up(self) -> None:
        """Ends all retries. A checkpoint that is being sent is not committed."""
        self._given_up.set()

    def close(self) -> None:
        super().close()
        self._tasks.put(None)

    # The thread

    def _add(self, task: Callable[[], object]) -> None:
        with self._lock:
            self._open_tasks += 1
        self._tasks.put(task)

    def _run(self) -> None:
        while (task := self._tasks.get()) is not None:
            try:
                task()
            except Exception as error:
                log.exception(
                    "%s attempt %s: copying to or from the artifact store failed", self._grant.job, self._grant.attempt
                )
                self.failure = error
            with self._lock:
                self._open_tasks -= 1
            self._ring()

    def _goes_on(self) -> bool:
        return not self._given_up.is_set()

    # Fetch

    def _fetch(self) -> None:
        spec = self._grant.spec
        paths = [str(layout.UPLOADS / file) for file in sorted({file for _, file in named_in(texts_of(spec))})]
        if code := spec.get("code"):
            paths.append(str(layout.bundle_file(code["bundle"])))
        for path in paths:
            # Training reports a missing file, and says what needs it.
            self._retry_while_unreachable(path, partial(self._get, path))
        if self._grant.source == 0:
            # The first node chooses the checkpoint for all nodes.
            self._fetch_checkpoint()
        if self._grant.attempt > 1:
            self._retry_while_unreachable("what earlier attempts left", self._fetch_left)

    def _fetch_checkpoint(self) -> None:
        """Fetches the newest checkpoint that verifies.

        Training reports what is wrong with newer ones that are damaged.
        """
        offers = self._grant.checkpoints
        for offer in [offer for offer in offers if offer.of is None] or offers[:1]:
            began = time.monotonic()
            if self._retry_while_unreachable(f"{offer.path} to continue from", partial(self._is_got, offer)):
                took = time.monotonic() - began
                text = f"fetched the checkpoint of step {offer.step} from the artifact store in {took:.1f} s"
                self._report(Kind.NOTE, {"message": text, "checkpoint": offer.path})
                return

    def _is_got(self, offer: CheckpointOffer) -> bool:
        if not self._is_whole(offer.path, offer.manifest_sha256):
            return False
        self._get(str(PurePosixPath(offer.path).parent / RECORD))
        if (self._grant.spec.get("training") or {}).get("load_best_model_at_end"):
            self._fetch_best(offer)
        return True

    def _fetch_best(self, offer: CheckpointOffer) -> None:
        """Fetches the best checkpoint, which may be loaded at the end.

        Training wrote its path, so only the job's own counts.
        """
        place = _best_of(self._root / offer.path)
        its_own = f"{layout.job_folder(offer.of or self._grant.job)}/"
        if place is None or not place.startswith(its_own) or place == offer.path:
            return
        digests = [offer.manifest_sha256 for offer in self._grant.checkpoints if offer.path == place]
        if not self._is_whole(place, digests[0] if digests else ""):
            shutil.rmtree(self._root / place, ignore_errors=True)

    def _is_whole(self, place: str, sha256: str) -> bool:
        """Fetches a checkpoint. Returns True if it is what was committed."""
        folder = self._root / place
        try:
            text = self._store.read(f"{place}/{layout.MANIFEST}")
        except FileNotFoundError:
            return False
        folder.mkdir(parents=True, exist_ok=True)
        (folder / layout.MANIFEST).write_bytes(text)
        if sha256 not in ("", hashlib.sha256(text).hexdigest()):
            return False
        for name, expected in _listed(text).items():
            # Training checks files in this order, and names the first bad one.
            if not stays_inside(name) or not (_is_as(folder / name, expected) or self._get(f"{place}/{name}")):
                return False
            if not _is_as(folder / name, expected):
                return False
        return True

    def _fetch_left(self) -> None:
        """Fetches what earlier attempts left: the trackers' files, or a script's files."""
        is_script, is_first = is_a_script(self._grant), self._grant.source == 0
        tracks = self._grant.spec.get("report_to") and self._grant.checkpoints and is_first
        for attempt in range(self._grant.attempt - 1, 0, -1):
            if is_script and self._left.begin_with(attempt, report=self._note if is_first else None):
                return
            if tracks and not is_script and self._fetch_tracked(attempt):
                return

    def _fetch_tracked(self, attempt: int) -> bool:
        place = layout.outputs_folder(self._grant.job, attempt)
        folders = [f"{place}/{name}" for name in TRACKED]
        paths = [
            f"{folder}/{file.path}"
            for folder in folders
            for file in self._store.files(folder)
            if stays_inside(file.path)
        ]
        for path in paths:
            self._get(path)
        return bool(paths)

    def _note(self, text: str) -> None:
        self._report(Kind.NOTE, {"message": text})

    def _get(self, path: str) -> bool:
        """Returns False if the file does not exist."""
        try:
            self._store.fetch(path, self._root / path)
        except FileNotFoundError:
            return False
        return True

    # Ship

    def _ship(self, event: Event) -> None:
        data = event["data"]
        path = str(data.get("path"))
        if not self._is_ours(path):
            self._report(Kind.NOTE, {"message": f"{path[:200]} is not a checkpoint of this attempt, and is not kept"})
            return
        aside = self._root / ASIDE / PurePosixPath(path).name
        deleted = [path for path in data.get("deleted") or [] if isinstance(path, str)]
        try:
            names = self._put_aside(path, aside, str(data.get("manifest_sha256")))
            what = f"the checkpoint of step {event.get('step')}"
            if names is None:
                # Training has deleted this checkpoint meanwhile, because a newer one follows.
                self._let_go += deleted
            elif self._retry_while_unreachable(what, partial(self._send, aside, names, path)):
                self.events.put({**event, "data": {**data, "deleted": [*self._let_go, *deleted]}})
                self._let_go = []
            else:
                self._forget(path)
        except OSError as error:
            failed = CheckpointData(status="failed", path=path, message=f"the checkpoint could not be sent: {error}")
            self._report(Kind.CHECKPOINT, failed.model_dump(mode="json"), event.get("step"))
        finally:
            shutil.rmtree(aside, ignore_errors=True)

    def _is_ours(self, path: str) -> bool:
        """Checks the path, because user code can write to the socket and must not send other files of this machine."""
        pure, root = PurePosixPath(path), self._root.resolve()
        is_named = pure.parent == layout.attempt_folder(self._grant.job, self._grant.attempt)
        return is_named and bool(_NAME.fullmatch(pure.name)) and (root / path).resolve() == root / path

    def _put_aside(self, path: str, aside: Path, sha256: str) -> list[str] | None:
        """Makes hard links, which stay when training rotates.

        Returns None if this checkpoint does not exist any more.
        """
        shutil.rmtree(aside, ignore_errors=True)
        aside.mkdir(parents=True)
        try:
            if not link_below(self._root, f"{path}/{layout.MANIFEST}", aside / layout.MANIFEST):
                return None
            names = [name for name in _listed((aside / layout.MANIFEST).read_bytes()) if stays_inside(name)]
            for name in names:
                (aside / name).parent.mkdir(parents=True, exist_ok=True)
                if name != layout.MANIFEST and not link_below(self._root, f"{path}/{name}", aside / name):
                    return None
        except OSError as error:
            if error.errno in NOT_THERE:
                return None
            raise
        same = hashlib.sha256((aside / layout.MANIFEST).read_bytes()).hexdigest() == sha256
        return names if same else None

    def _send(self, aside: Path, names: list[str], path: str) -> bool:
        best_before = self._files.folder / layout.BEST_BEFORE
        for file in [self._files.folder / RECORD, *(file for file in sorted(best_before.rglob("*")) if file.is_file())]:
            if file.is_file():
                self._send_one(file)
        return self._store.commit(aside, names, path, self._goes_on)

    def _forget(self, path: str) -> None:
        """Removes a checkpoint that was partly uploaded. If the bucket does not answer, `prune` removes it later."""
        with suppress(StoreUnreachable):
            self._store.remove(path)

    def _send_left(self) -> bool:
        # Checkpoints that a script saved were not reported, so they are sent as files.
        is_script = is_a_script(self._grant)
        for file in self._left.files(is_sent=lambda folder: not is_script and _is_checkpoint(folder)):
            if not self._goes_on():
                return False
            self._send_one(file)
        self._left.mark_complete()
        return True

    def _send_one(self, file: Path) -> None:
        """Uploads a file, but not again if it was uploaded before."""
        if file not in self._sent and self._left.send(file):
            self._sent.add(file)


def _best_of(folder: Path) -> str | None:
    """Returns the best checkpoint's path in the store, as a checkpoint's state names it."""
    try:
        best = json.loads((folder / STATE).read_bytes())["best_model_checkpoint"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None
    return layout.checkpoint_in(best) if isinstance(best, str) else None


def _is_checkpoint(folder: Path) -> bool:
    return bool(_NAME.fullmatch(folder.name)) and (folder / layout.MANIFEST).is_file()


def _listed(manifest: bytes) -> dict[str, dict[str, Any]]:
    """Returns what a manifest lists for each file. A broken manifest lists nothing, and training reports it."""
    with suppress(ValueError, RecursionError):
        files = json.loads(manifest)["files"]
        if isinstance(files, dict) and all(isinstance(entry, dict) for entry in files.values()):
            return files
    return {}


def _is_as(file: Path, expected: dict[str, Any]) -> bool:
    try:
        if file.stat().st_size != expected.get("bytes"):
            return False
        with file.open("rb") as opened:
            return hashlib.file_digest(opened, "sha256").hexdigest() == expected.get("sha256")
    except OSError:
        return False
