"""Tests how a supervisor judges the ranks of an attempt. The test plays the warm parent and the ranks."""

from __future__ import annotations

import json
import mmap
import os
import selectors
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from footplate.contract.host import launch
from footplate.contract.host.launch import FD_NAMES, IGNORES_STOPS_AT, TERMINATED_AT, Exited, Order, Started
from footplate.contract.ids import new_claim_id, new_job_id
from footplate.contract.lifecycle import StopMode
from footplate.contract.messages import Stop
from worker.attempt import training_processes
from worker.attempt.training_processes import Stopping, Training


class Stage:
    """Plays the ranks and the warm parent of a supervisor. `turn` lets the supervisor handle what they have sent."""

    def __init__(self, folder: Path, world: int, first: int = 0) -> None:
        """Starts `world` ranks on this node. The number of the first rank is `first`."""
        self.events: list[dict[str, Any]] = []
        self._selector = selectors.DefaultSelector()
        self._listening = launch.listen(folder)
        self.training = Training(self._selector, self.events.extend)
        self.training.start(folder, [_order(folder, first + rank, world) for rank in range(world)])
        self.warm, _ = self._listening.accept()
        self.fds = [socket.recv_fds(self.warm, 4096, len(FD_NAMES))[1] for _ in range(world)]
        for rank in range(world):
            self.warm.send(Started(rank=first + rank, pid=2**22 + rank).model_dump_json().encode())
        self.turn()

    def send(self, rank: int, kind: str, **data: Any) -> None:
        os.write(self.fds[rank][1], json.dumps({"kind": kind, "data": data}).encode() + b"\n")
        self.turn()

    def prints(self, rank: int, text: str) -> None:
        os.write(self.fds[rank][3], text.encode() + b"\n")
        self.turn()

    def fails(self, rank: int, message: str, *, is_follow_up: bool = False) -> None:
        error = {"code": "error", "message": message, "rank": rank}
        self.send(rank, launch.OUTCOME, ending="failed", reason="error", error=error, is_follow_up=is_follow_up)

    def finishes(self, rank: int) -> None:
        self.send(rank, launch.OUTCOME, ending="finished", reason="completed")

    def report_exit(self, rank: int, code: int = 0) -> None:
        self.warm.send(Exited(rank=rank, code=code, peak_rss_mb=1.0).model_dump_json().encode())

    def exits(self, rank: int, code: int = 0) -> None:
        self.report_exit(rank, code)
        self.closes(rank)

    def closes(self, rank: int) -> None:
        while self.fds[rank]:
            os.close(self.fds[rank].pop())
        self.turn()

    def turn(self) -> None:
        while ready := self._selector.select(0):
            for key, _ in ready:
                key.data()
        self.training.check_ranks()

    def asked_to_kill(self) -> bool:
        self.warm.setblocking(False)
        try:
            return json.loads(self.warm.recv(4096))["signal"] == signal.SIGKILL
        except BlockingIOError:
            return False

    def close(self) -> None:
        for rank in range(len(self.fds)):
            while self.fds[rank]:
                os.close(self.fds[rank].pop())
        self.training.close()
        self.warm.close()
        self._listening.close()
        self._selector.close()


def _order(folder: Path, rank: int, world: int) -> Order:
    return Order(
        job=new_job_id(), attempt=1, fence=1, claim=new_claim_id(), rank=rank, world=world, spec={}, gpus=[],
        checkpoints=[], artifacts=folder, data=folder, models=folder, threads=1,
    )  # fmt: skip


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    new_stage = Stage(tmp_path, 3)
    yield new_stage
    new_stage.close()


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training_processes, "OTHER_REPORTS_SECONDS", -1.0)


def test_every_rank_reports_under_its_number_and_the_first_reports_for_all(stage: Stage) -> None:
    for rank in range(3):
        stage.prints(rank, f"hello {rank}")
        stage.send(rank, "log", loss=float(rank))
        stage.send(rank, "checkpoint", status="committed")

    assert [(message["rank"], message["kind"]) for message in stage.events] == [
        (0, "line"), (0, "log"), (0, "checkpoint"), (1, "line"), (2, "line"),
    ]  # fmt: skip


