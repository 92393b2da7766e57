"""Switches of the protections around SQL."""

from __future__ import annotations

from typing import Any

from tests.faults.off import switch


@switch("a driver's error means that SQL is unavailable", module="service.store.database")
def let_drivers_errors_through(database: Any) -> None:
    """Treats each error of the database driver as an error in our query."""
    database.is_unavailable = lambda error: False


@switch("the schema is checked before it is used", module="service.store.schema")
def use_any_schema(schema: Any) -> None:
    schema.require_current = lambda conn: None
