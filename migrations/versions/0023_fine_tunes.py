"""Keep what a request of OpenAI's fine-tuning API named"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0023"
down_revision = "0022"


def upgrade() -> None:
    op.add_column("jobs", sa.Column("fine_tune", sa.Text()))
