"""Remember deleted jobs until their files are gone"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "deleted_jobs",
        sa.Column("job_id", sa.String(), nullable=False),
        sa.Column("deleted_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("job_id", name=op.f("pk_deleted_jobs")),
    )


def downgrade() -> None:
    op.drop_table("deleted_jobs")
