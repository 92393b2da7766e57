"""Keep why a node takes no work now, as it says itself"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("nodes", sa.Column("trouble", sa.Text()))


def downgrade() -> None:
    op.drop_column("nodes", "trouble")
