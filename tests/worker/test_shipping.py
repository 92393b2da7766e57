"""Tests an attempt whose artifacts are in a bucket: uploads, reports, and downloads on another node."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from footplate.contract import layout
from footplate.contract.bucket import RemoteStore
from footplate.contract.errors import NoValidCheckpoint
from footplate.contract.host.artifacts import STAGE, AttemptFiles, stage_of
from footplate.contract.host.data_fingerprint import RECORD
from footplate.contract.host.file_roots import Roots
from footplate.contract.ids import Fence, JobId, new_checkpoint_id, new_claim_id, new_job_id
from footplate.contract.messages import CheckpointOffer, Grant
from footplate.contract.serving import AdapterOffer
from footplate.contract.spec import JobSpec
from footplate.runtime.starting_point import StartingPoint, find_starting_point
from footplate.trainer import checkpoint as files
from tests.support.factories import make_spec
from tests.support.processes import until
from tests.support.s3_server import S3Server
from worker.attempt import background
from worker.attempt.artifact_sync import ArtifactSync

JSON = dict[str, Any]


@pytest.fixture(scope="module")
def store(s3: S3Server) -> RemoteStore:
    remote = RemoteStore("s3://shelf/shipping")
    remote.write(b"ours", layout.PROBE)
    return remote


class Attempt:
    """An attempt on its own node, whose folder no other node can read."""

    def __init__(
        self,
        store: RemoteStore,
        folder: Path,
        job: JobId,
        number: int,
        *saved: CheckpointOffer,
        source: int = 0,
        nodes: int = 1,
        **spec: Any,
    ):
        self.job, self.number, self.offers = job, number, list(saved)
        self.root = folder / f"node-{number}-{source}"
        self.files = AttemptFiles(self.root, job, number)
        self.files.folder.mkdir(parents=True)
        job_spec = JobSpec.parse(spec) if "loop" in spec else make_spec(**spec)
        grant = Grant(
            job=job, attempt=number, fence=Fence(number), claim=new_claim_id(), spec=job_spec.as_json(),
            checkpoints=self.offers, beat_seconds=2, source=source, nodes=nodes,
        )  # fmt: skip
        self.wake = os.eventfd(0, os.EFD_NONBLOCK)
        self.shipping = ArtifactSync(store, grant, job_spec, self.root, self.wake)
        self.messages: list[JSON] = []

    def save(self, step: int, content: str = "weights", best: JSON | None = None, stage: int | None = None) -> JSON:
        """Saves a checkpoint as training does, or as this stage of a script does, and returns its event."""
        names = str(self.root / best["data"]["path"]) if best else None

        def write(folder: Path) -> None:
            _write(folder, step, content, names)
            if stage is not None:
                (folder / STAGE).write_text(json.dumps({"stage": stage, "first_step": 0}))

        checkpoint = files.commit(self.files.folder, step, write, {})
        path = self.files.relative(checkpoint.path)
        data = {"status": "committed", "path": path, "manifest_sha256": checkpoint.manifest_sha256, "deleted": []}
        return {"kind": "checkpoint", "at": "now", "step": step, "data": data}

    def send(self, *events: JSON) -> list[JSON]:
        """Uploads checkpoints of these events, and returns all events that were reported."""
        assert self.shipping.hold_checkpoints(list(events)) == [
            event for event in events if event["kind"] != "checkpoint"
        ]
        return self.finish()

    def upload_checkpoints(self, *events: JSON) -> list[JSON]:
        """Uploads checkpoints of these events, and returns the events that were passed on at once or later."""
        passed = self.shipping.hold_checkpoints(list(events))
        return [*passed, *(event for event in self.finish() if event["kind"] == "checkpoint" and event not in passed)]

    def write_files(self, texts: dict[str, str], *, is_lost: bool = False) -> None:
        """Writes files as a script does. Uploads them as the node does, unless the node is lost before."""
        for name, text in texts.items():
            (self.files.folder / name).parent.mkdir(parents=True, exist_ok=True)
            (self.files.folder / name).write_text(text)
        if not is_lost:
            self.shipping.upload_outputs()
            self.finish()

    def close_and_join(self) -> None:
        """Closes the upload, and waits until its thread has ended."""
        self.shipping.close()
        if (thread := self.shipping._thread) is not None:
            thread.join(300)

    def fetch(self) -> None:
        self.shipping.fetch()
        self.finish()

    def contents(self) -> dict[str, str]:
        """Returns the contents of all files in the attempt's folder."""
        result = (path for path in sorted(self.files.folder.rglob("*")) if path.is_file())
        return {str(path.relative_to(self.files.folder)): path.read_text() for path in result}

    def finish(self) -> list[JSON]:
        until(lambda: self.shipping.is_idle, within=30, what="all uploads have ended or failed")
        assert self.shipping.failure is None
        return self.reported()

    def reported(self) -> list[JSON]:
        while not self.shipping.events.empty():
            self.messages.append(self.shipping.events.get())
        return self.messages

    def has_reported(self, code: str) -> bool:
        return any(message["data"].get("code") == code for message in self.reported())

    def starting_point(self) -> StartingPoint | None:
        """Fetches files, and returns the starting point that training finds in them."""
        self.shipping.fetch()
        self.finish()
        self.sentences: list[str] = []
        emit: Any = SimpleNamespace(
            note=lambda text, **more: None, report_checkpoint=lambda status, offer, text: self.sentences.append(text)
        )
        order: Any = SimpleNamespace(
            checkpoints=self.offers, attempt=self.number, files=self.files, roots=Roots(self.root, self.root)
        )
        return find_starting_point(make_spec(), order, emit)

    def close(self) -> None:
        self.shipping.close()
        os.close(self.wake)


