"""Jobs start from other jobs' checkpoints, which stay for as long"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0014"
down_revision = "0013"
branch_labels = None
depends_on = None

STARTS_SOMEWHERE = sa.text("starts_from IS NOT NULL")


def upgrade() -> None:
    op.add_column("jobs", sa.Column("starts_from", sa.String()))
    op.create_index(
        "ix_jobs_starts_from",
        "jobs",
        ["starts_from"],
        sqlite_where=STARTS_SOMEWHERE,
        postgresql_where=STARTS_SOMEWHERE,
    )


def downgrade() -> None:
    op.drop_index("ix_jobs_starts_from", "jobs")
    op.drop_column("jobs", "starts_from")
