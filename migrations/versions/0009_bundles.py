"""Bundles: users' own code"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "bundles",
        sa.Column("project", sa.String(), nullable=False),
        sa.Column("sha256", sa.String(), nullable=False),
        sa.Column("bytes", sa.BigInteger(), nullable=False),
        sa.Column("unpacked_bytes", sa.BigInteger(), nullable=False),
        sa.Column("files", sa.Text(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("project", "sha256", name="pk_bundles"),
    )
    op.create_index("ix_bundles_project", "bundles", ["project", "created_at", "sha256"])


def downgrade() -> None:
    op.drop_index("ix_bundles_project", "bundles")
    op.drop_table("bundles")
