"""Tests backups of a database in use, and a restore that does not know newer attempts."""

from __future__ import annotations

import errno
import os
import shutil
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection, text

from footplate.contract.lifecycle import JobState
from service.backup import CannotBackUp, back_up
from service.program import main
from service.settings import ServiceSettings
from service.store.database import Database
from service.store.schema import migrate
from service.store.tables import metadata
from tests.conformance.acting import Stage, Worker
from tests.support.pages import POSTGRES, SQLITE, paste, snippets
from tests.support.postgres import PostgresServer

Rows = dict[str, list[tuple[object, ...]]]


class Story:
    """A finished job and a running job. A backup is taken while the worker sends events, and restored later."""

    restored: Stage

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.finished_job, worker = stage.running()
        worker.checkpoints(10)
        worker.finishes()
        self.job, self.first = stage.running()
        stage.submitted("a-key")
        self.first.checkpoints(10)
        self.before = rows(stage.db)

    def go_on(self) -> None:
        """Starts a second attempt of the running job, and the first attempt of a job submitted after the backup."""
        self.after = rows(self.stage.db)
        self.first.fails()
        self.stage.later(1)
        newer = self.stage.submit()
        assert {self.job, newer} <= set(self.stage.place())
        self.unknown = [self.stage.claim(job) for job in (self.job, newer)]


