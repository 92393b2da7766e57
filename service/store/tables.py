"""The schema, from which new databases are made. `migrations/` upgrades older ones; a test compares the results.

JSON is text that was serialized once, so that no driver parses it again. Times are integer milliseconds in UTC.
"""

from __future__ import annotations

from sqlalchemy import BigInteger, Boolean, Column, Float, Index, Integer, MetaData, String, Table, Text, text

metadata = MetaData(
    naming_convention={"ix": "ix_%(table_name)s_%(column_0_N_name)s", "pk": "pk_%(table_name)s"},
)

jobs = Table(
    "jobs",
    metadata,
    Column("id", String, primary_key=True),
    Column("project", String, nullable=False),
    # An empty name means none, because an index sorts by it, and keysets need a value.
    Column("name", String, nullable=False),
    Column("tags", Text, nullable=False),
    Column("job_metadata", Text, nullable=False),
    Column("priority", Integer, nullable=False),
    Column("state", String, nullable=False),
    Column("reason", String, nullable=False),
    Column("message", Text),
    Column("desired", String, nullable=False),
    Column("version", Integer, nullable=False),
    Column("attempt", Integer, nullable=False),
    Column("fence", Integer, nullable=False),
    Column("stop_mode", String),
    Column("stop_deadline", BigInteger),
    Column("not_before", BigInteger),
    Column("spent", Integer, nullable=False),
    Column("stuck", Integer, nullable=False),
    Column("running_ms", BigInteger, nullable=False),
    Column("time_limit_ms", BigInteger),
    Column("needs", Text, nullable=False),
    Column("last_no", Integer, nullable=False),
    Column("created_at", BigInteger, nullable=False),
    Column("updated_at", BigInteger, nullable=False),
    Column("queued_at", BigInteger, nullable=False),
    Column("started_at", BigInteger),
    Column("finished_at", BigInteger),
    Column("progress", Text),
    Column("metrics", Text),
    Column("result", Text),
    Column("error", Text),
    Column("outputs", Text),
    Column("spec", Text, nullable=False),
    # The checkpoint of another job from which this job starts.
    Column("starts_from", String),
    Column("warnings", Text),
    Column("fine_tune", Text),
    # The name of the job's needs. Jobs with equal needs have equal shapes. Written together with `needs`.
    Column("shape", String, nullable=False, server_default=""),
)
# An id is a UUIDv7, so its order is the order of creation: every list is keyset by (…, id).
Index("ix_jobs_project", jobs.c.project, jobs.c.id)
Index("ix_jobs_project_state", jobs.c.project, jobs.c.state, jobs.c.id)
Index("ix_jobs_project_name", jobs.c.project, jobs.c.name, jobs.c.id)
Index("ix_jobs_project_priority", jobs.c.project, jobs.c.priority, jobs.c.id)
# Literals, word for word as in the statements, because SQLite uses a partial index only for the same condition.
IS_QUEUED = text("state = 'queued'")
IS_READY = text("state = 'queued' AND not_before IS NULL")
"""A queued job that may start now."""
IS_LATER = text("state = 'queued' AND not_before IS NOT NULL")
"""A queued job that waits for its time. Control makes it ready when that time has come."""
IS_ACTIVE = text("state IN ('starting', 'running', 'stopping')")
# Queued jobs in the order of a list by priority. Other jobs often have other priorities, so an index over all states
# would read many of them on the way.
Index(
    "ix_jobs_queued",
    jobs.c.project,
    jobs.c.priority,
    jobs.c.id,
    sqlite_where=IS_QUEUED,
    postgresql_where=IS_QUEUED,
)
# The order in which jobs are tried: of all, with the columns that answers about the queue count, and of each shape.
# Both have
# the columns of their own conditions, because SQLite would otherwise read the whole job beside each entry.
_TRIED = (jobs.c.priority.desc(), jobs.c.queued_at, jobs.c.id)
_OF_ALL = (*_TRIED, jobs.c.project, jobs.c.shape, jobs.c.state, jobs.c.not_before)
_OF_SHAPE = (jobs.c.shape, *_TRIED, jobs.c.state, jobs.c.not_before)
Index("ix_jobs_ready", *_OF_ALL, sqlite_where=IS_READY, postgresql_where=IS_READY)
Index("ix_jobs_shape", *_OF_SHAPE, sqlite_where=IS_READY, postgresql_where=IS_READY)
Index("ix_jobs_later", jobs.c.not_before, jobs.c.id, sqlite_where=IS_LATER, postgresql_where=IS_LATER)
STARTS_SOMEWHERE = text("starts_from IS NOT NULL")
Index(
    "ix_jobs_starts_from",
    jobs.c.starts_from,
    sqlite_where=STARTS_SOMEWHERE,
    postgresql_where=STARTS_SOMEWHERE,
)
Index("ix_jobs_active", jobs.c.id, sqlite_where=IS_ACTIVE, postgresql_where=IS_ACTIVE)

