"""Keys of many people, and tickets for their browsers' sockets"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "keys",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("prefix", sa.String(), nullable=False),
        sa.Column("hash", sa.String(), nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("project", sa.String(), nullable=False),
        sa.Column("scopes", sa.Text(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("created_by", sa.String()),
        sa.Column("expires_at", sa.BigInteger()),
        sa.Column("last_used_at", sa.BigInteger()),
        sa.PrimaryKeyConstraint("id", name="pk_keys"),
    )
    op.create_index("ix_keys_prefix", "keys", ["prefix"], unique=True)
    op.create_table(
        "tickets",
        sa.Column("hash", sa.String(), nullable=False),
        sa.Column("key_id", sa.String()),
        sa.Column("project", sa.String(), nullable=False),
        sa.Column("expires_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("hash", name="pk_tickets"),
    )


def downgrade() -> None:
    op.drop_table("tickets")
    op.drop_index("ix_keys_prefix", "keys")
    op.drop_table("keys")
