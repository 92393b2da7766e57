"""Adds a column to the curves: the last step whose points count. NULL means that all points count."""

from __future__ import annotations

from alembic import op

revision = "0030"
down_revision = "0029"


def upgrade() -> None:
    op.execute("ALTER TABLE curves ADD COLUMN until BIGINT")
