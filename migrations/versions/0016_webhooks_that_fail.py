"""Find what is due of each webhook by an index, let one that fails rest, and change its secret with an overlap"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0016"
down_revision = "0015"
branch_labels = None
depends_on = None

IS_PENDING = sa.text("due_at IS NOT NULL")


def upgrade() -> None:
    op.add_column("webhooks", sa.Column("rests_until", sa.BigInteger()))
    op.add_column("webhooks", sa.Column("old_secret", sa.String()))
    op.add_column("webhooks", sa.Column("old_until", sa.BigInteger()))
    op.create_index(
        "ix_deliveries_next",
        "deliveries",
        ["webhook_id", "due_at", "id"],
        sqlite_where=IS_PENDING,
        postgresql_where=IS_PENDING,
    )
    op.drop_index("ix_deliveries_due", "deliveries")


def downgrade() -> None:
    op.create_index("ix_deliveries_due", "deliveries", ["due_at"], sqlite_where=IS_PENDING, postgresql_where=IS_PENDING)
    op.drop_index("ix_deliveries_next", "deliveries")
    for column in ("rests_until", "old_secret", "old_until"):
        op.drop_column("webhooks", column)
