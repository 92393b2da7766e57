"""Find fresh jobs by an index, however many wait"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

IS_FRESH = sa.text("state = 'queued' AND reason <> 'capacity' AND reason <> 'no_such_shape'")


def upgrade() -> None:
    op.create_index("ix_jobs_fresh", "jobs", ["id"], unique=False, sqlite_where=IS_FRESH, postgresql_where=IS_FRESH)


def downgrade() -> None:
    op.drop_index("ix_jobs_fresh", table_name="jobs")