job_tags = Table(
    "job_tags",
    metadata,
    Column("project", String, primary_key=True),
    Column("tag", String, primary_key=True),
    Column("job_id", String, primary_key=True),
    sqlite_with_rowid=False,
)
Index("ix_job_tags_job", job_tags.c.job_id)

attempts = Table(
    "attempts",
    metadata,
    Column("job_id", String, primary_key=True),
    Column("attempt", Integer, primary_key=True, autoincrement=False),
    Column("fence", Integer, nullable=False),
    Column("placed_at", BigInteger, nullable=False),
    Column("claimed_at", BigInteger),
    Column("running_at", BigInteger),
    Column("ended_at", BigInteger),
    Column("ending", String),
    Column("reason", String),
    Column("error", Text),
    Column("result", Text),
    Column("running_ms", BigInteger, nullable=False),
)

Index("ix_attempts_ended", attempts.c.ended_at)

# The reason for which the ready jobs of a shape wait, as control last computed it. One row is for all of them.
waits = Table(
    "waits",
    metadata,
    Column("shape", String, primary_key=True),
    Column("reason", String, nullable=False),
    Column("message", Text, nullable=False),
)

sources = Table(
    "sources",
    metadata,
    Column("job_id", String, primary_key=True),
    Column("attempt", Integer, primary_key=True, autoincrement=False),
    Column("source", Integer, primary_key=True, autoincrement=False),
    Column("node", String, nullable=False),
    Column("boot", String, nullable=False),
    Column("slots", Integer, nullable=False),
    Column("gpus", Text, nullable=False),
    Column("claim", String),
    Column("rung_at", BigInteger),
    Column("claimed_at", BigInteger),
    Column("running_at", BigInteger),
    Column("watermark", Integer, nullable=False),
    Column("ended_at", BigInteger),
    Column("done", Text),
    Column("meets_at", String),
)
_OPEN = text("ended_at IS NULL")
Index("ix_sources_open", sources.c.node, sqlite_where=_OPEN, postgresql_where=_OPEN)

# The primary key is the reader's cursor. (job, attempt, source, seq) needs no index of its own. The source's watermark,
# read and written under the job's lock, already admits each seq once.
events = Table(
    "events",
    metadata,
    Column("job_id", String, primary_key=True),
    Column("no", Integer, primary_key=True, autoincrement=False),
    Column("attempt", Integer, nullable=False),
    Column("source", Integer, nullable=False),
    Column("seq", Integer, nullable=False),
    Column("rank", Integer, nullable=False),
    Column("kind", String, nullable=False),
    Column("at", String, nullable=False),
    Column("step", BigInteger),
    Column("epoch", Float),
    Column("data", Text, nullable=False),
    sqlite_with_rowid=False,
)

# A curve is one metric of one attempt. It is stored as a pyramid of buckets, so that drawing ten million points reads
# some
# hundreds of rows (service/events/curves.py). This table has the growing end of a curve. The points are the events.
curves = Table(
    "curves",
    metadata,
    Column("job_id", String, primary_key=True),
    Column("attempt", Integer, primary_key=True, autoincrement=False),
    Column("name", String, primary_key=True),
    Column("body", Text, nullable=False),
    sqlite_with_rowid=False,
)

curve_buckets = Table(
    "curve_buckets",
    metadata,
    Column("job_id", String, primary_key=True),
    Column("attempt", Integer, primary_key=True, autoincrement=False),
    Column("name", String, primary_key=True),
    Column("level", Integer, primary_key=True, autoincrement=False),
    Column("place", Integer, primary_key=True, autoincrement=False),
    # The highest step in it, by which a later attempt finds the place from which it repeats.
    Column("reaches", BigInteger),
    Column("body", Text, nullable=False),
    # The events of its points, on the lowest level only.
    Column("nos", Text),
    sqlite_with_rowid=False,
)

