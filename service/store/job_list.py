"""The list of jobs, page by page. It uses keysets, so that any page of a million jobs costs as much as the first."""

from __future__ import annotations

import json
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any, Literal, NamedTuple

from sqlalchemy import ColumnElement, Connection, Select, and_, bindparam, func, or_, select, tuple_

from footplate.contract.errors import InvalidSpec, Problem
from footplate.contract.ids import JobId, is_id
from footplate.contract.lifecycle import TERMINAL, JobState
from service.store.jobs import COLUMNS, to_row
from service.store.row_types import JobPage, JobRow
from service.store.stored_spec import read_spec, trains
from service.store.tables import IS_QUEUED, checkpoints, job_tags, jobs

Sort = Literal["-created", "created", "-priority", "priority", "-name", "name"]
COUNTED_TO = 1_000
"""The total of a list is exact up to this number. A higher one only says that there are more."""
FEW = 10_000
"""The number of jobs that can be read and sorted in the time that a page may take."""


@dataclass(frozen=True, slots=True)
class JobFilter:
    project: str
    states: Sequence[JobState] = ()
    tag: str | None = None
    name: str | None = None
    created_after: int | None = None
    """Milliseconds, inclusive."""
    created_before: int | None = None
    """Milliseconds, exclusive."""
    ids: Sequence[JobId] | None = None
    forked_from: JobId | None = None
    """Lists only jobs that start from a checkpoint of this job."""
    metadata: Sequence[tuple[str, str]] = ()
    """Fields that the metadata must have.

    SQL only searches its JSON text, so the caller checks the listed jobs again.
    """

    @property
    def walks(self) -> list[JobState] | list[None]:
        """The states to read one after the other, each along an index. [None] means one pass for jobs in any state."""
        return sorted(set(self.states)) or [None]


def newest_trainings(
    conn: Connection, filter: JobFilter, after: JobId | None, limit: int, matches: Callable[[JobRow], bool]
) -> list[JobRow]:
    """Returns up to `limit` matching jobs that train, newest first. `after` is the last job of the previous page."""
    trainings: list[JobRow] = []
    while len(trainings) < limit:
        rows = _rows(conn, filter, _Order("-created"), None if after is None else (0, after), limit)
        trainings += [row for row in rows if not row.runs_elsewhere and trains(read_spec(row.spec)) and matches(row)]
        if len(rows) < limit:
            break
        after = rows[-1].id
    return trainings[:limit]


def page(
    conn: Connection, filter: JobFilter, sort: Sort = "-created", cursor: str | None = None, limit: int = 50
) -> JobPage:
    """Returns one page of the matching jobs. Raises InvalidSpec with the pointer /cursor for an invalid cursor."""
    order = _Order(sort)
    place = order.read(cursor) if cursor else None
    rows = _rows(conn, filter, order, place, limit + 1)
    following = order.write(rows[limit - 1]) if len(rows) > limit else None
    return JobPage(rows[:limit], following, _total(conn, filter))


class IndexChoice(Enum):
    """The index that a query reads. The query checks its other conditions for each job that the index yields."""

    ORDER = "jobs in the order that is wanted"
    TAG = "the jobs of a tag"
    FEW = "few jobs: those of a state or a name, chosen ones, or the forks of a job"

    @property
    def id(self) -> ColumnElement[str]:
        """Returns the column with the job's id in this index, by which the query sorts and limits its rows."""
        return job_tags.c.job_id if self is IndexChoice.TAG else jobs.c.id


class JobHead(NamedTuple):
    job: JobId
    last_no: int
    is_over: bool


_BY_IDS = select(*COLUMNS).where(jobs.c.id.in_(bindparam("ids", expanding=True)))
_HEAD = select(jobs.c.id, jobs.c.last_no, jobs.c.state)
NOT_OVER = [state for state in JobState if state not in TERMINAL]