def test_training_can_write_only_its_fork_time_into_the_log_of_the_node(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")

    for forked_ms in ("3\n2026-01-01 CRITICAL forged\x1b[2J", [1], float("nan"), 12.34, 56.78):
        stage.send(0, launch.TICK, forked_ms=forked_ms)

    assert [record.getMessage() for record in caplog.records] == [
        f"training runs as process {2**22}, forked in 12.3 ms"
    ]


def test_an_attempt_is_running_once_all_its_ranks_are_running(stage: Stage) -> None:
    for rank in (2, 0, 0):
        stage.send(rank, "state", state="running")
    assert stage.events == []

    stage.send(1, "state", state="running")
    stage.send(1, "state", state="running")

    assert [message["kind"] for message in stage.events] == ["state"]


def test_ranks_of_later_nodes_are_numbered_after_the_ranks_of_earlier_nodes(tmp_path: Path) -> None:
    stage = Stage(tmp_path, 2, first=2)
    try:
        stage.prints(1, "hello")
        stage.send(0, "log", loss=1.0)
        for rank in (0, 1):
            stage.send(rank, "state", state="running")

        assert [(message["rank"], message["kind"]) for message in stage.events] == [(3, "line"), (0, "state")]
        assert stage.training.has_started
    finally:
        stage.close()


def test_a_stop_reaches_every_rank(stage: Stage) -> None:
    stage.training.request_stop(StopMode.CHECKPOINT)

    for fds in stage.fds:
        with mmap.mmap(fds[2], mmap.PAGESIZE) as page:
            assert page[0] == launch.STOP_BYTES[StopMode.CHECKPOINT]


@pytest.mark.usefixtures("at_once")
def test_a_rank_that_dies_silently_is_the_reason_and_the_others_are_killed(stage: Stage) -> None:
    stage.fails(0, "Connection closed by peer", is_follow_up=True)
    stage.exits(2, -9)
    stage.turn()

    assert stage.training.failed is stage.training.ranks[2]
    assert stage.asked_to_kill()
    stage.exits(0, -9)
    stage.exits(1, -9)
    assert stage.training.failed is stage.training.ranks[2]
    assert stage.training.is_gone


@pytest.mark.usefixtures("at_once")
def test_a_rank_that_raises_is_the_reason_and_not_ranks_that_lost_its_connection(stage: Stage) -> None:
    stage.fails(2, "Connection closed by peer", is_follow_up=True)
    stage.fails(1, "ValueError: a bad sample")
    assert not stage.asked_to_kill()

    stage.exits(1)
    stage.turn()

    assert stage.training.failed is stage.training.ranks[1]
    assert stage.asked_to_kill()


def test_of_several_equal_failures_the_lowest_rank_is_reported(stage: Stage) -> None:
    for rank in (2, 0, 1):
        stage.fails(rank, f"no such model, says {rank}")

    assert stage.training.failed is stage.training.ranks[0]


@pytest.mark.usefixtures("at_once")
def test_an_exit_that_is_noticed_before_the_last_report_is_not_a_crash(stage: Stage) -> None:
    stage.report_exit(1)
    stage.turn()
    assert stage.training.failed is None

    stage.finishes(1)
    stage.closes(1)

    assert stage.training.failed is None
    assert not stage.asked_to_kill()


def test_failures_after_the_first_rank_has_finished_do_not_count(stage: Stage) -> None:
    stage.finishes(0)
    stage.exits(1, -6)

    assert stage.training.failed is None


@pytest.mark.parametrize("ignores_stops", [False, True])
def test_a_stop_begins_with_sigterm_if_nothing_reads_the_stop_byte(stage: Stage, ignores_stops: bool) -> None:
    stage.training._stop_byte[IGNORES_STOPS_AT] = ignores_stops
    stopping = Stopping(stage.training)

    stopping.follow(Stop(because="pause", mode=StopMode.CHECKPOINT, within_seconds=60))
    stopping.send_due_signals(time.monotonic())

    assert stage.training._stop_byte[TERMINATED_AT] == ignores_stops
    assert stopping.due_in(100) > 40, "the rest of the time is for saving"


def test_errors_of_ranks_that_are_being_killed_are_not_the_reason(stage: Stage) -> None:
    stage.training.signal(signal.SIGTERM)
    stage.fails(0, "Connection closed by peer")
    stage.exits(1, -15)

    assert stage.training.failed is None
    assert stage.training._stop_byte[TERMINATED_AT] == 1, "ranks must be able to see that they must end"