# Live commands of users to running loops, by the number of their event. `step` is the step after which it was done.
live_commands = Table(
    "deeds",
    metadata,
    Column("job_id", String, primary_key=True),
    Column("no", Integer, primary_key=True, autoincrement=False),
    Column("body", Text, nullable=False),
    Column("step", BigInteger),
)
IS_OPEN_COMMAND = text("step IS NULL")
Index("ix_deeds_open", live_commands.c.job_id, sqlite_where=IS_OPEN_COMMAND, postgresql_where=IS_OPEN_COMMAND)

dead_events = Table(
    "dead_events",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("at", BigInteger, nullable=False),
    Column("reason", Text, nullable=False),
    Column("raw", Text, nullable=False),
)

checkpoints = Table(
    "checkpoints",
    metadata,
    Column("id", String, primary_key=True),
    Column("job_id", String, nullable=False),
    Column("attempt", Integer, nullable=False),
    Column("step", BigInteger, nullable=False),
    Column("no", Integer, nullable=False),
    Column("path", Text, nullable=False),
    Column("status", String, nullable=False),
    Column("bytes", BigInteger, nullable=False),
    Column("files", Integer, nullable=False),
    Column("manifest_sha256", String, nullable=False),
    Column("metrics", Text, nullable=False),
    Column("is_best", Boolean, nullable=False),
    Column("score", Float),
    Column("created_at", BigInteger, nullable=False),
    Column("pinned_from", Text),
)
Index("ix_checkpoints_job", checkpoints.c.job_id, checkpoints.c.no)
IS_DELETING = text("status = 'deleting'")
Index("ix_checkpoints_deleting", checkpoints.c.job_id, sqlite_where=IS_DELETING, postgresql_where=IS_DELETING)

# Rows of a job are deleted in one transaction, and its files later. These jobs' files may still exist, or come back.
deleted_jobs = Table(
    "deleted_jobs",
    metadata,
    Column("job_id", String, primary_key=True),
    Column("deleted_at", BigInteger, nullable=False),
)

nodes = Table(
    "nodes",
    metadata,
    Column("id", String, primary_key=True),
    Column("name", String, nullable=False),
    Column("boot", String, nullable=False),
    Column("pool", String, nullable=False),
    Column("slots", Integer, nullable=False),
    Column("gpus", Text, nullable=False),
    Column("lost", Boolean, nullable=False),
    Column("draining", Boolean, nullable=False),
    Column("drain_requested", Boolean, nullable=False),
    Column("consuming", Boolean, nullable=False),
    Column("store_ok", Boolean, nullable=False),
    Column("trouble", Text),
    Column("exposed", Text),
    Column("roots", Text),
    Column("refused", Text),
    Column("protocol", Integer, nullable=False),
    Column("catalogue_hash", String),
    Column("versions", Text, nullable=False),
    Column("first_seen_at", BigInteger, nullable=False),
    Column("seen_at", BigInteger, nullable=False),
)

catalogues = Table(
    "catalogues",
    metadata,
    Column("hash", String, primary_key=True),
    Column("body", Text, nullable=False),
    Column("created_at", BigInteger, nullable=False),
)

# Bundles belong to one project each. Equal bytes of two projects are two rows and one file.
bundles = Table(
    "bundles",
    metadata,
    Column("project", String, primary_key=True),
    Column("sha256", String, primary_key=True),
    Column("bytes", BigInteger, nullable=False),
    Column("unpacked_bytes", BigInteger, nullable=False),
    Column("files", Text, nullable=False),
    Column("created_at", BigInteger, nullable=False),
)
Index("ix_bundles_project", bundles.c.project, bundles.c.created_at, bundles.c.sha256)

