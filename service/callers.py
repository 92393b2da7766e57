"""Who asks, and what he may: a key has a project and scopes, and both travel with every request."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, NamedTuple, TypeVar

from footplate.contract.errors import Forbidden
from footplate.contract.ids import KeyId
from service.problems import TooManyRequests

EVERYWHERE = "*"
"""The project of a key that is good for all of them."""
DEFAULT_PROJECT = "default"
BURST_SECONDS = 5.0
"""A key that was quiet may send so many seconds' worth at once."""
CALLER = "footplate.caller"
"""Where the guard leaves who asks in the scope."""
Handler = TypeVar("Handler", bound=Callable[..., Any])


class Scope(StrEnum):
    READ = "read"
    """Everything that only looks: GETs and streams."""
    SUBMIT = "submit"
    """Jobs, and verbs on them."""
    CODE = "code"
    """Bundles, and specs that bring code of their own."""
    ADMIN = "admin"
    """The project's keys, and all that the other scopes allow; of a key for every project: nodes too."""


class Standing:
    """What one key is doing at this process now: how fast it asks, and what it holds open."""

    def __init__(self, rate: float = 0.0, most_open: int = 0, who: str = "this key") -> None:
        self._rate, self._most_open, self._who = rate, most_open, who
        self._tokens, self._counted_at = rate * BURST_SECONDS, time.monotonic()
        self._open: set[Callable[[], object]] = set()

    def count(self, now: float) -> None:
        """Raises TooManyRequests when the bucket is empty. Without a rate nobody counts."""
        if not self._rate:
            return
        filled = self._tokens + (now - self._counted_at) * self._rate
        self._tokens, self._counted_at = min(filled, self._rate * BURST_SECONDS) - 1.0, now
        if self._tokens < 0:
            self._tokens += 1.0
            seconds = (1.0 - self._tokens) / self._rate
            raise TooManyRequests(f"{self._who} sends more than {self._rate:g} requests a second", wait_seconds=seconds)

    def require_room(self) -> None:
        if self._most_open and len(self._open) >= self._most_open:
            raise TooManyRequests(f"this key has {self._most_open} streams open, and may have no more", wait_seconds=15)

    @contextmanager
    def holding(self, end: Callable[[], object]) -> Iterator[None]:
        """Something stays open, and `end` is called when the key is deleted or expires meanwhile."""
        self._open.add(end)
        try:
            yield
        finally:
            self._open.discard(end)

    def end_all(self) -> None:
        for end in list(self._open):
            end()


@dataclass(frozen=True, slots=True)
class Caller:
    name: str
    reach: str
    """The project that it may see, or EVERYWHERE."""
    scopes: frozenset[Scope]
    key: KeyId | None = None
    prefix: str | None = None
    asked: str | None = None
    """The project that this request names, of a caller who may see every one."""
    standing: Standing = field(default_factory=Standing, compare=False, repr=False)

    @property
    def project(self) -> str:
        """Whose things this request is about."""
        return (self.asked or DEFAULT_PROJECT) if self.is_everywhere else self.reach

    @property
    def is_everywhere(self) -> bool:
        return self.reach == EVERYWHERE

    @property
    def by(self) -> str | None:
        """Who did it, for histories and logs. None: nobody was asked for a key."""
        return f"{self.name} ({self.prefix})" if self.prefix else self.name or None

    def about(self, project: str | None) -> Caller:
        """The same, for a request that names a project. Raises Forbidden for another one, be it there or not."""
        if project is None or project == self.project:
            return self
        if not self.is_everywhere:
            raise Forbidden(f"this key acts on project {self.reach!r} only", hint="leave the project out")
        return replace(self, asked=project)

    def may_submit_to(self, project: str) -> bool:
        return project == self.project or (self.is_everywhere and self.asked is None)

    def may(self, scope: Scope) -> bool:
        return scope in self.scopes or Scope.ADMIN in self.scopes

    def require(self, needed: Needed) -> None:
        """Raises Forbidden, naming the scope that is missing."""
        if not self.may(needed.scope):
            has = ", ".join(sorted(self.scopes)) or "none"
            hint = "ask whoever gave you the key for one with that scope"
            raise Forbidden(f"this needs a key with the scope '{needed.scope}'; this key has: {has}", hint=hint)
        if needed.everywhere and not self.is_everywhere:
            text = f"this is about every project, and this key is of project {self.reach!r} only"
            raise Forbidden(text, hint=f"it needs a key of project '{EVERYWHERE}' with the scope '{needed.scope}'")


class Needed(NamedTuple):
    """What a route asks of its caller."""

    scope: Scope
    everywhere: bool = False


NOBODY = Caller("", "", frozenset())
"""Who sent no key to a path that asks for none."""
_NEEDED: dict[Any, Needed] = {}


def needs(scope: Scope, *, everywhere: bool = False) -> Callable[[Handler], Handler]:
    """Below a route's decorator: the scope that it needs. Without it GET needs `read`, and all else `submit`.

    A scope that depends on the body is asked for inside: `services.caller.require(Needed(Scope.CODE))`.
    """

    def mark(handler: Handler) -> Handler:
        _NEEDED[handler] = Needed(scope, everywhere)
        return handler

    return mark


def needed_by(handler: Any, methods: Collection[str]) -> Needed:
    return _NEEDED.get(handler) or (READS if set(methods) <= {"GET", "HEAD"} else SUBMITS)


READS = Needed(Scope.READ)
SUBMITS = Needed(Scope.SUBMIT)
