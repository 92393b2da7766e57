"""Tests that a job keeps as many checkpoints as its spec says over all attempts, and always enough to continue."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from footplate.contract import layout
from footplate.contract.ids import JobId
from footplate.contract.messages import Grant
from service.jobs import remove_folders
from service.jobs.prune import late_window, prune_folders, prune_late
from service.jobs.remove_folders import Remover
from service.store import attempts, checkpoints
from tests.conformance.acting import Stage, Worker

TWO = {"save_strategy": "steps", "save_steps": 5, "save_total_limit": 2}


def again(stage: Stage, worker: Worker) -> Worker:
    """Lets the attempt be lost, and claims the next attempt."""
    stage.rescue()
    stage.later(stage.settings.lease_seconds + 1)
    assert stage.rescue().counts.attempts_lost == 1
    stage.node()
    assert stage.place() == [worker.job]
    return stage.claim(worker.job)


def statuses(stage: Stage, job: JobId) -> dict[str, str]:
    """Returns the status of each checkpoint by attempt and step, newest first."""
    rows = stage.read(lambda conn: checkpoints.of_job(conn, job))
    return {f"{row.attempt}/{row.step}": row.status for row in rows}


def first_attempt(stage: Stage, training: dict[str, Any] = TWO, best: int = 0) -> Worker:
    _, worker = stage.running(training=training, data={"train": "toy/regression", "eval": "toy/regression"})
    for step in (5, 10, 15):
        worker.checkpoints(step, is_best=step == best)
    return worker


def test_earlier_checkpoints_stay_until_the_new_attempt_has_saved_a_checkpoint(stage: Stage) -> None:
    worker = again(stage, first_attempt(stage))
    worker.says_running()

    # Control does not delete surplus checkpoints of the newest attempt, because training does so and reports it.
    assert statuses(stage, worker.job) == {"1/15": "committed", "1/10": "committed", "1/5": "committed"}
    worker.checkpoints(20)

    assert statuses(stage, worker.job) == {
        "2/20": "committed",
        "1/15": "committed",
        "1/10": "deleting",
        "1/5": "deleting",
    }


def test_the_best_checkpoint_is_not_rotated(stage: Stage) -> None:
    worker = again(stage, first_attempt(stage, best=5))
    worker.says_running()
    worker.checkpoints(20)
    worker.checkpoints(25)

    assert statuses(stage, worker.job) == {
        "2/25": "committed", "2/20": "committed", "1/15": "deleting", "1/10": "deleting", "1/5": "committed",
    }  # fmt: skip


def test_control_does_not_rotate_checkpoints_of_a_running_attempt(stage: Stage) -> None:
    """An attempt that control does not hear of may still need a stored checkpoint."""
    worker = again(stage, first_attempt(stage))
    worker.says_running()
    for step in (20, 25, 30):
        worker.checkpoints(step)

    assert {name for name, status in statuses(stage, worker.job).items() if status == "committed"} == {
        "2/30", "2/25", "2/20",
    }  # fmt: skip
    again(stage, worker)
    assert statuses(stage, worker.job)["2/20"] == "committed"


def test_a_checkpoint_that_is_being_deleted_is_not_offered(stage: Stage) -> None:
    worker = again(stage, first_attempt(stage))
    worker.says_running()
    worker.checkpoints(20)

    after = again(stage, worker)

    assert isinstance(after.answer, Grant)
    assert [offer.step for offer in after.answer.checkpoints] == [20, 15]


def test_old_checkpoints_stay_until_all_nodes_of_the_attempt_run(stage: Stage) -> None:
    for _ in range(2):
        stage.node(slots=1)
    job = stage.submit(nodes=2, training=TWO)
    stage.place()
    first = [stage.claim(job, source=source) for source in (0, 1)]
    for worker in first:
        worker.says_running()
    for step in (5, 10, 15):
        first[0].checkpoints(step)
    stage.rescue()
    stage.later(stage.settings.lease_seconds + 1)
    stage.rescue()
    for _ in range(2):
        stage.node(slots=1)
    stage.place()
    quick = stage.claim(job, source=0)
    quick.says_running()

    quick.checkpoints(20)
    assert "deleting" not in statuses(stage, job).values()

    stage.claim(job, source=1).says_running()
    quick.checkpoints(25)
    assert list(statuses(stage, job).values()) == ["committed"] * 2 + ["deleting"] * 3


def test_checkpoints_over_the_limit_are_deleted_when_the_attempt_ends(stage: Stage) -> None:
    worker = again(stage, first_attempt(stage))
    worker.checkpoints(20)
    assert "deleting" not in statuses(stage, worker.job).values()

    worker.fails()

    assert list(statuses(stage, worker.job).values()) == ["committed", "committed", "deleting", "deleting"]


@pytest.mark.parametrize(("metric", "kept_of_the_first"), [("loss", ["1/10", "1/5"]), ("accuracy", ["1/15", "1/10"])])
def test_the_best_checkpoints_of_an_earlier_attempt_stay(
    stage: Stage, metric: str, kept_of_the_first: list[str]
) -> None:
    best = {"keep_last": 1, "keep_best": 2, "metric_for_best_model": metric, "eval_strategy": "steps", "eval_steps": 5}
    training = {"save_strategy": "steps", "save_steps": 5, **best}
    data = {"train": "toy/regression", "eval": "toy/regression"}
    _, worker = stage.running(training=training, data=data, metrics=["accuracy"])
    for step, score in ((5, 0.1), (10, 0.5), (15, 0.9), (17, None)):
        worker.checkpoints(step, score=score)

    worker = again(stage, worker)
    worker.says_running()
    worker.checkpoints(20)

    of_the_first = [name for name, status in statuses(stage, worker.job).items() if status == "committed"][1:]
    assert of_the_first == kept_of_the_first


def test_a_better_checkpoint_replaces_a_worse_checkpoint_of_an_earlier_attempt(stage: Stage) -> None:
    best = {"keep_last": 1, "keep_best": 2, "metric_for_best_model": "loss", "eval_strategy": "steps", "eval_steps": 5}
    training = {"save_strategy": "steps", "save_steps": 5, **best}
    _, worker = stage.running(training=training, data={"train": "toy/regression", "eval": "toy/regression"})
    for step, score in ((5, 0.3), (10, 0.5)):
        worker.checkpoints(step, score=score)

    worker = again(stage, worker)
    worker.says_running()
    for step, score in ((15, 0.4), (20, 0.2)):
        worker.checkpoints(step, score=score)

    assert statuses(stage, worker.job) == {
        "2/20": "committed", "2/15": "committed", "1/10": "deleting", "1/5": "committed",
    }  # fmt: skip


def test_without_a_limit_no_checkpoint_is_deleted(stage: Stage) -> None:
    worker = again(stage, first_attempt(stage, {"save_steps": 5}))
    worker.says_running()
    worker.checkpoints(20)

    assert set(statuses(stage, worker.job).values()) == {"committed"}


def test_a_corrupt_checkpoint_does_not_count_towards_the_limit(stage: Stage) -> None:
    worker = again(stage, first_attempt(stage))
    worker.says_running()
    worker.checkpoints(15, path=f"jobs/{worker.job}/attempts/1/checkpoint-15", status="corrupt")
    worker.checkpoints(20)

    assert statuses(stage, worker.job) == {
        "2/20": "committed",
        "1/15": "corrupt",
        "1/10": "committed",
        "1/5": "deleting",
    }


@pytest.mark.own_statement
def test_a_healed_checkpoint_is_offered_again_and_a_deleted_checkpoint_is_not(stage: Stage) -> None:
    worker = again(stage, first_attempt(stage))
    worker.says_running()
    folder = f"jobs/{worker.job}/attempts/1/checkpoint-"
    worker.checkpoints(15, path=f"{folder}15", status="corrupt")
    worker.checkpoints(10, path=f"{folder}10", status="corrupt", deleted=[f"{folder}5"])

    worker = again(stage, worker)
    for step in (15, 5):
        worker.checkpoints(step, path=f"{folder}{step}", status="healed")

    assert isinstance(worker.answer, Grant)
    assert [(checkpoint.step, checkpoint.was_corrupt) for checkpoint in worker.answer.checkpoints] == [
        (15, True),
        (10, True),
    ]
    assert statuses(stage, worker.job) == {"1/15": "committed", "1/10": "corrupt", "1/5": "deleted"}


def test_a_checkpoint_folder_is_deleted_before_its_row_is_marked_deleted(stage: Stage, tmp_path: Path) -> None:
    worker = again(stage, first_attempt(stage))
    worker.says_running()
    worker.checkpoints(20)
    rows = stage.read(checkpoints.deleting)
    folders = [tmp_path / path for _, path in rows]
    for folder in folders:
        folder.mkdir(parents=True)
        (folder / "weights").touch()
    remover = Remover()
    assert remover.remove(tmp_path, rows, 0.0) == [], "an artifact store without its probe is unavailable"
    (tmp_path / layout.PROBE).touch()

    # The second round stands for a new control, which repeats the work of a control that died.
    for _ in range(2):
        assert remover.remove(tmp_path, rows, 1.0) == rows
    assert not any(folder.exists() for folder in folders)
    stage.write(lambda conn: checkpoints.mark_deleted(conn, rows))

    assert list(statuses(stage, worker.job).values()) == ["committed", "committed", "deleted", "deleted"]
    assert stage.read(checkpoints.deleting) == []


@pytest.mark.own_statement
def test_unreported_checkpoints_of_a_lost_attempt_are_deleted_after_a_day(stage: Stage, tmp_path: Path) -> None:
    worker = again(stage, first_attempt(stage))
    worker.says_running()
    worker.checkpoints(20)
    attempts_folder = tmp_path / layout.job_folder(worker.job) / "attempts"
    report, gone, unheard = (attempts_folder / "1" / f"checkpoint-{step}" for step in (15, 5, 17))
    current = attempts_folder / "2" / "checkpoint-25"
    for folder in (report, gone, unheard, current, unheard.with_name("outputs")):
        folder.mkdir(parents=True)
    stage.write(lambda conn: checkpoints.mark_deleted(conn, checkpoints.deleting(conn)))

    def prune() -> list[Path]:
        lost_attempts = stage.read(lambda conn: attempts.lost_between(conn, *late_window(stage.now)))
        return [tmp_path / folder for folder in prune_late(tmp_path, lost_attempts)]

    assert prune() == []
    stage.later(86_400 + 1)

    assert sorted(prune()) == sorted([gone, unheard])
    assert all(folder.exists() for folder in (report, current, unheard.with_name("outputs")))
    assert prune() == []


def test_rotation_does_not_follow_a_link_in_place_of_a_folder(stage: Stage, tmp_path: Path) -> None:
    """Training may write any file or link below its own folder."""
    (tmp_path / layout.PROBE).touch()
    elsewhere = tmp_path / "elsewhere" / "checkpoint-5"
    elsewhere.mkdir(parents=True)
    for name, aim in (("jobs/j/attempts/1", elsewhere.parent), ("jobs/j/attempts/2/checkpoint-5", elsewhere)):
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).symlink_to(aim)
    rows = [(JobId("j"), "jobs/j/attempts/1/checkpoint-5"), (JobId("j"), "jobs/j/attempts/2/checkpoint-5")]

    assert Remover().remove(tmp_path, rows, 0.0) == rows
    assert elsewhere.exists()


def test_a_folder_that_cannot_be_deleted_is_logged_once_and_retried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / layout.PROBE).touch()
    rows = [(JobId("j"), "jobs/j/attempts/1/checkpoint-5")]
    remover, tried = Remover(), list[float]()

    def stays(clock: float) -> str:
        tried.append(clock)
        return "Permission denied"

    for clock in range(3600):
        monkeypatch.setattr(remove_folders, "delete_folder", lambda *_, clock=clock: stays(clock))
        assert remover.remove(tmp_path, rows, clock) == []

    assert tried == list(range(0, 3600, 60))
    assert remover.stuck == 1
    [message] = caplog.messages
    assert message.startswith(
        "jobs/j/attempts/1/checkpoint-5 is not needed any more and cannot be deleted: Permission denied"
    )

    monkeypatch.undo()
    assert remover.remove(tmp_path, rows, 9999.0) == rows
    assert remover.stuck == 0


def test_a_folder_that_cannot_be_deleted_is_logged_with_the_system_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    monkeypatch.setattr(os, "rmdir", lambda *_, **__: (_ for _ in ()).throw(PermissionError(13, "Permission denied")))

    assert remove_folders.delete_folder(tmp_path, "a") == "[Errno 13] Permission denied"


def test_delete_folder_deletes_nothing_behind_a_link(tmp_path: Path) -> None:
    """Training may create the link after the path was checked, and the process that deletes may run as root."""
    (tmp_path / "elsewhere" / "kept").mkdir(parents=True)
    (tmp_path / "attempt").mkdir()
    (tmp_path / "attempt" / "way").symlink_to(tmp_path / "elsewhere")

    assert remove_folders.delete_folder(tmp_path, "attempt/way/kept") is None
    assert remove_folders.delete_folder(tmp_path, "attempt/way") is not None

    assert (tmp_path / "elsewhere" / "kept").is_dir()


def test_only_what_interrupted_saves_have_left_is_deleted(tmp_path: Path) -> None:
    """A script may have hidden folders, such as .aim, and may put a link in place of its own folder."""
    attempt, elsewhere = tmp_path / "jobs/job_1/attempts/1", tmp_path / "elsewhere"
    leftovers = [attempt / ".tmp-checkpoint-10-00c0ffee", attempt / ".old-checkpoint-10-00c0ffee"]
    stay = [attempt / ".aim", attempt / "cache.tmp", elsewhere / ".tmp-checkpoint-10-00c0ffee"]
    for folder in (*leftovers, *stay):
        folder.mkdir(parents=True)
        os.utime(folder, (0, 0))
    (new := attempt / ".tmp-checkpoint-20-00c0ffee").mkdir()
    attempt.with_name("2").symlink_to(elsewhere)

    prune_folders(tmp_path)

    assert [folder.exists() for folder in (*leftovers, *stay, new)] == [False] * 2 + [True] * 4
