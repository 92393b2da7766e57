"""Uploaded files"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "files",
        sa.Column("project", sa.String(), nullable=False),
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("sha256", sa.String(), nullable=False),
        sa.Column("bytes", sa.BigInteger(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("kind", sa.String(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("created_by", sa.String()),
        sa.PrimaryKeyConstraint("project", "id", name="pk_files"),
    )
    op.create_index("ix_files_project", "files", ["project", "created_at", "id"])


def downgrade() -> None:
    op.drop_index("ix_files_project", "files")
    op.drop_table("files")
