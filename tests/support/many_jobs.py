"""Makes very many jobs at once by copying one job in SQL."""

from __future__ import annotations

from sqlalchemy import Connection, text

from footplate.contract.ids import JobId
from service.store.tables import jobs

BORN_MS = 1_800_000_000_000
"""The time at which copy 0 was created. Each further copy is a millisecond younger."""
_NUMBERS = {
    "sqlite": "WITH RECURSIVE many(n) AS (SELECT :first UNION ALL SELECT n + 1 FROM many WHERE n < :last)",
    "postgresql": "WITH many AS (SELECT generate_series(CAST(:first AS bigint), CAST(:last AS bigint)) AS n)",
}
_HEX = {"sqlite": "printf('%0{width}x', {number})", "postgresql": "lpad(to_hex({number}), {width}, '0')"}


def numbers(dialect: str) -> str:
    """Returns the SQL of a table `many` whose column `n` goes from :first to :last."""
    return _NUMBERS[dialect]


def id_of(dialect: str) -> str:
    """Returns the SQL of the id of copy `n`."""
    born, number = (
        _HEX[dialect].format(number=value, width=width) for value, width in ((f"{BORN_MS} + n", 12), ("n", 15))
    )
    return f"'job_' || {born} || '70008' || {number}"


def copy_job(conn: Connection, job: JobId, first: int, last: int, **columns: str) -> None:
    """Inserts copies `first` to `last` of a job. `columns` are SQL expressions in `n`, the number of the copy."""
    dialect = conn.dialect.name
    own = {"id": id_of(dialect), **columns}
    names = [column.name for column in jobs.columns]
    chosen = ", ".join(own.get(name, f"jobs.{name}") for name in names)
    statement = (
        f"INSERT INTO jobs ({', '.join(names)}) {numbers(dialect)} SELECT {chosen} FROM jobs, many WHERE jobs.id = :job"
    )
    conn.execute(text(statement), {"first": first, "last": last, "job": job})