@pytest.fixture(scope="module", params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def story(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Story]:
    folder = tmp_path_factory.mktemp("backup")
    here, elsewhere = folder / "here", folder / "elsewhere"
    (here / "artifacts").mkdir(parents=True)
    with ExitStack() as stack:
        if request.param == "sqlite":
            which, path, urls = SQLITE, "", [f"sqlite:///{home / 'footplate.db'}" for home in (here, elsewhere)]
        else:
            server: PostgresServer = request.getfixturevalue("postgres_server")
            which, path, urls = POSTGRES, os.fspath(server.bin), [stack.enter_context(server.database()) for _ in "12"]

        def operate(section: str, home: Path, url: str) -> None:
            commands = snippets("guides/backup-and-upgrade.md", section=section)[which]
            paste(
                commands, folder, path=path, BACKUP=os.fspath(folder / "backup"), FOOTPLATE_HOME=os.fspath(home),
                FOOTPLATE_ARTIFACTS=os.fspath(home / "artifacts"), FOOTPLATE_DATABASE=url,
            )  # fmt: skip

        migrate(urls[0])
        story = Story(stack.enter_context(a_stage(urls[0])))
        with logging(story.first):
            operate("Back up", here, urls[0])
        story.go_on()
        elsewhere.mkdir()
        operate("Restore", elsewhere, urls[1])
        story.restored = stack.enter_context(a_stage(urls[1]))
        yield story


@contextmanager
def a_stage(url: str) -> Iterator[Stage]:
    database = Database(url, readers=2, writers=2)
    yield Stage(database)
    database.close()


@contextmanager
def logging(worker: Worker) -> Iterator[None]:
    """Sends a few hundred logs per second until the block ends, with pauses that leave CPU time to the backup."""
    is_over, is_written = threading.Event(), threading.Event()

    def go_on() -> None:
        while not is_over.is_set():
            worker.logs(len(worker.journal))
            is_written.set()
            is_over.wait(0.005)

    writer = threading.Thread(target=go_on)
    writer.start()
    try:
        assert is_written.wait(20)
        yield
    finally:
        is_over.set()
        writer.join()


def rows(db: Database) -> Rows:
    def read(conn: Connection) -> Rows:
        selected = {name: conn.execute(text(f"SELECT * FROM {name}")) for name in metadata.tables}
        return {name: sorted(map(tuple, result), key=repr) for name, result in selected.items()}

    return db.read_now(read)


def test_rows_unchanged_during_a_backup_are_restored_exactly(story: Story) -> None:
    same = {name for name in story.before if story.before[name] == story.after[name]}
    restored = rows(story.restored.db)

    assert {"idempotency", "attempts", "checkpoints", "nodes"} <= same
    assert {name: restored[name] for name in same} == {name: story.before[name] for name in same}
    assert story.restored.job(story.finished_job) == story.stage.job(story.finished_job)
    assert story.restored.events(story.finished_job) == story.stage.events(story.finished_job)


def test_events_written_during_a_backup_are_restored_without_gaps(story: Story) -> None:
    restored_events = story.restored.events(story.job)

    assert [event.no for event in restored_events] == list(range(1, story.restored.job(story.job).last_no + 1))
    assert restored_events == story.stage.events(story.job)[: len(restored_events)]
    assert story.before["events"] != story.after["events"], "no event was written during the backup"


def test_an_attempt_that_began_after_the_backup_is_stopped(story: Story) -> None:
    """The backup has an earlier attempt of the job, or was taken before the job was submitted."""
    for worker in story.unknown:
        worker.stage = story.restored
        worker.says_running()
        worker.finishes()
        reply, received = worker.beat(), worker.send()

        assert (reply.superseded, reply.closed) == (True, True)
        assert received.watermarks == {(worker.job, worker.attempt, 0): len(worker.journal)}
        assert received.counts.events_stored == 0
    assert story.restored.job(story.job).state is JobState.RUNNING


def test_an_attempt_that_is_in_the_backup_continues(story: Story) -> None:
    story.first.stage = story.restored

    assert not story.first.beat().superseded


@pytest.fixture
def home(tmp_path: Path) -> Path:
    migrate(f"sqlite:///{tmp_path / 'home/footplate.db'}")
    for name in ("checkpoint-2", ".tmp-checkpoint-4-0123", "checkpoint-1"):
        folder = tmp_path / "home/artifacts/jobs" / name
        folder.mkdir(parents=True)
        (folder / "weights").write_text(name)
    return tmp_path / "home"


def backed_up(home: Path, to: Path) -> set[str]:
    back_up(ServiceSettings(home=home), to)
    assert {path.name for path in to.iterdir()} == {"footplate.db", "artifacts"}
    return {str(path.relative_to(to / "artifacts")) for path in to.rglob("weights")}


def test_a_backup_omits_a_checkpoint_that_is_being_written(home: Path) -> None:
    assert backed_up(home, home.parent / "b") == {"jobs/checkpoint-1/weights", "jobs/checkpoint-2/weights"}


def test_a_backup_succeeds_if_a_checkpoint_is_deleted_meanwhile(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    link = os.link

    def once_all_is_gone(*args: Any, **options: Any) -> None:
        shutil.rmtree(home / "artifacts/jobs", ignore_errors=True)
        link(*args, **options)

    monkeypatch.setattr(os, "link", once_all_is_gone)
    assert backed_up(home, home.parent / "b") == set()


def test_a_backup_copies_files_if_hard_links_are_impossible(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def raise_cross_device(*_: object, **__: object) -> None:
        raise OSError(errno.EXDEV, "Invalid cross-device link")

    monkeypatch.setattr(os, "link", raise_cross_device)
    assert len(backed_up(home, home.parent / "b")) == 2


@pytest.mark.parametrize(
    ("settings", "to", "sentence"),
    [
        ({}, "home", "home, because it exists"),
        ({}, "home/artifacts/backup", "lies in the artifact store"),
        ({"artifacts": Path("/nowhere")}, "b", "artifact store /nowhere does not exist"),
        ({"database": "sqlite:////nowhere/footplate.db"}, "b", "database /nowhere/footplate.db"),
        ({"database": "postgresql+psycopg://a:secret@127.0.0.1:1/b"}, "b", "pg_dump"),
    ],
)
def test_a_failed_backup_names_the_reason_and_leaves_no_files(
    home: Path, settings: dict[str, Any], to: str, sentence: str
) -> None:
    before = sorted(home.parent.rglob("*"))

    with pytest.raises(CannotBackUp, match=sentence) as error:
        back_up(ServiceSettings(home=home, **settings), home.parent / to)

    assert error.value.hint
    assert "secret" not in str(error.value)
    assert sorted(home.parent.rglob("*")) == before


def test_backup_needs_a_folder_and_other_commands_refuse_a_folder(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, sentence in (
        (["backup"], "the following arguments are required: FOLDER"),
        (["all", "b"], "unrecognized arguments: b"),
    ):
        with pytest.raises(SystemExit):
            main(arguments)
        assert sentence in capsys.readouterr().err
