"""The time at which a start message was sent has the name of what it is"""

from __future__ import annotations

from alembic import op

revision = "0027"
down_revision = "0026"


def upgrade() -> None:
    op.execute("ALTER TABLE sources RENAME COLUMN rung_at TO sent_at")
