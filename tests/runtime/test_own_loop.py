"""Tests a user's own training loop in this process, without a node that reads its events."""

from __future__ import annotations

import hashlib
import io
import json
import mmap
import os
import shutil
import socket
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from footplate.contract.errors import DatasetError, OwnCodeError
from footplate.contract.events import Ending
from footplate.contract.host.bundle_files import Bundle, unpack
from footplate.contract.host.launch import IGNORES_STOPS_AT, TERMINATED_AT, Order
from footplate.contract.ids import ClaimId, Fence, JobId, new_job_id
from footplate.contract.layout import bundle_file
from footplate.contract.spec import JobSpec
from footplate.runtime import own_code, own_loop, process_group
from footplate.runtime.emit import Emit, EventSocket
from footplate.runtime.starting_point import StartingPoint
from footplate.trainer.checkpoint import verify
from tests.support.own_code import close_bundle


class Attempt:
    """One attempt of a job with an own loop, without its supervisor."""

    def __init__(self, folder: Path, number: int = 1, job: JobId | None = None) -> None:
        self.reader, theirs = socket.socketpair()
        self.reader.settimeout(60)
        self.stop_fd = os.memfd_create("stop")
        os.ftruncate(self.stop_fd, mmap.PAGESIZE)
        nothing = {"gpus": [], "checkpoints": [], "artifacts": folder, "data": folder, "models": folder, "threads": 1}
        claim, fence = ClaimId("claim"), Fence(1)
        self.order = Order(job=job or new_job_id(), attempt=number, fence=fence, claim=claim, spec={}, **nothing)
        self.order.files.folder.mkdir(parents=True)
        self.event_socket = EventSocket(theirs.detach())
        self.emit = Emit(self.event_socket, self.stop_fd, self.order.files)

    def job(self, latest: str | None = None, **training: Any) -> own_loop.Job:
        spec = JobSpec.parse({"loop": "my:main", "code": {"bundle": "0" * 64}, "training": training})
        start = None if latest is None else StartingPoint(latest, is_own=True)
        return own_loop.Job(spec, self.order, self.emit, lambda: start)

    def events(self) -> list[dict[str, Any]]:
        self.event_socket.flush(within=120)
        return [json.loads(line) for line in self.reader.recv(1 << 20).splitlines()]

    def close(self) -> None:
        os.close(self.stop_fd)
        self.reader.close()


@pytest.fixture
def attempt(tmp_path: Path) -> Iterator[Attempt]:
    new_attempt = Attempt(tmp_path)
    yield new_attempt
    new_attempt.close()


def test_logs_and_evaluations_of_an_own_loop_become_events(attempt: Attempt) -> None:
    job = attempt.job()

    job.log({"loss": torch.tensor(0.5)}, step=3, epoch=0.5)
    job.eval({"accuracy": 0.75, "eval_loss": 1.0}, step=3)

    reports = {message["kind"]: message for message in attempt.events()}
    assert (reports["log"]["data"], reports["log"]["step"], reports["log"]["epoch"]) == ({"loss": 0.5}, 3, 0.5)
    assert reports["eval"]["data"] == {"eval_accuracy": 0.75, "eval_loss": 1.0}
    assert reports["progress"]["data"]["step"] == job.step == 3
    assert reports["progress"]["data"]["eta_s"] is None


def test_a_checkpoint_of_an_own_loop_is_committed_and_the_oldest_is_deleted(attempt: Attempt) -> None:
    job = attempt.job(save_total_limit=1)
    for step in (1, 2, 3):
        newest = job.checkpoint(step=step, write=lambda folder: (folder / "mine.txt").write_text("x") and None)

    assert verify(newest.path)["step"] == 3
    assert job.latest() == newest
    committed = [message["data"] for message in attempt.events() if message["kind"] == "checkpoint"]
    assert [checkpoint["status"] for checkpoint in committed] == ["committed"] * 3
    # The first checkpoint is kept until the service has stored a newer one, because a new attempt starts from it.
    there = sorted(path.name for path in job.folder.glob("checkpoint-*"))
    assert there == ["checkpoint-1", "checkpoint-3"]