def to_follow(conn: Connection, filter: JobFilter, limit: int, since: int) -> list[JobHead]:
    """Returns the newest matching jobs that have not ended.

    Without a filter by state, jobs that were created since `since` are included even if they have ended.
    """
    queries = [_matching(_HEAD, filter, state) for state in filter.states or NOT_OVER]
    if not filter.states:
        queries.append(_matching(_HEAD, replace(filter, created_after=since), None))
    matches: dict[JobId, JobHead] = {}
    for query in queries:
        matches |= {head.job: head for head in _heads(conn, query.order_by(jobs.c.id.desc()).limit(limit))}
    return [matches[job] for job in sorted(matches, reverse=True)][:limit]


def heads(conn: Connection, project: str, job_ids: Sequence[JobId]) -> dict[JobId, JobHead]:
    """Returns, for each of these jobs in the project, the number of its last event, and its state if it has ended."""
    query = _HEAD.where(jobs.c.project == project, jobs.c.id.in_(job_ids))
    return {head.job: head for head in _heads(conn, query)}


def _heads(conn: Connection, query: Select[Any]) -> list[JobHead]:
    return [JobHead(row.id, row.last_no, JobState(row.state).is_terminal) for row in conn.execute(query)]


class _Order:
    """The sort order of a list: by one column, and by the id for jobs that are equal in it."""

    def __init__(self, sort: str) -> None:
        self.sort, self.descending = sort, sort.startswith("-")
        self.field = {"created": None, "priority": "priority", "name": "name"}[sort.lstrip("-")]

    def columns(self, index: IndexChoice) -> list[ColumnElement[Any]]:
        columns = [self._column(self.field, index)] if self.field else []
        return [column.desc() if self.descending else column.asc() for column in (*columns, index.id)]

    def _column(self, field: str, index: IndexChoice) -> ColumnElement[Any]:
        column = jobs.c[field]
        if index is not IndexChoice.FEW:
            return column
        # Sorting few jobs is faster than searching them in an index of all jobs, which the `+` rules out.
        return column + ("" if field == "name" else 0)

    def beyond(self, place: tuple[Any, str], index: IndexChoice) -> ColumnElement[bool]:
        if self.field is None:
            return index.id < place[1] if self.descending else index.id > place[1]
        # For a comparison of tuples, the database skips the earlier entries of its index. With AND and OR, it would
        # read all rows with the same first value.
        key = tuple_(self._column(self.field, index), index.id)
        return key < tuple_(*place) if self.descending else key > tuple_(*place)

    def key(self, row: JobRow) -> tuple[Any, str]:
        return (getattr(row, self.field) or ("" if self.field == "name" else 0) if self.field else 0, row.id)

    def write(self, row: JobRow) -> str:
        return urlsafe_b64encode(json.dumps([self.sort, *self.key(row)]).encode()).decode().rstrip("=")

    def read(self, cursor: str) -> tuple[Any, str]:
        try:
            sort, value, job_id = json.loads(urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)))
            has_value = type(value) is (str if self.field == "name" else int) and _is_sane(value)
            if sort != self.sort or not has_value or not is_id(str(job_id), "job"):
                raise ValueError
        except (ValueError, TypeError, RecursionError):
            raise InvalidSpec(
                [Problem("/cursor", "bad_cursor", "is not a cursor of this list", "start again without a cursor")]
            ) from None
        return value, job_id


def _is_sane(value: str | int) -> bool:
    """Returns True if a query may contain this value of a cursor. Clients could send values that a database refuses."""
    if isinstance(value, int):
        return abs(value) < 2**31
    return "\0" not in value and value == value.encode("utf-8", "replace").decode()


def _rows(
    conn: Connection, filter: JobFilter, order: _Order, place: tuple[Any, str] | None, limit: int
) -> list[JobRow]:
    """Reads the jobs of each requested state by an index, and sorts them. With IN, the database would sort all."""
    ids: list[str] = []
    for state in filter.walks:
        index = _cheapest_index(conn, filter, state, order.field)
        # Only ids are sorted, and whole rows are read for the page alone. Sorting `FEW` complete rows would take five
        # times as long as a page may take.
        query = _matching(select(jobs.c.id), filter, state, index).order_by(*order.columns(index)).limit(limit)
        if place is not None:
            query = query.where(order.beyond(place, index))
        ids += conn.execute(query).scalars()
    if len(filter.walks) > 1:
        # The database sorts the jobs of several states, because PostgreSQL compares names as its locale does.
        in_states = select(jobs.c.id).where(jobs.c.id.in_(ids))
        ids = list(conn.execute(in_states.order_by(*order.columns(IndexChoice.FEW)).limit(limit)).scalars())
    rows = {row.id: to_row(row) for row in conn.execute(_BY_IDS, {"ids": ids})} if ids else {}
    return [rows[job_id] for job_id in ids]


