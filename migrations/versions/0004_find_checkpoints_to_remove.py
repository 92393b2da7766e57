"""Find the checkpoints whose folders are to be removed by an index"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

IS_DELETING = sa.text("status = 'deleting'")


def upgrade() -> None:
    op.create_index(
        "ix_checkpoints_deleting",
        "checkpoints",
        ["job_id"],
        unique=False,
        sqlite_where=IS_DELETING,
        postgresql_where=IS_DELETING,
    )


def downgrade() -> None:
    op.drop_index("ix_checkpoints_deleting", table_name="checkpoints")