def test_an_own_loop_continues_from_the_latest_checkpoint_of_earlier_attempts(attempt: Attempt) -> None:
    job = attempt.job(latest="/store/checkpoint-7")

    latest = job.latest()

    assert latest is not None
    assert (latest.step, str(latest.path), job.step) == (7, "/store/checkpoint-7", 7)
    assert attempt.job(latest=None).latest() is None


def test_a_stop_is_acknowledged_only_when_the_loop_reads_should_stop(attempt: Attempt) -> None:
    job = attempt.job()
    assert not job.should_stop
    with mmap.mmap(attempt.stop_fd, mmap.PAGESIZE) as page:
        page[0] = 1

    job.log({"loss": 1.0}, step=1)
    assert attempt.emit.obeyed is None
    assert job.should_stop
    assert attempt.emit.obeyed is not None


def exits(attempt: Attempt, monkeypatch: pytest.MonkeyPatch, *, loop: Any, code: int | None) -> Ending:
    """Runs an own loop whose bundle calls sys.exit, as a script or as a function."""
    program = f"sys.exit({code})" if isinstance(loop, dict) else f"def main(job): sys.exit({code})"
    return runs(attempt, monkeypatch, loop=loop, program=program)


def runs(attempt: Attempt, monkeypatch: pytest.MonkeyPatch, *, loop: Any, program: str) -> Ending:
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as bundle:
        bundle.writestr("train.py" if isinstance(loop, dict) else "my.py", f"import sys\n{program}\n")
    sha256 = hashlib.sha256(archive.getvalue()).hexdigest()
    place = attempt.order.artifacts / bundle_file(sha256)
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_bytes(archive.getvalue())
    monkeypatch.chdir(attempt.order.files.folder)
    monkeypatch.setattr(tempfile, "tempdir", str(attempt.order.artifacts))
    monkeypatch.setattr(sys, "argv", [])
    monkeypatch.setattr(sys, "path", list(sys.path))
    spec = JobSpec.parse({"loop": loop, "code": {"bundle": sha256}})
    if not spec.is_script:
        own_code.use(unpack(sha256, attempt.order.artifacts, attempt.order.artifacts))
    try:
        return own_loop.run(spec, attempt.order, attempt.emit, lambda: None).ending
    finally:
        close_bundle()


@pytest.mark.parametrize(("made", "ignores_stops"), [("", 1), ("Accelerator()", 0), ("Trainer(Linear(1, 1))", 0)])
def test_a_script_reads_stops_once_it_has_made_a_trainer_or_an_accelerator(
    attempt: Attempt, monkeypatch: pytest.MonkeyPatch, made: str, ignores_stops: int
) -> None:
    imports = """
from accelerate import Accelerator
from footplate.trainer.trainer import Trainer
from torch.nn import Linear
"""
    runs(attempt, monkeypatch, loop={"script": "train.py"}, program=imports + made)

    with mmap.mmap(attempt.stop_fd, mmap.PAGESIZE) as page:
        assert page[IGNORES_STOPS_AT] == ignores_stops


LOOPS = pytest.mark.parametrize("loop", [{"script": "train.py"}, "my:main"], ids=["script", "function"])


@LOOPS
@pytest.mark.parametrize("code", [0, 143])
def test_an_own_loop_that_exits_after_sigterm_is_stopped_and_not_finished(
    attempt: Attempt, monkeypatch: pytest.MonkeyPatch, loop: Any, code: int
) -> None:
    with mmap.mmap(attempt.stop_fd, mmap.PAGESIZE) as page:
        page[TERMINATED_AT] = 1

    assert exits(attempt, monkeypatch, loop=loop, code=code) is Ending.STOPPED


@LOOPS
@pytest.mark.parametrize("code", [0, None])
def test_an_own_loop_that_exits_with_0_has_finished(
    attempt: Attempt, monkeypatch: pytest.MonkeyPatch, loop: Any, code: int | None
) -> None:
    assert exits(attempt, monkeypatch, loop=loop, code=code) is Ending.FINISHED


def test_files_and_folders_that_an_own_loop_saves_are_copied_to_the_outputs(attempt: Attempt, tmp_path: Path) -> None:
    (tmp_path / "plots").mkdir()
    (tmp_path / "plots" / "a.png").write_text("png")
    job = attempt.job()

    job.save(tmp_path / "plots")
    job.save(tmp_path / "plots" / "a.png")

    outputs = attempt.order.files.outputs
    assert (outputs / "plots" / "a.png").read_text() == (outputs / "a.png").read_text() == "png"


