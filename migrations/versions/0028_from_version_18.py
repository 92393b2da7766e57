"""Upgrades a database of version 18 to today's tables"""

from __future__ import annotations

from hashlib import blake2b

import sqlalchemy as sa
from alembic import op

revision = "0028"
down_revision = "0018"

STATEMENTS = """
ALTER TABLE jobs ADD COLUMN warnings TEXT;
ALTER TABLE jobs ADD COLUMN fine_tune TEXT;
ALTER TABLE jobs ADD COLUMN shape VARCHAR NOT NULL DEFAULT '';
UPDATE jobs SET needs = replace(needs, '"parts":', '"requirements":');
ALTER TABLE nodes ADD COLUMN roots TEXT;
ALTER TABLE files ADD COLUMN rows BIGINT;
ALTER TABLE files ADD COLUMN bad_rows BIGINT;
ALTER TABLE files ADD COLUMN report TEXT;
ALTER TABLE webhooks ADD COLUMN format VARCHAR NOT NULL DEFAULT 'footplate';
ALTER TABLE sources RENAME COLUMN rung_at TO sent_at;
ALTER TABLE sources RENAME COLUMN meets_at TO rendezvous;

CREATE TABLE live_commands (
    job_id VARCHAR NOT NULL, no INTEGER NOT NULL, body TEXT NOT NULL, step BIGINT,
    CONSTRAINT pk_live_commands PRIMARY KEY (job_id, no)
);
INSERT INTO live_commands SELECT job_id, no, body, step FROM deeds;
DROP TABLE deeds;
CREATE INDEX ix_live_commands_open ON live_commands (job_id) WHERE step IS NULL;

CREATE TABLE waits (
    shape VARCHAR NOT NULL, reason VARCHAR NOT NULL, message TEXT NOT NULL, CONSTRAINT pk_waits PRIMARY KEY (shape)
);
CREATE TABLE uploads (
    id VARCHAR NOT NULL, project VARCHAR NOT NULL, name TEXT NOT NULL, bytes BIGINT NOT NULL,
    created_at BIGINT NOT NULL, status VARCHAR NOT NULL, file_id VARCHAR, CONSTRAINT pk_uploads PRIMARY KEY (id)
);
CREATE INDEX ix_uploads_created ON uploads (created_at);
CREATE TABLE upload_parts (
    id VARCHAR NOT NULL, upload_id VARCHAR NOT NULL, bytes BIGINT NOT NULL, created_at BIGINT NOT NULL,
    CONSTRAINT pk_upload_parts PRIMARY KEY (id)
);
CREATE INDEX ix_upload_parts_upload ON upload_parts (upload_id);

DROP INDEX ix_jobs_fresh;
DROP INDEX ix_jobs_waiting;
CREATE INDEX ix_jobs_ready ON jobs (priority DESC, queued_at, id, project, shape, state, not_before)
    WHERE state = 'queued' AND not_before IS NULL;
CREATE INDEX ix_jobs_shape ON jobs (shape, priority DESC, queued_at, id, state, not_before)
    WHERE state = 'queued' AND not_before IS NULL;
CREATE INDEX ix_jobs_later ON jobs (not_before, id) WHERE state = 'queued' AND not_before IS NOT NULL;
CREATE INDEX ix_jobs_queued ON jobs (project, priority, id) WHERE state = 'queued';
CREATE INDEX ix_attempts_ended ON attempts (ended_at);
"""


def upgrade() -> None:
    for statement in filter(str.strip, STATEMENTS.split(";")):
        op.execute(statement)
    _name_shapes()


def _name_shapes() -> None:
    """Writes the shape into all jobs in one pass, because no index finds the jobs of one shape."""
    conn = op.get_bind()
    shapes = [
        {"needs": needs, "shape": blake2b(needs.encode(), digest_size=12).hexdigest()}
        for needs in conn.execute(sa.text("SELECT DISTINCT needs FROM jobs")).scalars()
    ]
    if shapes:
        op.execute("CREATE TEMPORARY TABLE shape_names (needs TEXT, shape TEXT)")
        conn.execute(sa.text("INSERT INTO shape_names VALUES (:needs, :shape)"), shapes)
        op.execute("UPDATE jobs SET shape = shape_names.shape FROM shape_names WHERE shape_names.needs = jobs.needs")
        op.execute("DROP TABLE shape_names")
