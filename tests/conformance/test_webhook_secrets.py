"""Tests two rotations of a webhook's secret at the same time."""

from __future__ import annotations

from sqlalchemy import Connection

from footplate.contract.ids import new_webhook_id
from service.store import webhooks
from service.store.database import Database
from service.store.row_types import WebhookRow
from tests.conformance.concurrent import in_two_transactions


def test_two_concurrent_rotations_keep_the_secret_of_the_first_one(migrated_url: str, db: Database) -> None:
    row = WebhookRow(new_webhook_id(), "default", "https://x/", "old", None, None, None, 1, None, None, None, None)
    db.write_now(lambda conn: webhooks.insert_webhook(conn, row, 1))

    def rotated(conn: Connection, secret: str) -> WebhookRow:
        return webhooks.rotate(conn, "default", row.id, secret, 1000)

    in_two_transactions(migrated_url, lambda conn: rotated(conn, "first"), lambda conn: rotated(conn, "second"))

    after = db.read_now(lambda conn: webhooks.get(conn, "default", row.id))
    assert (after.secret, after.old_secret) == ("second", "first")
