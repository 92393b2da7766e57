"""Copies an attempt's files between this node and a bucket.

Training works in a folder of this node that is laid out like the store, and does not know about the bucket.

    fetch               before training: the bundle, uploaded files, and the newest checkpoint that verifies
    hold_checkpoints    a checkpoint is reported only after the bucket has all of its files, the manifest last
    upload_outputs      all other files of the attempt (`output_files.py`), before its end is reported

All copying runs in one thread of the supervisor's process. Training has no key of the store, and never waits for it. If
the store does not answer, each step is retried until `give_up`.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import threading
import time
from contextlib import suppress
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any

from footplate.contract import layout
from footplate.contract.bucket import RemoteStore, StoreUnreachable, do_at_once, stays_inside
from footplate.contract.events import CheckpointData, Kind
from footplate.contract.files import named_in
from footplate.contract.host.artifacts import STAGE, AttemptFiles, is_checkpoint_copy, stage_of
from footplate.contract.host.data_fingerprint import RECORD
from footplate.contract.host.tracker_folders import FOLDERS as TRACKED
from footplate.contract.messages import CheckpointOffer, Grant
from footplate.contract.safe_paths import NOT_THERE, link_below
from footplate.contract.serving import AdapterOffer
from footplate.contract.spec import JobSpec
from worker.attempt.background import Background, Event
from worker.attempt.output_files import FILES_AT_ONCE, AttemptOutputs

ASIDE, STATE = ".shipping", "trainer_state.json"
_NAME = re.compile(r"checkpoint-\d+")


class ArtifactSync(Background):
    """The thread that copies the files of one attempt. It puts events about checkpoints and outages into `events`."""

    def __init__(self, store: RemoteStore, grant: Grant, spec: JobSpec, root: Path, wake: int) -> None:
        super().__init__(wake, f"the thread that copies the files of {grant.job} attempt {grant.attempt}")
        self._store, self._grant, self._spec, self._root = store, grant, spec, root
        self._files = AttemptFiles(root, grant.job, grant.attempt)
        self._outputs = AttemptOutputs(store, grant, self._files, is_script=spec.is_script)
        self._uploaded: set[Path] = set()
        self._adapters: set[str] = set()
        """The ids of the checkpoints that `fetch_adapter` has fetched."""
        self._unreported_deletions: list[str] = []
        """Paths of deleted checkpoints, from events that were not reported. The next reported event adds them."""
        self._waiting: list[Event] = []
        """Events of checkpoints whose upload has not begun, the oldest first."""
        self._newest: Event | None = None
        """The event of training's newest checkpoint, if it was uploaded before older ones."""
        self._has_training_ended = False

    def fetch(self) -> None:
        self._add(self._fetch)

    def hold_checkpoints(self, events: list[Event]) -> list[Event]:
        """Returns all events except those of committed checkpoints.

        These are put into the queue `events` after the checkpoint's files have been uploaded to the bucket. Their order
        does not change, because the checkpoint that is reported last counts as the job's newest.
        """
        other_events = []
        for event in events:
            if event["kind"] == Kind.CHECKPOINT and event["data"].get("status") == "committed":
                with self._lock:
                    self._waiting.append(event)
                self._add(self._upload_next_checkpoint)
            else:
                other_events.append(event)
        return other_events

    def upload_outputs(self) -> None:
        """Uploads what training has left. Its newest checkpoint is first, because a stop may leave no time for all."""
        with self._lock:
            self._has_training_ended = True
        self._add(partial(self._retry_while_unreachable, "the upload of the attempt's files", self._upload_outputs))

    def fetch_adapter(self, offer: AdapterOffer) -> threading.Event:
        """Fetches another job's checkpoint for a serving session. The returned threading.Event is set after the fetch.

        If the checkpoint could not be fetched, the serving process reports that, and another session gets the request.
        """
        is_over = threading.Event()

        def fetch() -> None:
            try:
                if offer.id not in self._adapters and self._fetch_verified(offer.path, offer.manifest_sha256):
                    self._adapters.add(offer.id)
            except (StoreUnreachable, OSError) as error:
                self._note(f"cannot fetch the adapter {offer.path} from the artifact store: {error}")
            finally:
                is_over.set()

        self._add(fetch)
        return is_over

    def give_up(self) -> None:
        """Ends all retries. A checkpoint whose upload is not complete is not committed."""
        with self._lock:
            self._given_up.set()
            self._report_newest()

    def _goes_on(self) -> bool:
        return not self._given_up.is_set()

    # Fetch

    def _fetch(self) -> None:
        spec = self._spec
        paths = [str(layout.UPLOADS / file) for file in sorted({file for _, file in named_in(spec.texts)})]
        if spec.code is not None:
            paths.append(str(layout.bundle_file(spec.code.bundle)))
        for path in paths:
            # A file that the store lacks is skipped. Training reports it with the argument that names it.
            self._retry_while_unreachable(f"the download of {path}", partial(self._fetch_file, path))
        if self._grant.source == 0:
            # The first node chooses the checkpoint for all nodes.
            self._fetch_checkpoint()
        if self._grant.attempt > 1:
            self._retry_while_unreachable("the download of earlier attempts' files", self._fetch_outputs)

    def _fetch_checkpoint(self) -> None:
        """Fetches the newest checkpoint whose checksums are right. A script needs one for each of its stages.

        A newer one stays here without some of its files, so that training finds and reports that it is corrupt.
        """
        offers, fetched_stages = self._grant.checkpoints, set[int]()
        for offer in [offer for offer in offers if offer.of is None] or offers[:1]:
            if (stage := self._fetch_stage(offer)) in fetched_stages:
                continue
            began_at = time.monotonic()
            download_name = f"the download of the checkpoint {offer.path}"
            if self._retry_while_unreachable(download_name, partial(self._fetch_offer, offer)):
                seconds = time.monotonic() - began_at
                text = f"fetched the checkpoint of step {offer.step} from the artifact store in {seconds:.1f} s"
                self._note(text, checkpoint=offer.path)
                fetched_stages.add(stage)

    def _fetch_stage(self, offer: CheckpointOffer) -> int:
        """Returns the stage that wrote a checkpoint. A script looks for the stage of each checkpoint on this node."""
        if not self._spec.is_script:
            return 0
        path = f"{offer.path}/{STAGE}"
        self._retry_while_unreachable(f"the download of {path}", partial(self._fetch_file, path))
        return stage_of(self._root / offer.path)

    def _fetch_offer(self, offer: CheckpointOffer) -> bool:
        if not self._fetch_verified(offer.path, offer.manifest_sha256):
            return False
        self._fetch_file(str(PurePosixPath(offer.path).parent / RECORD))
        if self._spec.training.load_best_model_at_end:
            self._fetch_best(offer)
        return True

    def _fetch_best(self, offer: CheckpointOffer) -> None:
        """Fetches the best checkpoint of the job so far, because the Trainer loads it at the end.

        Users' code may have written its path, so a path outside the job's own folder is ignored.
        """
        place = _best_of(self._root / offer.path)
        its_own = f"{layout.job_folder(offer.of or self._grant.job)}/"
        if place is None or not place.startswith(its_own) or place == offer.path:
            return
        digests = [offer.manifest_sha256 for offer in self._grant.checkpoints if offer.path == place]
        if not self._fetch_verified(place, digests[0] if digests else ""):
            shutil.rmtree(self._root / place, ignore_errors=True)

    def _fetch_verified(self, place: str, sha256: str) -> bool:
        """Fetches a checkpoint. Returns True if its manifest and all of its files have the committed sha256."""
        folder = self._root / place
        try:
            text = self._store.read(f"{place}/{layout.MANIFEST}")
        except FileNotFoundError:
            return False
        folder.mkdir(parents=True, exist_ok=True)
        (folder / layout.MANIFEST).write_bytes(text)
        if sha256 not in ("", hashlib.sha256(text).hexdigest()):
            return False
        for name, entry in _files_of(text).items():
            # The first bad file ends the download. Training checks files in the same order, and names this one.
            if not stays_inside(name):
                return False
            if _is_verified(folder / name, entry):
                continue
            if not (self._fetch_file(f"{place}/{name}") and _is_verified(folder / name, entry)):
                return False
        return True

    def _fetch_outputs(self) -> None:
        """Fetches the newest earlier attempt's files: those of a script, or those of the trackers."""
        is_script, is_first = self._spec.is_script, self._grant.source == 0
        tracks = self._spec.report_to and self._grant.checkpoints and is_first
        for attempt in range(self._grant.attempt - 1, 0, -1):
            if is_script and self._outputs.fetch(attempt, report=self._note if is_first else None):
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
            self._fetch_file(path)
        return bool(paths)

    def _fetch_file(self, path: str) -> bool:
        """Downloads a file of the store to its place on this node. Returns False if the store does not have it."""
        try:
            self._store.fetch(path, self._root / path)
        except FileNotFoundError:
            return False
        return True

    # Upload

    def _upload_next_checkpoint(self) -> None:
        """Uploads the oldest waiting checkpoint, or the newest one if training has ended. Reports them in order."""
        with self._lock:
            is_newest = self._has_training_ended and self._newest is None
            event = self._waiting.pop(-1 if is_newest else 0)
        is_uploaded = self._upload_checkpoint(event)
        with self._lock:
            if self._given_up.is_set():
                return
            if is_uploaded and is_newest:
                self._newest = event
            elif is_uploaded:
                self._report_checkpoint(event)
            elif not is_newest:
                # An older checkpoint must not report the deletions that only the newest one makes safe.
                self._unreported_deletions += _deleted_by(event)
            if not self._waiting:
                self._report_newest()

    def _report_newest(self) -> None:
        """Reports the newest checkpoint, if it was uploaded before older ones. The caller holds the lock."""
        if self._newest is not None:
            self._report_checkpoint(self._newest)
            self._newest = None

    def _report_checkpoint(self, event: Event) -> None:
        deleted_paths = [*self._unreported_deletions, *_deleted_by(event)]
        self.events.put({**event, "data": {**event["data"], "deleted": deleted_paths}})
        self._unreported_deletions = []

    def _upload_checkpoint(self, event: Event) -> bool:
        """Uploads the checkpoint of an event. Returns True if the bucket has all of its files."""
        data = event["data"]
        path = str(data.get("path"))
        if not self._is_ours(path):
            self._note(f"{path[:200]} is not a checkpoint folder of this attempt, so it is not uploaded")
            return False
        aside = self._root / ASIDE / PurePosixPath(path).name
        try:
            names = self._link_files(path, aside, str(data.get("manifest_sha256")))
            if names is None:
                # Training has deleted this checkpoint meanwhile, because a newer one follows.
                return False
            upload_name = f"the upload of the checkpoint of step {event.get('step')}"
            if self._retry_while_unreachable(upload_name, partial(self._commit, aside, names, path)):
                self._uploaded.update(self._root / path / name for name in (*names, layout.MANIFEST))
                return True
            # If the bucket does not answer, control removes the incomplete checkpoint later.
            with suppress(StoreUnreachable):
                self._store.remove(path)
        except OSError as error:
            failure = CheckpointData(
                status="failed", path=path, message=f"the checkpoint could not be uploaded: {error}"
            )
            self._report(Kind.CHECKPOINT, failure.model_dump(mode="json"), event.get("step"))
        finally:
            shutil.rmtree(aside, ignore_errors=True)
        return False

    def _is_ours(self, path: str) -> bool:
        """Returns True for a checkpoint in the attempt's folder. Users' code may have sent an event with any path."""
        pure, root = PurePosixPath(path), self._root.resolve()
        is_in_our_folder = pure.parent == layout.attempt_folder(self._grant.job, self._grant.attempt)
        return is_in_our_folder and bool(_NAME.fullmatch(pure.name)) and (root / path).resolve() == root / path

    def _link_files(self, path: str, aside: Path, sha256: str) -> list[str] | None:
        """Makes hard links in `aside` to a checkpoint's files, so that they can be uploaded while training deletes it.

        Returns the files' names, or None if the checkpoint does not exist any more.
        """
        shutil.rmtree(aside, ignore_errors=True)
        aside.mkdir(parents=True)
        try:
            if not link_below(self._root, f"{path}/{layout.MANIFEST}", aside / layout.MANIFEST):
                return None
            names = [name for name in _files_of((aside / layout.MANIFEST).read_bytes()) if stays_inside(name)]
            for name in names:
                (aside / name).parent.mkdir(parents=True, exist_ok=True)
                if name != layout.MANIFEST and not link_below(self._root, f"{path}/{name}", aside / name):
                    return None
        except OSError as error:
            if error.errno in NOT_THERE:
                return None
            raise
        is_same = hashlib.sha256((aside / layout.MANIFEST).read_bytes()).hexdigest() == sha256
        return names if is_same else None

    def _commit(self, aside: Path, names: list[str], path: str) -> bool:
        """Uploads a checkpoint, and before it the files that the next attempt needs beside it."""
        best_before = self._files.folder / layout.BEST_BEFORE
        for file in [self._files.folder / RECORD, *sorted(best_before.rglob("*"))]:
            if file.is_file():
                self._upload(file)
        return self._store.commit(aside, names, path, self._goes_on)

    def _upload_outputs(self) -> bool:
        # A script may have checkpoints that it did not report, which are uploaded like its other files.
        files = self._outputs.files(is_checkpoint_copy if self._spec.is_script else _is_checkpoint)

        def upload_file(file: Path) -> None:
            if self._goes_on():
                self._upload(file)

        do_at_once(upload_file, files, FILES_AT_ONCE)
        if not self._goes_on():
            return False
        self._outputs.mark_complete()
        return True

    def _upload(self, file: Path) -> None:
        """Uploads a file, unless it was uploaded before."""
        if file not in self._uploaded and self._outputs.upload(file):
            self._uploaded.add(file)


