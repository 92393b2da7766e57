"""Jobs with the same needs wait in one line, and for one reason"""

from __future__ import annotations

from hashlib import blake2b

import sqlalchemy as sa
from alembic import op

revision = "0021"
down_revision = "0020"

IS_READY = sa.text("state = 'queued' AND not_before IS NULL")
IS_LATER = sa.text("state = 'queued' AND not_before IS NOT NULL")
TRIED: list[str | sa.TextClause] = [sa.text("priority DESC"), "queued_at", "id"]


def upgrade() -> None:
    op.add_column("jobs", sa.Column("shape", sa.String(), nullable=False, server_default=""))
    _name_shapes()
    op.create_table(
        "waits",
        sa.Column("shape", sa.String(), nullable=False),
        sa.Column("reason", sa.String(), nullable=False),
        sa.Column("message", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("shape", name="pk_waits"),
    )
    op.drop_index("ix_jobs_fresh", table_name="jobs")
    op.drop_index("ix_jobs_waiting", table_name="jobs")
    _index("ix_jobs_ready", [*TRIED, "project", "shape", "state", "not_before"], IS_READY)
    _index("ix_jobs_shape", ["shape", *TRIED, "state", "not_before"], IS_READY)
    _index("ix_jobs_later", ["not_before", "id"], IS_LATER)
    op.create_index("ix_attempts_ended", "attempts", ["ended_at"], unique=False)


def _name_shapes() -> None:
    """Writes the shape into all jobs in one pass, because no index finds the jobs of one shape."""
    conn = op.get_bind()
    shapes = [
        {"needs": needs, "shape": blake2b(needs.encode(), digest_size=12).hexdigest()}
        for needs in conn.execute(sa.text("SELECT DISTINCT needs FROM jobs")).scalars()
    ]
    if not shapes:
        return
    op.execute("CREATE TEMPORARY TABLE shape_names (needs TEXT, shape TEXT)")
    conn.execute(sa.text("INSERT INTO shape_names VALUES (:needs, :shape)"), shapes)
    op.execute("UPDATE jobs SET shape = shape_names.shape FROM shape_names WHERE shape_names.needs = jobs.needs")
    op.execute("DROP TABLE shape_names")


def _index(name: str, columns: list[str | sa.TextClause], where: sa.TextClause) -> None:
    op.create_index(name, "jobs", columns, unique=False, sqlite_where=where, postgresql_where=where)
