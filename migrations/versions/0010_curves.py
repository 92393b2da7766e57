"""Curves, kept in buckets as their points come in"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "curves",
        sa.Column("job_id", sa.String(), nullable=False),
        sa.Column("attempt", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("body", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("job_id", "attempt", "name", name="pk_curves"),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "curve_buckets",
        sa.Column("job_id", sa.String(), nullable=False),
        sa.Column("attempt", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("level", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("place", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("reaches", sa.BigInteger()),
        sa.Column("body", sa.Text(), nullable=False),
        sa.Column("nos", sa.Text()),
        sa.PrimaryKeyConstraint("job_id", "attempt", "name", "level", "place", name="pk_curve_buckets"),
        sqlite_with_rowid=False,
    )


def downgrade() -> None:
    op.drop_table("curve_buckets")
    op.drop_table("curves")
