"""Tests reports of a run elsewhere that reach two API processes at the same time."""

from __future__ import annotations

from sqlalchemy import Connection

from footplate.contract.ids import JobId
from service.events.external import Report, report
from service.settings import ServiceSettings
from service.store.database import Database
from service.store.times import now_ms
from tests.conformance.concurrent import in_two_transactions


def reported(conn: Connection, news: Report) -> JobId:
    return report(conn, "default", "nightly", news, now_ms(), ServiceSettings()).id


def report_in_two_transactions(migrated_url: str, first: Report, second: Report) -> list[JobId]:
    return in_two_transactions(migrated_url, lambda conn: reported(conn, first), lambda conn: reported(conn, second))


def test_two_concurrent_first_reports_of_an_external_run_make_one_job(migrated_url: str) -> None:
    first, second = report_in_two_transactions(migrated_url, Report(percent=0), Report(percent=1, step=1))

    assert first == second


def test_two_concurrent_reports_of_a_restarted_external_run_make_one_job(migrated_url: str, db: Database) -> None:
    before = db.write_now(lambda conn: reported(conn, Report(percent=10, step=1)))

    first, second = report_in_two_transactions(migrated_url, Report(percent=0), Report(percent=0))

    assert first == second != before
