"""Pinned checkpoints, and where they lay before"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("checkpoints", sa.Column("pinned_from", sa.Text()))


def downgrade() -> None:
    op.drop_column("checkpoints", "pinned_from")
