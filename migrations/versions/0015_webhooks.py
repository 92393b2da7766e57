"""Webhooks, and what they are told"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0015"
down_revision = "0014"
branch_labels = None
depends_on = None

IS_PENDING = sa.text("due_at IS NOT NULL")


def upgrade() -> None:
    op.create_table(
        "webhooks",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("project", sa.String(), nullable=False),
        sa.Column("url", sa.Text(), nullable=False),
        sa.Column("secret", sa.String(), nullable=False),
        sa.Column("states", sa.Text()),
        sa.Column("tags", sa.Text()),
        sa.Column("description", sa.Text()),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("created_by", sa.String()),
        sa.Column("failing_since", sa.BigInteger()),
        sa.Column("disabled_at", sa.BigInteger()),
        sa.Column("disabled_why", sa.Text()),
        sa.PrimaryKeyConstraint("id", name="pk_webhooks"),
    )
    op.create_index("ix_webhooks_project", "webhooks", ["project", "id"])
    op.create_table(
        "deliveries",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("webhook_id", sa.String(), nullable=False),
        sa.Column("type", sa.String(), nullable=False),
        sa.Column("job_id", sa.String()),
        sa.Column("body", sa.Text(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("status", sa.String(), nullable=False),
        sa.Column("tries", sa.Integer(), nullable=False),
        sa.Column("due_at", sa.BigInteger()),
        sa.Column("tried_at", sa.BigInteger()),
        sa.Column("http_status", sa.Integer()),
        sa.Column("answer", sa.Text()),
        sa.Column("error", sa.Text()),
        sa.PrimaryKeyConstraint("id", name="pk_deliveries"),
    )
    op.create_index("ix_deliveries_webhook", "deliveries", ["webhook_id", "id"])
    op.create_index("ix_deliveries_due", "deliveries", ["due_at"], sqlite_where=IS_PENDING, postgresql_where=IS_PENDING)


def downgrade() -> None:
    op.drop_table("deliveries")
    op.drop_table("webhooks")
