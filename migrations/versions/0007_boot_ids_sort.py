"""Boot ids sort: nobody needs the one before"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.drop_column("nodes", "previous_boot")


def downgrade() -> None:
    op.add_column("nodes", sa.Column("previous_boot", sa.String()))
