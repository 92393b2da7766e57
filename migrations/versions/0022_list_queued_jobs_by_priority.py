"""The list of queued jobs, sorted by priority, has an index of its own"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0022"
down_revision = "0021"

IS_QUEUED = sa.text("state = 'queued'")


def upgrade() -> None:
    op.create_index(
        "ix_jobs_queued",
        "jobs",
        ["project", "priority", "id"],
        unique=False,
        sqlite_where=IS_QUEUED,
        postgresql_where=IS_QUEUED,
    )
