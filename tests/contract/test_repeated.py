from __future__ import annotations

import logging
import time

import pytest

from footplate.contract.repeated_errors import ErrorLog


class Clock:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        monkeypatch.setattr(time, "monotonic", lambda: self.now)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


@pytest.fixture
def ingest(caplog: pytest.LogCaptureFixture) -> ErrorLog:
    caplog.set_level(logging.INFO)
    return ErrorLog(logging.getLogger("footplate.test"), "ingest")


def test_an_outage_of_eight_hours_is_logged_in_a_few_lines(
    ingest: ErrorLog, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(8 * 3600):
        ingest.failed("waits for the database: %s", "connection refused")
        clock.now += 1

    assert caplog.messages[:3] == [
        "ingest waits for the database: connection refused",
        "ingest still waits for the database: connection refused (for 60 s, 61 times)",
        "ingest still waits for the database: connection refused (for 180 s, 181 times)",
    ]
    assert len(caplog.messages) < 16


def test_a_different_error_is_logged_at_once_and_recovery_only_when_stable(
    ingest: ErrorLog, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(3):
        ingest.failed("waits for the database: %s", "locked")
        clock.now += 1
        ingest.failed("waits for Redis: %s", "refused")
        ingest.went_well()
        clock.now += 1
    clock.now += 10
    ingest.went_well()
    ingest.went_well()

    assert caplog.messages == [
        "ingest waits for the database: locked",
        "ingest waits for Redis: refused",
        "ingest works again, after 5 s",
    ]


def test_an_error_that_returns_after_recovery_is_logged_again(
    ingest: ErrorLog, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(2):
        ingest.failed("waits for the lock")
        clock.now += 10
        ingest.went_well()

    assert caplog.messages == ["ingest waits for the lock", "ingest works again, after 0 s"] * 2


def test_only_the_first_of_many_equal_errors_is_logged_with_a_traceback(
    ingest: ErrorLog, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(100):
        try:
            raise ValueError("odd")
        except ValueError as error:
            ingest.failed("failed, and is tried again: %r", error, trace=True)
        clock.now += 1

    assert [bool(record.exc_info) for record in caplog.records] == [True, False]
