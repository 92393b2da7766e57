"""A simulated Redis with lists, one stream and strings, whose connections may break at any point."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Self

from redis.exceptions import ConnectionError as NoConnection
from redis.exceptions import TimeoutError as NoAnswer

from footplate.contract import redis_keys

if TYPE_CHECKING:
    from tests.simulation.books import Books
    from tests.simulation.world import World


def _bytes(value: Any) -> bytes:
    return value if isinstance(value, bytes) else str(value).encode()


class Redis:
    """The server, which may lose all data at any moment."""

    def __init__(self, world: World, books: Books) -> None:
        self.world, self.books = world, books
        self.is_unavailable = False
        self.empty()

    def empty(self) -> None:
        self.strings: dict[str, bytes] = {}
        self.lists: dict[str, list[bytes]] = {}
        self.stream: dict[bytes, dict[bytes, bytes]] = {}
        self._entries = getattr(self, "_entries", 0)

    def push(self, key: str, raw: bytes) -> None:
        self.lists.setdefault(key, []).append(raw)

    def pop(self, key: str) -> bytes | None:
        waiting = self.lists.get(key)
        if not waiting:
            return None
        raw = waiting.pop(0)
        if key == redis_keys.INBOX:
            self.books.on_read(raw)
        return raw

    def pop_all(self, key: str) -> list[bytes]:
        return self.lists.pop(key, [])

    def add(self, fields: dict[bytes, bytes]) -> None:
        self._entries += 1
        self.stream[b"%d-0" % self._entries] = fields

    def set(self, key: str, value: bytes, *, nx: bool = False) -> bool:
        if nx and key in self.strings:
            return False
        if key.startswith("fp:mark:"):
            self.books.says_stored(key, int(value))
        self.strings[key] = value
        return True

    @property
    def is_idle(self) -> bool:
        return not self.stream and not self.lists.get(redis_keys.INBOX)


class Commands:
    """Commands of a pipeline. Pushes travel as messages, and all other commands run at once."""

    def __init__(self, redis: Redis, reach: Callable[[], None]) -> None:
        self._redis, self._reach = redis, reach
        self._commands: list[Callable[[], Any]] = []

    def get(self, key: str) -> None:
        self._commands.append(lambda: self._redis.strings.get(key))

    def set(self, key: str, value: Any, ex: int | None = None) -> None:
        self._commands.append(lambda: self._redis.set(key, _bytes(value)))

    def rpush(self, key: str, raw: Any) -> None:
        message = _bytes(raw)
        self._redis.books.on_push(key, message)
        self._commands.append(lambda: self._redis.world.transmit(lambda: self._redis.push(key, message)))

    def xadd(self, key: str, fields: dict[str, bytes]) -> None:
        entry = {name.encode(): value for name, value in fields.items()}
        self._commands.append(lambda: self._redis.world.transmit(lambda: self._redis.add(entry)))

    def xdel(self, key: str, *entries: bytes) -> None:
        self._commands.append(lambda: [self._redis.stream.pop(entry, None) for entry in entries])

    def expire(self, key: str, seconds: int) -> None:
        self._commands.append(lambda: None)

    def ltrim(self, key: str, first: int, last: int) -> None:
        self._commands.append(lambda: None)

    def do(self) -> list[Any]:
        """Runs the commands. A broken connection may run only some of them, because a pipeline is not a transaction."""
        self._reach()
        commands, self._commands = self._commands, []
        world = self._redis.world
        if world.chance(world.weather.half):
            for command in commands[: world.dice.randint(0, len(commands))]:
                command()
            raise NoAnswer("the connection broke in the middle of a pipeline")
        return [command() for command in commands]


class Line:
    """The Redis client of a worker. `is_cut` cuts off only this client."""

    def __init__(self, redis: Redis) -> None:
        self.redis = redis
        self.is_cut = False

    def pipeline(self, transaction: bool = False) -> SyncPipeline:
        return SyncPipeline(self.redis, self.reach)

    def reach(self) -> None:
        if self.is_cut or self.redis.is_unavailable:
            raise NoConnection("nobody answers")

    def pop(self, key: str) -> bytes | None:
        self.reach()
        return self.redis.pop(key)

    def pop_all(self, key: str) -> list[bytes]:
        self.reach()
        return self.redis.pop_all(key)


class SyncPipeline(Commands):
    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None: ...

    def execute(self) -> list[Any]:
        return self.do()


class AsyncPipeline(Commands):
    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None: ...

    async def execute(self) -> list[Any]:
        await self._redis.world.interrupt_sometimes()
        answers = self.do()
        await self._redis.world.interrupt_sometimes()
        return answers


class AsyncLine:
    """The Redis client of control, with the names of redis.asyncio. Blocking reads return at once."""

    def __init__(self, redis: Redis) -> None:
        self._redis, self._world = redis, redis.world

    def reach(self) -> None:
        if self._redis.is_unavailable:
            raise NoConnection("nobody answers")

    async def blpop(self, names: list[str], timeout: float) -> tuple[str, bytes] | None:
        await self._world.interrupt_sometimes()
        self.reach()
        for name in names:
            if (raw := self._redis.pop(name)) is not None:
                return name, raw
        return None

    async def lpop(self, name: str, count: int) -> list[bytes]:
        self.reach()
        item = (self._redis.pop(name) for _ in range(count))
        messages = [raw for raw in item if raw is not None]
        await self._world.interrupt_sometimes()
        return messages

    async def xread(self, streams: dict[str, str], count: int, block: int) -> list[Any]:
        self.reach()
        entries = list(self._redis.stream.items())[:count]
        await self._world.interrupt_sometimes()
        return [[next(iter(streams)), entries]] if entries else []

    async def set(self, key: str, value: Any, nx: bool = False) -> bool:
        await self._world.interrupt_sometimes()
        self.reach()
        return self._redis.set(key, _bytes(value), nx=nx)

    def pipeline(self, transaction: bool = False) -> AsyncPipeline:
        return AsyncPipeline(self._redis, self.reach)


class CeleryProducer:
    """Replaces the producer of Celery. Pushes a message with ids into the queue of the node."""

    def __init__(self, redis: Redis) -> None:
        self._redis = redis

    def send(self, node: str, job: str, attempt: int, fence: int) -> None:
        if self._redis.is_unavailable:
            raise NoConnection("nobody answers")
        message = f"{job} {attempt} {fence}".encode()
        self._redis.world.transmit(lambda: self._redis.push(redis_keys.queue(node), message))  # type: ignore[arg-type]

    def warm(self) -> None: ...

    def close(self) -> None: ...


def parted(raw: bytes) -> Iterable[str]:
    return raw.decode().split()
