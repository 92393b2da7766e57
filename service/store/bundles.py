"""Statements about bundles. The file in the artifact store is written before its row, and goes after the last one."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection, delete, func, select, tuple_
from sqlalchemy.dialects import postgresql, sqlite

from contract.errors import NotFound
from contract.lifecycle import JobState
from service.store.mapping import columns_of, values_of
from service.store.rows import BundleRow
from service.store.tables import bundles, jobs

_ROWS = select(*columns_of(bundles, BundleRow))
_KEEP: dict[str, Any] = {
    "sqlite": sqlite.insert(bundles).on_conflict_do_nothing().returning(bundles.c.sha256),
    "postgresql": postgresql.insert(bundles).on_conflict_do_nothing().returning(bundles.c.sha256),
}
_OVER = (JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED)


def keep(conn: Connection, row: BundleRow) -> bool:
    """Whether it is new here."""
    # By what comes back: PostgreSQL's driver counts no rows of such an insert.
    return conn.execute(_KEEP[conn.dialect.name], values_of(row)).one_or_none() is not None


def get(conn: Connection, project: str, sha256: str, *, hold: bool = False) -> BundleRow:
    """Raises NotFound. With `hold`, nobody deletes it before this transaction has ended."""
    query = _ROWS.where(bundles.c.project == project, bundles.c.sha256 == sha256)
    found = conn.execute(query.with_for_update(read=True) if hold else query).one_or_none()
    if found is None:
        raise NotFound(f"there is no bundle {sha256}", hint="POST /bundles takes it as a zip")
    return BundleRow(*found)


def page(conn: Connection, project: str, limit: int, after: tuple[int, str] | None = None) -> list[BundleRow]:
    """Newest first; `after` is the last one of the page before."""
    query = _ROWS.where(bundles.c.project == project)
    if after is not None:
        query = query.where(tuple_(bundles.c.created_at, bundles.c.sha256) < tuple_(*after))
    return [BundleRow(*row) for row in conn.execute(query.order_by(*_NEWEST).limit(limit))]


_NEWEST = (bundles.c.created_at.desc(), bundles.c.sha256.desc())


def remove(conn: Connection, project: str, sha256: str) -> bool:
    """Whether its file has become nobody's. Raises NotFound."""
    mine = (bundles.c.project == project) & (bundles.c.sha256 == sha256)
    if conn.execute(delete(bundles).where(mine)).rowcount == 0:
        get(conn, project, sha256)
    return conn.execute(select(func.count()).where(bundles.c.sha256 == sha256)).scalar_one() == 0


def used_by(conn: Connection, project: str, sha256: str) -> str | None:
    """A job that is not over and needs it."""
    # By the effective spec's own text: there are few such jobs, an index finds them, and no column has to follow.
    over = [state.value for state in _OVER]
    query = select(jobs.c.id).where(
        jobs.c.project == project, jobs.c.state.not_in(over), jobs.c.spec.contains(f'"bundle":"{sha256}"')
    )
    return conn.execute(query.limit(1)).scalar()
