"""Tests reports of a run elsewhere that reach two API processes at the same time."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from sqlalchemy import Connection, text

from footplate.contract.ids import JobId
from service.events.external import Report, report
from service.settings import ServiceSettings
from service.store.database import Database
from service.store.times import now_ms

WAITING = text("SELECT count(*) FROM pg_locks WHERE NOT granted")


def reported(conn: Connection, news: Report) -> JobId:
    return report(conn, "default", "nightly", news, now_ms(), ServiceSettings()).id


def waits_or_is_done(conn: Connection, other: Future[Any]) -> bool:
    """Returns True if the other transaction has ended or waits for this transaction.

    On SQLite the other transaction cannot begin, so there is nothing to wait for.
    """
    return other.done() or conn.dialect.name == "sqlite" or conn.execute(WAITING).scalar_one() > 0


def report_in_two_transactions(migrated_url: str, first: Report, second: Report) -> list[JobId]:
    """Returns the jobs of two reports. The second transaction begins before the first transaction is committed."""
    other_process = Database(migrated_url, readers=1, writers=1)
    this_process = Database(migrated_url, readers=1, writers=1)

    with ThreadPoolExecutor(1) as thread:

        def write(conn: Connection) -> tuple[JobId, Future[JobId]]:
            job = reported(conn, first)
            future = thread.submit(other_process.write_now, lambda other: reported(other, second))
            while not waits_or_is_done(conn, future):
                pass
            return job, future

        job, future = this_process.write_now(write)
        jobs = [job, future.result()]
    for database in (this_process, other_process):
        database.close()
    return jobs


def test_two_concurrent_first_reports_of_an_external_run_make_one_job(migrated_url: str) -> None:
    first, second = report_in_two_transactions(migrated_url, Report(percent=0), Report(percent=1, step=1))

    assert first == second


def test_two_concurrent_reports_of_a_restarted_external_run_make_one_job(migrated_url: str, db: Database) -> None:
    before = db.write_now(lambda conn: reported(conn, Report(percent=10, step=1)))

    first, second = report_in_two_transactions(migrated_url, Report(percent=0), Report(percent=0))

    assert first == second != before
