"""Webhooks whose deliveries have the form of another API"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0026"
down_revision = "0025"


def upgrade() -> None:
    op.add_column("webhooks", sa.Column("format", sa.String(), nullable=False, server_default="footplate"))