def test_a_missing_loop_or_a_loop_without_a_parameter_is_refused(attempt: Attempt, tmp_path: Path) -> None:
    folder = tmp_path / "code"
    folder.mkdir()
    (folder / "my.py").write_text("def main(): ...\n")
    own_code.use(Bundle("0" * 64, folder, ("my.py",)))
    try:
        for name, sentence in (("my:man", "did you mean 'main'?"), ("my:main", "too many positional arguments")):
            spec = JobSpec.parse({"loop": name, "code": {"bundle": "0" * 64}})
            with pytest.raises(OwnCodeError) as failed:
                own_loop.run(spec, attempt.order, attempt.emit, lambda: None)
            assert sentence in f"{failed.value.message} {failed.value.hint}"
    finally:
        close_bundle()


def test_a_missing_file_is_refused_before_the_module_of_an_own_loop_is_imported(
    attempt: Attempt, tmp_path: Path
) -> None:
    (tmp_path / "my.py").write_text("raise AssertionError('the module is imported')\n")
    loop = {"use": "my:main", "args": {"rows": "data://missing.csv"}}
    spec = JobSpec.parse({"loop": loop, "code": {"bundle": "0" * 64}})
    own_code.use(Bundle("0" * 64, tmp_path, ("my.py",)))
    try:
        with pytest.raises(DatasetError, match="is not on this node"):
            own_loop.run(spec, attempt.order, attempt.emit, lambda: None)
    finally:
        close_bundle()


def test_a_file_that_two_processes_save_is_complete(attempt: Attempt, tmp_path: Path) -> None:
    (tmp_path / "model.pt").write_text("weights")
    for _ in range(2):
        attempt.job().save(tmp_path / "model.pt")

    assert [path.name for path in attempt.order.files.outputs.iterdir()] == ["model.pt"]


def test_a_lost_connection_is_recognized_as_caused_by_another_rank() -> None:
    error = RuntimeError("[../gloo/transport/tcp/pair.cc:547] Connection closed by peer [127.0.0.1]:3127")

    assert process_group.is_caused_by_another_rank(error)
    assert not process_group.is_caused_by_another_rank(ValueError("closed by peer"))


def test_folders_of_killed_saves_are_not_copied_to_the_next_attempt(tmp_path: Path) -> None:
    job = new_job_id()
    first, second = attempts = [Attempt(tmp_path, number, job) for number in (1, 2)]
    own_loop._continue_in_a_copy(first.order)
    for name in ("out/checkpoint-10", "out/.tmp-checkpoint-20-00c0ffee", ".tmp-checkpoint-20-00c0ffee", ".aim"):
        (first.order.files.folder / name).mkdir(parents=True)

    own_loop._continue_in_a_copy(second.order)

    own = second.order.files.folder
    folders = {str(path.relative_to(own)) for path in own.rglob("*") if path.is_dir()}
    assert folders == {"out", "out/checkpoint-10", ".aim"}
    for attempt in attempts:
        attempt.close()


@pytest.mark.parametrize("is_marked", ["last", "first"], ids=["protected", "control"])
def test_files_of_an_earlier_attempt_survive_a_kill_while_they_are_copied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_marked: str
) -> None:
    job = new_job_id()
    first, second, third = attempts = [Attempt(tmp_path, number, job) for number in (1, 2, 3)]
    own_loop._continue_in_a_copy(first.order)
    for name in ("model", "optimizer"):
        (first.order.files.folder / name).write_text("10")

    def dies_half_way(theirs: Path, own: Path, **_: Any) -> None:
        shutil.copyfile(theirs / "model", own / "model")
        raise SystemExit("killed")

    with monkeypatch.context() as patch:
        patch.setattr(shutil, "copytree", dies_half_way)
        with pytest.raises(SystemExit):
            own_loop._continue_in_a_copy(second.order)
    if is_marked == "first":
        (second.order.files.folder / own_loop.BEGUN).touch()
    own_loop._continue_in_a_copy(third.order)

    result = {path.name for path in third.order.files.folder.iterdir()} - {own_loop.BEGUN}
    assert result == ({"model", "optimizer"} if is_marked == "last" else {"model"})
    for attempt in attempts:
        attempt.close()