def _best_of(folder: Path) -> str | None:
    """Returns the path of the best checkpoint so far from the trainer state in a checkpoint's folder, or None."""
    try:
        best_path = json.loads((folder / STATE).read_bytes())["best_model_checkpoint"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None
    return layout.checkpoint_in(best_path) if isinstance(best_path, str) else None


def _deleted_by(event: Event) -> list[str]:
    """Returns the paths of the checkpoints that training had deleted before it sent this event."""
    return [path for path in event["data"].get("deleted") or [] if isinstance(path, str)]


def _is_checkpoint(folder: Path) -> bool:
    return bool(_NAME.fullmatch(folder.name)) and (folder / layout.MANIFEST).is_file()


def _files_of(manifest: bytes) -> dict[str, dict[str, Any]]:
    """Returns the entry of each file in a manifest, with its size and sha256.

    Returns {} for a broken manifest. Training verifies the checkpoint later and reports the damage.
    """
    with suppress(ValueError, RecursionError):
        files = json.loads(manifest)["files"]
        if isinstance(files, dict) and all(isinstance(entry, dict) for entry in files.values()):
            return files
    return {}


def _is_verified(file: Path, entry: dict[str, Any]) -> bool:
    """Returns True if a file has the size and the sha256 of its entry in the manifest."""
    try:
        if file.stat().st_size != entry.get("bytes"):
            return False
        with file.open("rb") as content:
            return hashlib.file_digest(content, "sha256").hexdigest() == entry.get("sha256")
    except OSError:
        return False