# Files belong to one project each, like bundles. Equal bytes of two projects are one file.
files = Table(
    "files",
    metadata,
    Column("project", String, primary_key=True),
    Column("id", String, primary_key=True),
    Column("sha256", String, nullable=False),
    Column("bytes", BigInteger, nullable=False),
    Column("name", Text, nullable=False),
    Column("kind", String, nullable=False),
    Column("created_at", BigInteger, nullable=False),
    Column("created_by", String),
    Column("rows", BigInteger),
    Column("bad_rows", BigInteger),
    Column("report", Text),
)
Index("ix_files_project", files.c.project, files.c.created_at, files.c.id)

# Uploads in parts. A part's content is a file of the artifact store until the upload is complete or a day old.
uploads = Table(
    "uploads",
    metadata,
    Column("id", String, primary_key=True),
    Column("project", String, nullable=False),
    Column("name", Text, nullable=False),
    Column("bytes", BigInteger, nullable=False),
    Column("created_at", BigInteger, nullable=False),
    Column("status", String, nullable=False),
    Column("file_id", String),
)
Index("ix_uploads_created", uploads.c.created_at)

upload_parts = Table(
    "upload_parts",
    metadata,
    Column("id", String, primary_key=True),
    Column("upload_id", String, nullable=False),
    Column("bytes", BigInteger, nullable=False),
    Column("created_at", BigInteger, nullable=False),
)
Index("ix_upload_parts_upload", upload_parts.c.upload_id)

idempotency = Table(
    "idempotency",
    metadata,
    Column("project", String, primary_key=True),
    Column("key", String, primary_key=True),
    Column("body_sha256", String, nullable=False),
    Column("job_id", String, nullable=False),
    Column("response", Text),
    Column("created_at", BigInteger, nullable=False),
)
Index("ix_idempotency_job", idempotency.c.job_id)
Index("ix_idempotency_created", idempotency.c.created_at)

keys = Table(
    "keys",
    metadata,
    Column("id", String, primary_key=True),
    Column("prefix", String, nullable=False),
    Column("hash", String, nullable=False),
    Column("name", String, nullable=False),
    Column("project", String, nullable=False),
    Column("scopes", Text, nullable=False),
    Column("created_at", BigInteger, nullable=False),
    Column("created_by", String),
    Column("expires_at", BigInteger),
    Column("last_used_at", BigInteger),
)
Index("ix_keys_prefix", keys.c.prefix, unique=True)

# One-time tickets for browsers' sockets, which are taken by deleting them.
tickets = Table(
    "tickets",
    metadata,
    Column("hash", String, primary_key=True),
    Column("key_id", String),
    Column("project", String, nullable=False),
    Column("expires_at", BigInteger, nullable=False),
)

# A secret must sign, so it is stored as it is: see docs/guides/webhooks.md.
webhooks = Table(
    "webhooks",
    metadata,
    Column("id", String, primary_key=True),
    Column("project", String, nullable=False),
    Column("url", Text, nullable=False),
    Column("secret", String, nullable=False),
    Column("states", Text),
    Column("tags", Text),
    Column("description", Text),
    Column("created_at", BigInteger, nullable=False),
    Column("created_by", String),
    Column("failing_since", BigInteger),
    Column("disabled_at", BigInteger),
    Column("disabled_why", Text),
    Column("rests_until", BigInteger),
    Column("old_secret", String),
    Column("old_until", BigInteger),
)
Index("ix_webhooks_project", webhooks.c.project, webhooks.c.id)

# Deliveries of webhooks, written with the move that they report, and sent after its commit.
deliveries = Table(
    "deliveries",
    metadata,
    Column("id", String, primary_key=True),
    Column("webhook_id", String, nullable=False),
    Column("type", String, nullable=False),
    Column("job_id", String),
    Column("body", Text, nullable=False),
    Column("created_at", BigInteger, nullable=False),
    Column("status", String, nullable=False),
    Column("tries", Integer, nullable=False),
    Column("due_at", BigInteger),
    Column("tried_at", BigInteger),
    Column("http_status", Integer),
    Column("answer", Text),
    Column("error", Text),
)
Index("ix_deliveries_webhook", deliveries.c.webhook_id, deliveries.c.id)
IS_PENDING = text("due_at IS NOT NULL")
Index(
    "ix_deliveries_next", deliveries.c.webhook_id, deliveries.c.due_at, deliveries.c.id,
    sqlite_where=IS_PENDING, postgresql_where=IS_PENDING,
)  # fmt: skip