Make = Callable[..., Attempt]


@pytest.fixture
def attempt(store: RemoteStore, tmp_path: Path) -> Iterator[Make]:
    """Yields a function that makes attempts of one job: `attempt(2, *offers)`."""
    job, attempts = new_job_id(), list[Attempt]()

    def make(number: int, *saved: CheckpointOffer, **spec: Any) -> Attempt:
        attempts.append(Attempt(store, tmp_path, job, number, *saved, **spec))
        return attempts[-1]

    yield make
    for instance in attempts:
        instance.close()


def _write(folder: Path, step: int, content: str, best: str | None) -> None:
    (folder / "deep").mkdir()
    (folder / "deep" / "model.safetensors").write_text(content)
    (folder / "trainer_state.json").write_text(json.dumps({"step": step, "best_model_checkpoint": best}))


def offer_of(event: JSON) -> CheckpointOffer:
    data = event["data"]
    return CheckpointOffer(
        id=new_checkpoint_id(), step=event["step"], path=data["path"], manifest_sha256=data["manifest_sha256"]
    )


def _names(store: RemoteStore, event: JSON) -> list[str]:
    return [file.path for file in store.files(event["data"]["path"])]


def test_an_attempt_starts_from_a_checkpoint_of_another_node(attempt: Make, store: RemoteStore) -> None:
    first = attempt(1)
    (first.files.folder / RECORD).write_text("{}")
    events = [first.save(10), first.save(20)]

    assert first.send({"kind": "log", "data": {}}, *events) == events
    second = attempt(2, *map(offer_of, reversed(events)))
    began = second.starting_point()

    assert began == StartingPoint(str(second.root / events[1]["data"]["path"]), is_own=True)
    assert (Path(began.folder) / "deep" / "model.safetensors").read_text() == "weights"
    assert (Path(began.folder).parent / RECORD).exists(), "the fingerprint of the data must be fetched, too"
    assert not (second.root / events[0]["data"]["path"]).exists(), "only the newest checkpoint must be fetched"


