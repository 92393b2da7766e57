"""Keep the warnings that a job's submission was answered with"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0019"
down_revision = "0018"


def upgrade() -> None:
    op.add_column("jobs", sa.Column("warnings", sa.Text()))
