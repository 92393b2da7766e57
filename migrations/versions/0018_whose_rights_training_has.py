"""Why a node's training has root's rights, as it says itself"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0018"
down_revision = "0017"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("nodes", sa.Column("exposed", sa.Text()))


def downgrade() -> None:
    op.drop_column("nodes", "exposed")