def test_an_adapter_of_another_job_is_fetched_once_for_a_session(
    attempt: Make, store: RemoteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained = attempt(1)
    [event] = trained.send(trained.save(10))
    offer = offer_of(event)
    adapter = AdapterOffer(id=offer.id, path=offer.path, manifest_sha256=offer.manifest_sha256)
    session = attempt(2)

    assert session.shipping.fetch_adapter(adapter).wait(30)
    folder = session.root / offer.path
    assert (folder / "deep" / "model.safetensors").read_text() == "weights"
    monkeypatch.setattr(RemoteStore, "read", lambda store, path: pytest.fail("the adapter is fetched again"))
    assert session.shipping.fetch_adapter(adapter).wait(30)
    missing = adapter.model_copy(update={"id": new_checkpoint_id(), "path": "jobs/none/1/checkpoint-1"})
    monkeypatch.undo()
    assert session.shipping.fetch_adapter(missing).wait(30), "a missing adapter is reported by the process"
    assert session.finish() == []


def test_a_checkpoint_is_reported_only_after_the_store_has_it(attempt: Make, store: RemoteStore, s3: S3Server) -> None:
    """Training rotates its checkpoints during the outage. A checkpoint that is reported later is in the store."""
    first = attempt(1)
    events = [first.save(10), first.save(20), first.save(30)]
    with s3.away():
        assert first.shipping.hold_checkpoints(events) == []
        until(lambda: first.has_reported("store_away"), within=20, what="the outage of the store is reported")
        assert [message["kind"] for message in first.messages] == ["note"]
        newest = files.Checkpoint(first.files.folder / "checkpoint-30", 30, bytes=0, manifest_sha256="")
        files.rotate(first.files.folder, 1, newest, set())
        events[2]["data"]["deleted"] = [events[0]["data"]["path"]]

    report = [event for event in first.finish() if event["kind"] == "checkpoint"]

    assert [item["step"] for item in report] == [10, 30], "a checkpoint deleted before its upload is not reported"
    assert first.has_reported("store_back")
    assert [_names(store, event) for event in events] == [
        sorted(["manifest.json", *NAMES]),
        [],
        sorted(["manifest.json", *NAMES]),
    ]


NAMES = ["deep/model.safetensors", "trainer_state.json"]


def test_an_abandoned_upload_leaves_no_files_in_the_store(
    attempt: Make, store: RemoteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = attempt(1)
    event = first.save(10)
    put = RemoteStore.put
    monkeypatch.setattr(RemoteStore, "put", lambda *args: (put(*args), first.shipping.give_up()))

    assert first.send(event) == []
    assert _names(store, event) == []


@pytest.mark.parametrize("stops_early", [False, True])
def test_the_newest_checkpoint_is_uploaded_first_and_reported_last_after_training(
    attempt: Make, monkeypatch: pytest.MonkeyPatch, stops_early: bool
) -> None:
    """A stop may leave time for one upload only. The next attempt continues from what was reported last."""
    first, may_begin, order = attempt(1), threading.Event(), list[str]()
    events = [first.save(10), first.save(20), first.save(30)]
    events[2]["data"]["deleted"] = ["an older one"]
    put = RemoteStore.put

    def record(store: RemoteStore, file: Path, key: str) -> None:
        name = Path(key).parent.name
        if stops_early and name == "checkpoint-10":
            first.shipping.give_up()
        put(store, file, key)
        if key.endswith(layout.MANIFEST):
            order.append(name)

    monkeypatch.setattr(RemoteStore, "put", record)
    first.shipping._add(may_begin.wait)
    first.shipping.hold_checkpoints(events)
    first.shipping.upload_outputs()
    may_begin.set()

    expected = events[2:] if stops_early else events
    assert first.finish() == expected
    uploaded = ["checkpoint-30", "checkpoint-10", "checkpoint-20"]
    assert order == uploaded[: len(expected)]


@pytest.mark.parametrize("verifies", [True, False], ids=["protected", "control"])
@pytest.mark.parametrize("harm", ["flipped bits", "truncated", "missing file", "missing manifest", "changed manifest"])
def test_a_broken_checkpoint_is_reported_and_the_one_before_it_is_used(
    attempt: Make, store: RemoteStore, monkeypatch: pytest.MonkeyPatch, harm: str, verifies: bool
) -> None:
    first = attempt(1)
    older, newer = first.save(10), first.save(20)
    first.send(older, newer)
    place = newer["data"]["path"]
    if harm in ("flipped bits", "truncated"):
        store.write(b"weighty" if harm == "flipped bits" else b"wei", f"{place}/{NAMES[0]}")
    elif harm == "changed manifest":
        store.write(store.read(f"{place}/manifest.json") + b" ", f"{place}/manifest.json")
    else:
        store.remove_file(f"{place}/{NAMES[0] if harm == 'missing file' else 'manifest.json'}")
    second = attempt(2, offer_of(newer), offer_of(older))
    if not verifies:
        monkeypatch.setattr(
            ArtifactSync, "_fetch_offer", lambda self, offer: True if _fetch_unchecked(self, offer) else None
        )
        with pytest.raises(NoValidCheckpoint):
            second.starting_point()
        return

    began = second.starting_point()

    assert began == StartingPoint(str(second.root / older["data"]["path"]), is_own=True)
    [sentence] = second.sentences
    assert "checkpoint-20" in sentence
    if harm in ("flipped bits", "truncated", "missing file"):
        assert NAMES[0] in sentence


def _fetch_unchecked(self: ArtifactSync, offer: CheckpointOffer) -> bool:
    """Fetches all existing files of a checkpoint without checking that it is complete."""
    for file in self._store.files(offer.path):
        self._fetch_file(f"{offer.path}/{file.path}")
    return True


@pytest.mark.parametrize("asks", [True, False], ids=["protected", "control"])
def test_an_attempt_waits_for_its_store_if_the_bucket_is_empty(
    attempt: Make, store: RemoteStore, monkeypatch: pytest.MonkeyPatch, asks: bool
) -> None:
    """An empty bucket lacks the probe file. Without a check for it, the job would have no checkpoint and fail."""
    first = attempt(1)
    event = first.save(10)
    first.send(event)
    monkeypatch.setattr(background, "LONGEST_SECONDS", 0.2)
    emptied = RemoteStore("s3://shelf/emptied")
    second = attempt(2, offer_of(event))
    second.shipping._store = emptied
    if not asks:
        monkeypatch.setattr(emptied, "trouble", lambda: None)
        with pytest.raises(NoValidCheckpoint):
            second.starting_point()
        return
    second.shipping.fetch()
    until(lambda: second.has_reported("store_away"), within=20, what="the wrong store is reported")
    second.shipping._store = store
    second.finish()

    assert second.starting_point() is not None
    assert second.sentences == []


def test_only_checkpoints_of_the_attempt_are_uploaded(attempt: Make, store: RemoteStore, tmp_path: Path) -> None:
    """Users' code shares the socket on which checkpoints are reported, and the folder."""
    first = attempt(1)
    secret = tmp_path / "secret"
    secret.mkdir()
    (secret / "manifest.json").write_text('{"files": {}}')
    linked, event = first.files.folder / "checkpoint-7", first.save(10)
    linked.symlink_to(secret)
    place = first.files.relative(first.files.folder)

    for path in ("../../secret", f"{place}/../../../../../secret", f"{place}/checkpoint-7", f"{place}/outputs"):
        first.send({**event, "data": {**event["data"], "path": path}})

    assert [message["kind"] for message in first.messages] == ["note"] * 4
    assert store.files(place) == []


def test_a_link_in_a_checkpoint_uploads_nothing_of_its_target(
    attempt: Make, store: RemoteStore, tmp_path: Path
) -> None:
    """The node may run as root, and could read files that training cannot."""
    first = attempt(1)
    secret = tmp_path / "secret"
    secret.mkdir()
    (secret / "key").write_text("hunter2")
    event = first.save(10)
    folder = first.root / event["data"]["path"]
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["files"]["inner/key"] = {"bytes": 7, "sha256": "0" * 64}
    (folder / "manifest.json").write_text(json.dumps(manifest))
    (folder / "inner").symlink_to(secret)
    (first.files.folder / RECORD).symlink_to(secret / "key")
    reports = {**event["data"], "manifest_sha256": hashlib.sha256((folder / "manifest.json").read_bytes()).hexdigest()}

    first.send({**event, "data": reports})
    first.shipping.upload_outputs()
    first.finish()

    assert store.files(first.files.relative(first.files.folder)) == []


def test_outputs_and_files_of_trackers_outlive_their_node(attempt: Make, store: RemoteStore) -> None:
    first = attempt(1, report_to=["tensorboard"])
    first.send(event := first.save(10))
    outputs = first.files.outputs
    (outputs / "tensorboard").mkdir(parents=True)
    (outputs / "model.safetensors").write_text("done")
    (outputs / "tensorboard" / "events.1").write_text("curve")
    (outputs / "wandb").mkdir()
    (outputs / "wandb" / "run-1.wandb").write_text("offline")
    (outputs / "link").symlink_to("/etc/passwd")
    (first.files.folder / ".tmp-checkpoint-20").mkdir()
    (first.files.folder / ".tmp-checkpoint-20" / "half").write_text("…")

    first.shipping.upload_outputs()
    first.finish()

    paths = {file.path for file in store.files(first.files.relative(first.files.folder))}
    assert paths == {
        "outputs/model.safetensors", "outputs/tensorboard/events.1", "outputs/wandb/run-1.wandb",
        *(f"checkpoint-10/{name}" for name in [*NAMES, "manifest.json"]),
    }  # fmt: skip
    second = attempt(2, offer_of(event), report_to=["tensorboard"])
    second.starting_point()
    output_folder = second.root / layout.outputs_folder(first.job, 1)
    assert (output_folder / "tensorboard" / "events.1").read_text() == "curve"
    assert (output_folder / "wandb" / "run-1.wandb").read_text() == "offline"


@pytest.mark.parametrize("is_script", [True, False])
def test_a_copy_of_a_checkpoint_in_another_folder_is_uploaded(
    attempt: Make, store: RemoteStore, is_script: bool
) -> None:
    first = attempt(1, **(SCRIPT if is_script else {}))
    event = first.save(10, stage=0 if is_script else None)
    shutil.copytree(first.root / event["data"]["path"], first.files.outputs / "best" / "checkpoint-10")

    first.write_files({})

    place = first.files.relative(first.files.outputs / "best")
    assert set(NAMES) <= {file.path.removeprefix("checkpoint-10/") for file in store.files(place)}


SCRIPT: JSON = {"loop": {"script": "train.py"}, "code": {"bundle": "0" * 64}}


def test_several_files_of_a_script_are_uploaded_and_downloaded_at_once(
    attempt: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    put, fetch, other_copy = RemoteStore.put, RemoteStore.fetch, threading.Barrier(2)

    def put_beside_another(store: RemoteStore, file: Path, key: str) -> None:
        other_copy.wait(60)
        put(store, file, key)

    def fetch_beside_another(store: RemoteStore, key: str, file: Path) -> None:
        if "/state/" in key:
            other_copy.wait(60)
        fetch(store, key, file)

    first, second = (attempt(number, **SCRIPT) for number in (1, 2))
    monkeypatch.setattr(RemoteStore, "put", put_beside_another)
    monkeypatch.setattr(RemoteStore, "fetch", fetch_beside_another)
    first.write_files({"state/model": "10", "state/step": "10"})
    second.fetch()

    assert second.contents() == {"state/model": "10", "state/step": "10"}


def test_a_script_starts_with_the_files_of_its_previous_attempt(attempt: Make) -> None:
    first = attempt(1, **SCRIPT)
    files.commit(first.files.folder, 10, lambda at: _write(at, 10, "weights", None), {})
    first.write_files({"state/step": "10", "outputs/curve": "…", ".cache/half": "…"})

    second = attempt(2, **SCRIPT)
    second.fetch()

    names = {"state/step", "outputs/curve", *(f"checkpoint-10/{name}" for name in [*NAMES, "manifest.json"])}
    assert second.contents().keys() == names, "checkpoints that the script does not report are uploaded, too"


def test_each_file_of_a_script_is_uploaded_once(
    attempt: Make, store: RemoteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The outputs are hard links to the script's files, and a reported checkpoint is a folder of the script."""
    keys: list[str] = []
    put = RemoteStore.put
    monkeypatch.setattr(RemoteStore, "put", lambda self, file, key: (keys.append(key), put(self, file, key)))
    first = attempt(1, **SCRIPT)
    first.send(first.save(10))
    first.write_files({"results/best": "0.9"}, is_lost=True)
    linked = first.files.outputs / "results" / "best"
    linked.parent.mkdir(parents=True)
    linked.hardlink_to(first.files.folder / "results" / "best")
    first.write_files({"state": "10"})

    names = {str(layout.attempt_folder(first.job, 1) / name) for name in ("outputs/results/best", "state")}
    assert sorted(key for key in keys if "checkpoint-10" not in key) == sorted(names)
    assert len(keys) == len(set(keys))
    second = attempt(2, **SCRIPT)
    second.fetch()
    assert second.contents()["results/best"] == second.contents()["outputs/results/best"] == "0.9"


def test_a_script_on_another_node_has_a_checkpoint_of_each_of_its_stages(attempt: Make) -> None:
    """A script that trains twice needs the newest checkpoint of its first training, too, to load its model."""
    first = attempt(1, **SCRIPT)
    events = [first.save(step, stage=stage) for step, stage in ((10, 0), (20, 0), (30, 1), (40, 1))]
    first.send(*events)
    offers = [offer_of(event) for event in reversed(events)]

    second = attempt(2, *offers, **SCRIPT)
    second.fetch()

    folders = [second.root / offer.path for offer in offers]
    assert [stage_of(folder) for folder in folders] == [1, 1, 0, 0]
    assert [(folder / NAMES[0]).exists() for folder in folders] == [True, False, True, False]


def test_the_jobs_copies_of_checkpoints_are_not_files_of_the_next_attempt(attempt: Make, store: RemoteStore) -> None:
    first = attempt(1, **SCRIPT)
    first.send(event := first.save(10, stage=0))
    first.write_files({"state": "10"})

    second = attempt(2, offer_of(event), **SCRIPT)
    second.fetch()
    assert second.contents() == {"state": "10"}
    second.save(20, stage=0)
    second.write_files({})

    assert [file.path for file in store.files(second.files.relative(second.files.folder))] == [".nodes/0-of-1", "state"]


def test_each_node_of_a_script_starts_with_the_files_of_all_nodes(attempt: Make, store: RemoteStore) -> None:
    """If two nodes wrote the same path, the file of the first node is kept. Outputs have one file of each name."""
    first, other = (attempt(1, source=source, nodes=2, **SCRIPT) for source in (0, 1))
    first.write_files({"state/step": "10", "log": "first", "outputs/curve": "first"})
    other.write_files({"state/rng-1": "10", "log": "other", "outputs/other": "other"})

    for source in (0, 1):
        again = attempt(2, source=source, nodes=2, **SCRIPT)
        again.fetch()
        assert again.contents() == {
            "state/step": "10", "state/rng-1": "10", "log": "first", "outputs/curve": "first", "outputs/other": "other",
        }  # fmt: skip
    place = first.files.relative(first.files.folder)
    assert {file.path for file in store.files(f"{place}/outputs")} == {"curve", "other"}


def test_the_best_checkpoint_is_fetched_too_if_it_will_be_loaded(attempt: Make, store: RemoteStore) -> None:
    first = attempt(1)
    best = first.save(10, "better")
    newest = first.save(20, best=best)
    first.send(best, newest)
    item = {"eval_strategy": "steps", "eval_steps": 10, "save_strategy": "steps", "save_steps": 10}
    spec = {"data": {"train": "toy/regression", "eval": "toy/regression"}, "training": item}
    spec["training"]["load_best_model_at_end"] = True

    second, third = attempt(2, offer_of(newest), offer_of(best), **spec), attempt(3, offer_of(newest), offer_of(best))
    second.starting_point()
    third.starting_point()

    names = str(first.root / best["data"]["path"])
    shutil.rmtree(first.root)
    assert second.files.here(names) == str(second.root / best["data"]["path"])
    assert (Path(second.files.here(names)) / NAMES[0]).read_text() == "better"
    assert third.files.here(names) == names, "the best checkpoint must not be fetched if it will not be loaded"
