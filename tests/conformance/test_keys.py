"""Tests the SQL statements about API keys and tickets, on both databases."""

from __future__ import annotations

from dataclasses import replace

import pytest
from sqlalchemy.exc import IntegrityError

from footplate.contract.errors import NotFound
from footplate.contract.ids import new_key_id
from service.store import keys
from service.store.row_types import KeyRow, TicketRow
from tests.conformance.acting import Stage


def a_key(stage: Stage, project: str = "vision", prefix: str = "fpk_1") -> KeyRow:
    row = KeyRow(new_key_id(), prefix, keys.digest(prefix), "mine", project, '["read"]', stage.now, "you", None, None)
    stage.write(lambda conn: keys.insert_key(conn, row))
    return row


def test_a_key_read_from_the_database_equals_the_inserted_key(stage: Stage) -> None:
    row = a_key(stage)

    assert stage.read(keys.all_keys) == [row]


def test_two_keys_never_share_a_prefix(stage: Stage) -> None:
    a_key(stage)

    with pytest.raises(IntegrityError):
        a_key(stage, project="speech")


def test_a_key_is_deleted_by_its_project_or_by_the_operator(stage: Stage) -> None:
    first, second = a_key(stage), a_key(stage, prefix="fpk_2")

    with pytest.raises(NotFound):
        stage.write(lambda conn: keys.delete_key(conn, first.id, "speech"))
    assert stage.write(lambda conn: keys.delete_key(conn, first.id, "vision")) == first
    assert stage.write(lambda conn: keys.delete_key(conn, second.id, None)) == second
    assert stage.read(keys.all_keys) == []
    with pytest.raises(NotFound):
        stage.write(lambda conn: keys.delete_key(conn, first.id, None))


def test_the_last_use_is_stored_only_for_used_keys_that_still_exist(stage: Stage) -> None:
    used, unused = a_key(stage), a_key(stage, prefix="fpk_2")

    stage.write(lambda conn: keys.mark_used(conn, {used.id, new_key_id()}, stage.now))

    assert stage.read(keys.all_keys) == [replace(used, last_used_at=stage.now), unused]


def test_a_ticket_is_accepted_once_before_it_expires_and_then_deleted(stage: Stage) -> None:
    good, old, forgotten = [TicketRow(name, None, "vision", stage.now + 1000) for name in ("good", "old", "forgotten")]
    for ticket in (good, old, forgotten):
        stage.write(lambda conn, row=ticket: keys.insert_ticket(conn, row, stage.now))

    def take(name: str) -> TicketRow | None:
        return stage.write(lambda conn: keys.take_ticket(conn, name, stage.now))

    assert (take("good"), take("good")) == (good, None)
    stage.later(2)
    assert take("old") is None
    stage.write(lambda conn: keys.insert_ticket(conn, replace(good, expires_at=stage.now + 1), stage.now))
    stage.now -= 2000
    assert take("forgotten") is None
