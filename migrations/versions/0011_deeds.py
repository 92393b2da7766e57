"""Deeds: what users ask of running loops"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None

_OPEN = sa.text("step IS NULL")


def upgrade() -> None:
    op.create_table(
        "deeds",
        sa.Column("job_id", sa.String(), nullable=False),
        sa.Column("no", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("body", sa.Text(), nullable=False),
        sa.Column("step", sa.BigInteger()),
        sa.PrimaryKeyConstraint("job_id", "no", name="pk_deeds"),
    )
    op.create_index("ix_deeds_open", "deeds", ["job_id"], sqlite_where=_OPEN, postgresql_where=_OPEN)


def downgrade() -> None:
    op.drop_index("ix_deeds_open", "deeds")
    op.drop_table("deeds")
