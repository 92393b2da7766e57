"""Keep where each node looks for the files that specs name"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0020"
down_revision = "0019"


def upgrade() -> None:
    op.add_column("nodes", sa.Column("roots", sa.Text()))
