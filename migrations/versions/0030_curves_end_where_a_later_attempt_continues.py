"""Adds the last step that counts to each curve. None means that all points count."""

from __future__ import annotations

from alembic import op

revision = "0030"
down_revision = "0029"


def upgrade() -> None:
    op.execute("ALTER TABLE curves ADD COLUMN until BIGINT")
