"""The schema, from which new databases are made. `migrations/` upgrades older ones; a test compares the results.

A table has the fields of its row (`row_types.py`) as columns. Only tables without a row name their columns here.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from sqlalchemy import BigInteger, Column, Index, Integer, MetaData, String, Table, Text, TextClause, text

from service.store import mapping, row_types

metadata = MetaData(
    naming_convention={"ix": "ix_%(table_name)s_%(column_0_N_name)s", "pk": "pk_%(table_name)s"},
)
table_of = partial(mapping.table_of, metadata)


def _partial_index(where: TextClause, name: str, *columns: Any) -> None:
    """Adds an index of the rows that match a condition, on both databases."""
    Index(name, *columns, sqlite_where=where, postgresql_where=where)


jobs = table_of(
    "jobs",
    row_types.JobRow,
    ("id",),
    # A job without a name has an empty one, because lists are sorted by name, and a cursor cannot compare NULL.
    Column("name", String, nullable=False),
    # The name of the job's needs. Jobs with equal needs have equal shapes. Written together with `needs`.
    Column("shape", String, nullable=False, server_default=""),
)
# An id is a UUIDv7, so ids are in the order of creation. Every list is sorted by (…, id), which is also its cursor.
Index("ix_jobs_project", jobs.c.project, jobs.c.id)
Index("ix_jobs_project_state", jobs.c.project, jobs.c.state, jobs.c.id)
Index("ix_jobs_project_name", jobs.c.project, jobs.c.name, jobs.c.id)
Index("ix_jobs_project_priority", jobs.c.project, jobs.c.priority, jobs.c.id)
# Literals, word for word as in the statements, because SQLite uses a partial index only for the same condition.
IS_QUEUED = text("state = 'queued'")
IS_READY = text("state = 'queued' AND not_before IS NULL")
"""A queued job that may start now."""
IS_DELAYED = text("state = 'queued' AND not_before IS NOT NULL")
"""A queued job that waits until the time `not_before`. Control then makes it ready."""
IS_ACTIVE = text("state IN ('starting', 'running', 'stopping')")
# Queued jobs in the order of a list by priority. Other jobs often have other priorities, so an index over all states
# would read many of them on the way.
_partial_index(IS_QUEUED, "ix_jobs_queued", jobs.c.project, jobs.c.priority, jobs.c.id)
# The order in which placement tries jobs. One index is over all jobs, with the columns that GET /queue counts. The
# other is over the jobs of each shape. Both contain the columns of their conditions, because SQLite would otherwise
# read the row of the job for each entry.
TRIED = (jobs.c.priority.desc(), jobs.c.queued_at, jobs.c.id)
"""The order in which placement tries jobs. `QueuePosition`, `_HEADS` and `behind` in queue.py contain it, too."""
_OF_ALL = (*TRIED, jobs.c.project, jobs.c.shape, jobs.c.state, jobs.c.not_before)
_OF_SHAPE = (jobs.c.shape, *TRIED, jobs.c.state, jobs.c.not_before)
_partial_index(IS_READY, "ix_jobs_ready", *_OF_ALL)
_partial_index(IS_READY, "ix_jobs_shape", *_OF_SHAPE)
_partial_index(IS_DELAYED, "ix_jobs_later", jobs.c.not_before, jobs.c.id)
STARTS_SOMEWHERE = text("starts_from IS NOT NULL")
_partial_index(STARTS_SOMEWHERE, "ix_jobs_starts_from", jobs.c.starts_from)
_partial_index(IS_ACTIVE, "ix_jobs_active", jobs.c.id)

job_tags = Table(
    "job_tags",
    metadata,
    Column("project", String, primary_key=True),
    Column("tag", String, primary_key=True),
    Column("job_id", String, primary_key=True),
    sqlite_with_rowid=False,
)
Index("ix_job_tags_job", job_tags.c.job_id)

attempts = table_of("attempts", row_types.AttemptRow, ("job_id", "attempt"))

Index("ix_attempts_ended", attempts.c.ended_at)

# The reason for which the ready jobs of a shape wait, as control last computed it. One row stands for all these jobs.
waits = Table(
    "waits",
    metadata,
    Column("shape", String, primary_key=True),
    Column("reason", String, nullable=False),
    Column("message", Text, nullable=False),
)

sources = table_of("sources", row_types.SourceRow, ("job_id", "attempt", "source"))
_OPEN = text("ended_at IS NULL")
_partial_index(_OPEN, "ix_sources_open", sources.c.node)

# The primary key is the reader's cursor. (job, attempt, source, seq) needs no index of its own. The source's watermark,
# read and written under the job's lock, already admits each seq once.
events = table_of("events", row_types.EventRow, ("job_id", "no"), sqlite_with_rowid=False)

# A curve is one metric of one attempt. It is stored as a pyramid of buckets (service/events/curves.py), so that drawing
# ten million points reads some hundreds of rows. This table has a row for each curve, with its summary and its buckets
# that are not full. The points are in the events.
curves = table_of("curves", row_types.CurveRow, ("job_id", "attempt", "name"), sqlite_with_rowid=False)

curve_buckets = table_of(
    "curve_buckets", row_types.BucketRow, ("job_id", "attempt", "name", "level", "place"), sqlite_with_rowid=False
)

# The commands that users sent to running jobs (POST /jobs/{job}/do), each with the number of its event. `step` is the
# step after which training carried the command out, or NULL before that.
live_commands = Table(
    "live_commands",
    metadata,
    Column("job_id", String, primary_key=True),
    Column("no", Integer, primary_key=True, autoincrement=False),
    Column("body", Text, nullable=False),
    Column("step", BigInteger),
)
IS_OPEN_COMMAND = text("step IS NULL")
_partial_index(IS_OPEN_COMMAND, "ix_live_commands_open", live_commands.c.job_id)

dead_events = table_of("dead_events", row_types.DeadEventRow, ("id",))

checkpoints = table_of("checkpoints", row_types.CheckpointRow, ("id",))
Index("ix_checkpoints_job", checkpoints.c.job_id, checkpoints.c.no)
IS_DELETING = text("status = 'deleting'")
_partial_index(IS_DELETING, "ix_checkpoints_deleting", checkpoints.c.job_id)

# Deleted jobs whose files may still exist. A job's rows are deleted at once and its files later, and a worker that was
# frozen may write files of the job again.
deleted_jobs = Table(
    "deleted_jobs",
    metadata,
    Column("job_id", String, primary_key=True),
    Column("deleted_at", BigInteger, nullable=False),
)

nodes = table_of("nodes", row_types.NodeRow, ("id",))

catalogues = Table(
    "catalogues",
    metadata,
    Column("hash", String, primary_key=True),
    Column("body", Text, nullable=False),
    Column("created_at", BigInteger, nullable=False),
)

# Each row belongs to one project. Equal bundles of two projects are two rows, and one file in the artifact store.
bundles = table_of("bundles", row_types.BundleRow, ("project", "sha256"))
Index("ix_bundles_project", bundles.c.project, bundles.c.created_at, bundles.c.sha256)

# As with bundles, each row belongs to one project. Two projects that upload equal bytes share the stored content.
files = table_of("files", row_types.FileRow, ("project", "id"))
Index("ix_files_project", files.c.project, files.c.created_at, files.c.id)

# Uploads that OpenAI's clients send in parts. A part is a file of the artifact store until the upload is complete or a
# day old.
uploads = table_of("uploads", row_types.UploadRow, ("id",))
Index("ix_uploads_created", uploads.c.created_at)

upload_parts = table_of("upload_parts", row_types.UploadPartRow, ("id",))
Index("ix_upload_parts_upload", upload_parts.c.upload_id)

idempotency = table_of("idempotency", row_types.IdempotencyRow, ("project", "key"))
Index("ix_idempotency_job", idempotency.c.job_id)
Index("ix_idempotency_created", idempotency.c.created_at)

keys = table_of("keys", row_types.KeyRow, ("id",))
Index("ix_keys_prefix", keys.c.prefix, unique=True)

# One-time tickets for browsers' websockets. A websocket uses a ticket by deleting its row.
tickets = table_of("tickets", row_types.TicketRow, ("hash",))

# A secret is stored in plain text, because it signs deliveries: see docs/guides/webhooks.md.
webhooks = table_of(
    "webhooks", row_types.WebhookRow, ("id",), Column("format", String, nullable=False, server_default="footplate")
)  # fmt: skip
Index("ix_webhooks_project", webhooks.c.project, webhooks.c.id)

# Deliveries of webhooks. Each is written in the transaction that changes its job, and sent after the commit.
deliveries = table_of("deliveries", row_types.DeliveryRow, ("id",))
Index("ix_deliveries_webhook", deliveries.c.webhook_id, deliveries.c.id)
IS_PENDING = text("due_at IS NOT NULL")
_partial_index(IS_PENDING, "ix_deliveries_next", deliveries.c.webhook_id, deliveries.c.due_at, deliveries.c.id)
