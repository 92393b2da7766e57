"""Where the ranks of a job on several nodes meet"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0017"
down_revision = "0016"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("sources", sa.Column("meets_at", sa.String()))


def downgrade() -> None:
    op.drop_column("sources", "meets_at")
