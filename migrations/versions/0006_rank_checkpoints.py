"""Keep by what a checkpoint is ranked among those of its job"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("checkpoints", sa.Column("score", sa.Float()))


def downgrade() -> None:
    op.drop_column("checkpoints", "score")
