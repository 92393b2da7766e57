"""The first schema"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "attempts",
        sa.Column("job_id", sa.String(), nullable=False),
        sa.Column("attempt", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("fence", sa.Integer(), nullable=False),
        sa.Column("placed_at", sa.BigInteger(), nullable=False),
        sa.Column("claimed_at", sa.BigInteger(), nullable=True),
        sa.Column("running_at", sa.BigInteger(), nullable=True),
        sa.Column("ended_at", sa.BigInteger(), nullable=True),
        sa.Column("ending", sa.String(), nullable=True),
        sa.Column("reason", sa.String(), nullable=True),
        sa.Column("error", sa.Text(), nullable=True),
        sa.Column("result", sa.Text(), nullable=True),
        sa.Column("running_ms", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("job_id", "attempt", name=op.f("pk_attempts")),
    )
    op.create_table(
        "catalogues",
        sa.Column("hash", sa.String(), nullable=False),
        sa.Column("body", sa.Text(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("hash", name=op.f("pk_catalogues")),
    )
    op.create_table(
        "checkpoints",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("job_id", sa.String(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("step", sa.BigInteger(), nullable=False),
        sa.Column("no", sa.Integer(), nullable=False),
        sa.Column("path", sa.Text(), nullable=False),
        sa.Column("status", sa.String(), nullable=False),
        sa.Column("bytes", sa.BigInteger(), nullable=False),
        sa.Column("files", sa.Integer(), nullable=False),
        sa.Column("manifest_sha256", sa.String(), nullable=False),
        sa.Column("metrics", sa.Text(), nullable=False),
        sa.Column("is_best", sa.Boolean(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_checkpoints")),
    )
    op.create_index("ix_checkpoints_job", "checkpoints", ["job_id", "no"], unique=False)
    op.create_table(
        "dead_events",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("at", sa.BigInteger(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("raw", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_dead_events")),
    )
    op.create_table(
        "events",
        sa.Column("job_id", sa.String(), nullable=False),
        sa.Column("no", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("source", sa.Integer(), nullable=False),
        sa.Column("seq", sa.Integer(), nullable=False),
        sa.Column("rank", sa.Integer(), nullable=False),
        sa.Column("kind", sa.String(), nullable=False),
        sa.Column("at", sa.String(), nullable=False),
        sa.Column("step", sa.BigInteger(), nullable=True),
        sa.Column("epoch", sa.Float(), nullable=True),
        sa.Column("data", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("job_id", "no", name=op.f("pk_events")),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "idempotency",
        sa.Column("project", sa.String(), nullable=False),
        sa.Column("key", sa.String(), nullable=False),
        sa.Column("body_sha256", sa.String(), nullable=False),
        sa.Column("job_id", sa.String(), nullable=False),
        sa.Column("response", sa.Text(), nullable=True),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("project", "key", name=op.f("pk_idempotency")),
    )
    op.create_index("ix_idempotency_created", "idempotency", ["created_at"], unique=False)
    op.create_index("ix_idempotency_job", "idempotency", ["job_id"], unique=False)
    op.create_table(
        "job_tags",
        sa.Column("project", sa.String(), nullable=False),
        sa.Column("tag", sa.String(), nullable=False),
        sa.Column("job_id", sa.String(), nullable=False),
        sa.PrimaryKeyConstraint("project", "tag", "job_id", name=op.f("pk_job_tags")),
        sqlite_with_rowid=False,
    )
    op.create_index("ix_job_tags_job", "job_tags", ["job_id"], unique=False)
    op.create_table(
        "jobs",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("project", sa.String(), nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("tags", sa.Text(), nullable=False),
        sa.Column("job_metadata", sa.Text(), nullable=False),
        sa.Column("priority", sa.Integer(), nullable=False),
        sa.Column("state", sa.String(), nullable=False),
        sa.Column("reason", sa.String(), nullable=False),
        sa.Column("message", sa.Text(), nullable=True),
        sa.Column("desired", sa.String(), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("fence", sa.Integer(), nullable=False),
        sa.Column("stop_mode", sa.String(), nullable=True),
        sa.Column("stop_deadline", sa.BigInteger(), nullable=True),
        sa.Column("not_before", sa.BigInteger(), nullable=True),
        sa.Column("spent", sa.Integer(), nullable=False),
        sa.Column("stuck", sa.Integer(), nullable=False),
        sa.Column("running_ms", sa.BigInteger(), nullable=False),
        sa.Column("time_limit_ms", sa.BigInteger(), nullable=True),
        sa.Column("needs", sa.Text(), nullable=False),
        sa.Column("last_no", sa.Integer(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("updated_at", sa.BigInteger(), nullable=False),
        sa.Column("queued_at", sa.BigInteger(), nullable=False),
        sa.Column("started_at", sa.BigInteger(), nullable=True),
        sa.Column("finished_at", sa.BigInteger(), nullable=True),
        sa.Column("progress", sa.Text(), nullable=True),
        sa.Column("metrics", sa.Text(), nullable=True),
        sa.Column("result", sa.Text(), nullable=True),
        sa.Column("error", sa.Text(), nullable=True),
        sa.Column("outputs", sa.Text(), nullable=True),
        sa.Column("spec", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_jobs")),
    )
    op.create_index(
        "ix_jobs_active",
        "jobs",
        ["id"],
        unique=False,
        sqlite_where=sa.text("state IN ('starting', 'running', 'stopping')"),
        postgresql_where=sa.text("state IN ('starting', 'running', 'stopping')"),
    )
    op.create_index("ix_jobs_project", "jobs", ["project", "id"], unique=False)
    op.create_index("ix_jobs_project_name", "jobs", ["project", "name", "id"], unique=False)
    op.create_index("ix_jobs_project_priority", "jobs", ["project", "priority", "id"], unique=False)
    op.create_index("ix_jobs_project_state", "jobs", ["project", "state", "id"], unique=False)
    op.create_index(
        "ix_jobs_waiting",
        "jobs",
        [sa.literal_column("priority DESC"), "id"],
        unique=False,
        sqlite_where=sa.text("state = 'queued'"),
        postgresql_where=sa.text("state = 'queued'"),
    )
    op.create_table(
        "nodes",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("boot", sa.String(), nullable=False),
        sa.Column("previous_boot", sa.String(), nullable=True),
        sa.Column("pool", sa.String(), nullable=False),
        sa.Column("slots", sa.Integer(), nullable=False),
        sa.Column("gpus", sa.Text(), nullable=False),
        sa.Column("lost", sa.Boolean(), nullable=False),
        sa.Column("draining", sa.Boolean(), nullable=False),
        sa.Column("drain_requested", sa.Boolean(), nullable=False),
        sa.Column("consuming", sa.Boolean(), nullable=False),
        sa.Column("store_ok", sa.Boolean(), nullable=False),
        sa.Column("refused", sa.Text(), nullable=True),
        sa.Column("protocol", sa.Integer(), nullable=False),
        sa.Column("catalogue_hash", sa.String(), nullable=True),
        sa.Column("versions", sa.Text(), nullable=False),
        sa.Column("first_seen_at", sa.BigInteger(), nullable=False),
        sa.Column("seen_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_nodes")),
    )
    op.create_table(
        "sources",
        sa.Column("job_id", sa.String(), nullable=False),
        sa.Column("attempt", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("source", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("node", sa.String(), nullable=False),
        sa.Column("boot", sa.String(), nullable=False),
        sa.Column("slots", sa.Integer(), nullable=False),
        sa.Column("gpus", sa.Text(), nullable=False),
        sa.Column("claim", sa.String(), nullable=True),
        sa.Column("rung_at", sa.BigInteger(), nullable=True),
        sa.Column("claimed_at", sa.BigInteger(), nullable=True),
        sa.Column("running_at", sa.BigInteger(), nullable=True),
        sa.Column("watermark", sa.Integer(), nullable=False),
        sa.Column("ended_at", sa.BigInteger(), nullable=True),
        sa.Column("done", sa.Text(), nullable=True),
        sa.PrimaryKeyConstraint("job_id", "attempt", "source", name=op.f("pk_sources")),
    )
    op.create_index(
        "ix_sources_open",
        "sources",
        ["node"],
        unique=False,
        sqlite_where=sa.text("ended_at IS NULL"),
        postgresql_where=sa.text("ended_at IS NULL"),
    )


def downgrade() -> None:
    for table in (
        "sources",
        "nodes",
        "jobs",
        "job_tags",
        "idempotency",
        "events",
        "dead_events",
        "checkpoints",
        "catalogues",
        "attempts",
    ):
        op.drop_table(table)
