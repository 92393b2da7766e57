"""The connection to SQL: many readers, few writers, and no statement on the event loop.

Writes queue up for a writer thread, which puts all that are waiting into one transaction (group commit). Under load one
fsync serves many requests, and at rest nothing waits. A failing write does not affect the others.

    SQLite       one writer thread, BEGIN IMMEDIATE, a savepoint per write
    PostgreSQL   several; a batch with any error is rolled back, and each write is repeated in its own transaction

Writes that only insert rows (`Inserts`) are sent together, with one statement per table for the whole batch.

A write may run more than once before it is committed, so it must have no effect except on its connection. Deletions of
files are an exception, because another upload could store the same file between a commit and the deletion. If SQL is
unreachable, locked, full or broken, `Unavailable` is raised, and nothing is half stored.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar

from sqlalchemy import Connection, Engine, Insert
from sqlalchemy.exc import SQLAlchemyError

from footplate.contract.errors import Unavailable
from service.store.engines import Engines, is_conflict, is_unavailable

P = ParamSpec("P")
T = TypeVar("T")
Write = Callable[[Connection], T]

NewRow = tuple[Insert, dict[str, Any]]
"""A row to insert: the statement of its table, and the values of its columns."""

BATCH_LIMIT = 256
"""The most writes in one transaction: enough to share an fsync, and few enough to be fast."""
CONFLICT_TRIES = 5
LONG_READER = "sql-long-read"
"""The name of the thread that runs long reads."""


def insert_rows(connection: Connection, rows: Iterable[NewRow]) -> None:
    """Inserts rows of several tables, with one statement for each table."""
    by_statement: dict[Insert, list[dict[str, Any]]] = {}
    for statement, values in rows:
        by_statement.setdefault(statement, []).append(values)
    for statement, rows_of_table in by_statement.items():
        connection.execute(statement, rows_of_table)


@dataclass(frozen=True, slots=True)
class Inserts(Generic[T]):
    """A write that inserts rows and reads nothing from SQL. Such writes of a batch are sent together."""

    rows: Sequence[NewRow]
    result: Callable[[], T]
    """Called in the transaction, when the rows are inserted. Returns the result of the write."""

    def __call__(self, connection: Connection) -> T:
        insert_rows(connection, self.rows)
        return self.result()


class Database:
    def __init__(self, url: str, readers: int = 4, writers: int = 4) -> None:
        # One connection per thread of short reads, and one for the thread of long reads.
        self._engines = Engines(url, readers=readers + 1, writers=writers)
        self.dialect = self._engines.writer.dialect.name
        self._queue: SimpleQueue[_Item | None] = SimpleQueue()
        self._readers = ThreadPoolExecutor(readers, thread_name_prefix="sql-read")
        self._long_reader = ThreadPoolExecutor(1, thread_name_prefix=LONG_READER)
        count = 1 if self.dialect == "sqlite" else writers
        self._writers = [threading.Thread(target=self._serve, name=f"sql-write-{n}", daemon=True) for n in range(count)]
        self._arriving: dict[asyncio.AbstractEventLoop, list[_Item]] = {}
        self._closed = False
        for writer in self._writers:
            writer.start()

    async def write(self, fn: Callable[Concatenate[Connection, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Calls `fn` with a connection and these arguments in a thread, and returns the result after the commit."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        arriving = self._arriving.get(loop)
        if arriving is None:
            # Writes are collected until the event loop has run all callbacks that are ready. Otherwise a writer thread
            # would commit the first of sixteen requests alone, and compete with the others for the interpreter.
            arriving = self._arriving[loop] = []
            loop.call_soon(self._flush, loop)
        write = (lambda connection: fn(connection, *args, **kwargs)) if args or kwargs else fn
        arriving.append(_Item(write, loop, future))
        return await future

    async def read(self, fn: Callable[Concatenate[Connection, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Calls `fn` with a connection and these arguments in a thread, and returns the result.

        The connection reads a consistent snapshot.
        """
        call = partial(self.read_now, fn, *args, **kwargs)
        return await asyncio.get_running_loop().run_in_executor(self._readers, call)

    async def read_long(self, fn: Callable[Concatenate[Connection, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Does the same as `read` for a function that computes much. Such functions run one after the other.

        Two of them at the same time would keep the interpreter from the event loop, and short reads would wait.
        """
        call = partial(self.read_now, fn, *args, **kwargs)
        return await asyncio.get_running_loop().run_in_executor(self._long_reader, call)

    def write_now(self, fn: Write[T]) -> T:
        """Does the same as `write`, but blocks the calling thread."""
        future: Future[T] = Future()
        self._put(_Item(fn, None, future))
        return future.result()

    def read_now(self, fn: Callable[Concatenate[Connection, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        with database_errors(), self._engines.reader.connect() as connection:
            return fn(connection, *args, **kwargs)

    def close(self) -> None:
        """Finishes the queued writes, then closes every connection."""
        if self._closed:
            return
        self._closed = True
        for _ in self._writers:
            self._queue.put(None)
        for writer in self._writers:
            writer.join()
        self._readers.shutdown()
        self._long_reader.shutdown()
        self._engines.dispose()

    def _flush(self, loop: asyncio.AbstractEventLoop) -> None:
        for item in self._arriving.pop(loop):
            try:
                self._put(item)
            except Unavailable as error:
                _settle([(item.future, _Outcome(error=error))])

    def _put(self, item: _Item) -> None:
        if self._closed:
            raise Unavailable("the service is stopping and takes no more writes", hint="try again in a moment")
        self._queue.put(item)

    def _serve(self) -> None:
        session = _Session(self._engines.writer)
        write_all = _with_savepoints if self.dialect == "sqlite" else _optimistically
        stopping = False
        while not stopping:
            batch, stopping = self._take()
            if batch:
                _deliver(batch, write_all(session, batch))
        session.close()

    def _take(self) -> tuple[list[_Item], bool]:
        first = self._queue.get()
        batch: list[_Item] = []
        item = first
        while item is not None:
            batch.append(item)
            if len(batch) == BATCH_LIMIT:
                return batch, False
            try:
                item = self._queue.get_nowait()
            except Empty:
                return batch, False
        return batch, True


@dataclass(slots=True)
class _Item:
    fn: Write[Any]
    loop: asyncio.AbstractEventLoop | None
    future: Any


@dataclass(slots=True)
class _Outcome:
    value: Any = None
    error: BaseException | None = None


class _Session:
    """The connection of a writer thread, which is kept between transactions and replaced when it is broken."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._connection: Connection | None = None
        self.was_stale = False
        """True if the last transaction failed on a kept connection before its commit. A new connection may succeed."""

    @contextmanager
    def transaction(self) -> Iterator[Connection]:
        self.was_stale = self._connection is not None
        with database_errors():
            if self._connection is None:
                self._connection = self._engine.connect()
            try:
                with self._connection.begin():
                    yield self._connection
                    # From here on it is not known whether the commit succeeded.
                    self.was_stale = False
            except BaseException as error:
                self.was_stale = self.was_stale and is_unavailable(error)
                if is_unavailable(error):
                    self.close()
                raise

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            # A polite close may fail. The pool then discards the connection.
            with suppress(SQLAlchemyError):
                connection.close()


def _with_savepoints(session: _Session, batch: list[_Item]) -> list[_Outcome]:
    try:
        with session.transaction() as connection:
            inserts = _inserts_of(batch)
            outcome_of_inserts = _in_savepoint(connection, inserts) if inserts.rows else _Outcome()
            return [
                _Outcome(item.fn.result())
                if isinstance(item.fn, Inserts) and outcome_of_inserts.error is None
                else _in_savepoint(connection, item.fn)
                for item in batch
            ]
    except Exception as error:
        return [_Outcome(error=error) for _ in batch]


def _inserts_of(batch: list[_Item]) -> Inserts[None]:
    """Joins the `Inserts` among the queued writes into one write.

    One statement with many rows costs little more than one with a single row.
    """
    rows = [row for item in batch if isinstance(item.fn, Inserts) for row in item.fn.rows]
    return Inserts(rows, lambda: None)


def _in_savepoint(connection: Connection, write: Write[Any]) -> _Outcome:
    # The savepoint is made by the driver, because SQLAlchemy's begin_nested() costs more than the statements inside.
    driver: Any = connection.connection.driver_connection
    driver.execute("SAVEPOINT item")
    try:
        outcome = _Outcome(write(connection))
    except Exception as error:
        if is_unavailable(error):
            raise
        driver.execute("ROLLBACK TO item")
        outcome = _Outcome(error=error)
    driver.execute("RELEASE item")
    return outcome


def _optimistically(session: _Session, batch: list[_Item]) -> list[_Outcome]:
    if len(batch) > 1:
        try:
            with session.transaction() as connection:
                _inserts_of(batch)(connection)
                return [
                    _Outcome(item.fn.result() if isinstance(item.fn, Inserts) else item.fn(connection))
                    for item in batch
                ]
        except Exception:
            # The failing write is found below, where each write runs by itself.
            pass
    return [_alone(session, item) for item in batch]


def _alone(session: _Session, item: _Item) -> _Outcome:
    for tries_left in reversed(range(CONFLICT_TRIES)):
        try:
            with session.transaction() as connection:
                value = item.fn(connection)
            return _Outcome(value)
        except Exception as error:
            if not (tries_left and (session.was_stale or is_conflict(error))):
                return _Outcome(error=error)
    raise AssertionError("unreachable")


def _deliver(batch: list[_Item], outcomes: list[_Outcome]) -> None:
    """Gives each write its outcome. Each event loop is woken once, for any number of its writes."""
    by_loop: dict[asyncio.AbstractEventLoop, list[tuple[Any, _Outcome]]] = {}
    for item, outcome in zip(batch, outcomes, strict=True):
        if item.loop is None:
            _settle([(item.future, outcome)])
        else:
            by_loop.setdefault(item.loop, []).append((item.future, outcome))
    for loop, results in by_loop.items():
        # An event loop that has ended has no waiting callers.
        with suppress(RuntimeError):
            loop.call_soon_threadsafe(_settle, results)


def _settle(results: list[tuple[Any, _Outcome]]) -> None:
    for future, outcome in results:
        if future.done():
            continue
        if outcome.error is None:
            future.set_result(outcome.value)
        else:
            future.set_exception(outcome.error)


@contextmanager
def database_errors() -> Iterator[None]:
    try:
        yield
    except Exception as error:
        if is_unavailable(error):
            # The driver's message, without the statement and its values.
            why = str(getattr(error, "orig", None) or error).strip().partition("\n")[0]
            raise Unavailable(
                f"the database cannot serve this right now: {why}", hint="try again in a moment"
            ) from error
        raise
