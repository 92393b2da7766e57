"""Renames the two counts of failed attempts in `jobs`"""

from __future__ import annotations

from alembic import op

revision = "0029"
down_revision = "0028"


def upgrade() -> None:
    op.execute("ALTER TABLE jobs RENAME COLUMN spent TO failed_attempts")
    op.execute("ALTER TABLE jobs RENAME COLUMN stuck TO failed_without_checkpoint")