def _cheapest_index(
    conn: Connection, filter: JobFilter, state: JobState | None, field: str | None = None
) -> IndexChoice:
    """Returns the index that makes the query cheapest.

    SQLite would sort all jobs of a tag, or read all jobs to find a few queued ones.
    """

    def are_few(select_some: Select[Any]) -> bool:
        few_rows = select_some.limit(FEW + 1).subquery()
        return conn.execute(select(func.count()).select_from(few_rows)).scalar_one() <= FEW

    in_project = JobFilter(filter.project)
    if filter.name is not None or filter.ids is not None or filter.forked_from is not None:
        return IndexChoice.FEW
    if state is JobState.QUEUED and field == "priority" and not filter.tag:
        return IndexChoice.ORDER
    if state and (filter.tag or field) and are_few(_matching(select(jobs.c.id), in_project, state)):
        return IndexChoice.FEW
    with_tag = select(job_tags.c.job_id).where(job_tags.c.project == filter.project, job_tags.c.tag == filter.tag)
    if filter.tag and (field is None or are_few(with_tag)):
        return IndexChoice.TAG
    return IndexChoice.ORDER


def _matching(
    query: Select[Any], filter: JobFilter, state: JobState | None, index: IndexChoice = IndexChoice.FEW
) -> Select[Any]:
    query = query.where(jobs.c.project == filter.project)
    if state is JobState.QUEUED:
        # A literal, because SQLite does not use a partial index if the value is a bound parameter.
        query = query.where(IS_QUEUED)
    elif state is not None:
        query = query.where(jobs.c.state == state)
    if filter.name is not None:
        query = query.where(jobs.c.name == filter.name)
    if filter.ids is not None:
        query = query.where(jobs.c.id.in_(filter.ids))
    for name, value in filter.metadata:
        # The value is a string in the metadata, or the JSON of any other value.
        texts = (f"{json.dumps(name)}: {text}" for text in (json.dumps(value), value))
        query = query.where(or_(*(jobs.c.job_metadata.contains(text, autoescape=True) for text in texts)))
    if filter.forked_from is not None:
        checkpoint_ids = select(checkpoints.c.id).where(checkpoints.c.job_id == filter.forked_from)
        query = query.where(jobs.c.starts_from.in_(checkpoint_ids))
    # An id begins with its time of creation.
    if filter.created_after is not None:
        query = query.where(index.id >= id_at(filter.created_after))
    if filter.created_before is not None:
        query = query.where(index.id < id_at(filter.created_before))
    if filter.tag is not None:
        # A column `+ ""` is an expression, so the database cannot use the column's index.
        by_tag = index is IndexChoice.TAG
        is_tag_of_job = jobs.c.id == (job_tags.c.job_id + "" if by_tag else job_tags.c.job_id)
        has_tag = (job_tags.c.tag if by_tag else job_tags.c.tag + "") == filter.tag
        query = query.join(job_tags, and_(is_tag_of_job, job_tags.c.project == filter.project)).where(has_tag)
    return query


def id_at(moment_ms: int) -> str:
    return f"job_{max(0, min(moment_ms, (1 << 48) - 1)):012x}"


def _total(conn: Connection, filter: JobFilter) -> int:
    total = 0
    for state in filter.walks:
        query = _matching(select(jobs.c.id), filter, state, _cheapest_index(conn, filter, state))
        first_rows = query.limit(COUNTED_TO + 1).subquery()
        total += conn.execute(select(func.count()).select_from(first_rows)).scalar_one()
    return total
