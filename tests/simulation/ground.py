"""A real database with one connection in this process, whose rows are checked after every commit."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

from sqlalchemy import Connection, Engine, create_engine, event
from sqlalchemy.pool import StaticPool

from footplate.contract.errors import Unavailable
from service.store.tables import metadata

if TYPE_CHECKING:
    from tests.simulation.books import Books
    from tests.simulation.world import World

P = ParamSpec("P")
T = TypeVar("T")


class Ground:
    """A database whose tables are created once and emptied for every seed."""

    def __init__(self, url: str = "sqlite://") -> None:
        self.engine = _in_memory() if url == "sqlite://" else create_engine(url)
        metadata.create_all(self.engine)
        self.connection = self.engine.connect()
        self.is_sqlite = self.engine.dialect.name == "sqlite"

    def clear(self) -> None:
        with self.connection.begin():
            for table in metadata.tables:
                self.connection.exec_driver_sql(f"DELETE FROM {table}")

    def rows(self, statement: str) -> list[tuple[Any, ...]]:
        """Returns the rows of a query, on SQLite without SQLAlchemy, because a query after each commit must be fast."""
        if self.is_sqlite:
            driver: Any = self.connection.connection.driver_connection
            return list(driver.execute(statement))
        with self.connection.begin():
            return [tuple(row) for row in self.connection.exec_driver_sql(statement)]

    def changes(self) -> int | None:
        """Returns the number of all changes to the database so far, or None if the database does not count them."""
        driver: Any = self.connection.connection.driver_connection
        return int(driver.total_changes) if self.is_sqlite else None

    def close(self) -> None:
        self.connection.close()
        self.engine.dispose()


def _in_memory() -> Engine:
    engine = create_engine("sqlite://", poolclass=StaticPool)

    @event.listens_for(engine, "connect")
    def _prepare(connection: Any, _record: Any) -> None:
        connection.isolation_level = None

    @event.listens_for(engine, "begin")
    def _begin(connection: Any) -> None:
        connection.connection.driver_connection.execute("BEGIN IMMEDIATE")

    return engine


class Sql:
    """The part of the database that control and API use: `write` and `read`, as in service.store.database."""

    def __init__(self, world: World, ground: Ground, books: Books) -> None:
        self._world, self._ground, self._books = world, ground, books
        self.is_unavailable = False

    def write_now(self, fn: Callable[[Connection], T]) -> T:
        if self.is_unavailable:
            raise Unavailable("the database is away")
        with self._ground.connection.begin():
            value = fn(self._ground.connection)
        self._books.check()
        return value

    async def write(self, fn: Callable[Concatenate[Connection, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        world = self._world
        await world.interrupt_sometimes()
        if world.chance(world.weather.half / 4):
            raise Unavailable("the database went away before the commit")
        value = self.write_now(lambda connection: fn(connection, *args, **kwargs))
        if world.chance(world.weather.half / 4):
            raise Unavailable("the database went away, and nobody knows whether it was committed")
        await world.interrupt_sometimes()
        return value

    async def read(self, fn: Callable[Concatenate[Connection, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        await self._world.interrupt_sometimes()
        if self.is_unavailable:
            raise Unavailable("the database is away")
        with self._ground.connection.begin():
            return fn(self._ground.connection, *args, **kwargs)
