"""Uploaded files have a report of their rows"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0025"
down_revision = "0024"


def upgrade() -> None:
    op.add_column("files", sa.Column("rows", sa.BigInteger))
    op.add_column("files", sa.Column("bad_rows", sa.BigInteger))
    op.add_column("files", sa.Column("report", sa.Text))
