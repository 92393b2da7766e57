"""The caller of a request: the project and the scopes of its key, and the checks whether they allow the request."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, NamedTuple, TypeVar

from footplate.contract.errors import Forbidden
from footplate.contract.ids import KeyId
from service.rate_limit import Quota

EVERYWHERE = "*"
"""The project of a key that is valid for every project."""
DEFAULT_PROJECT = "default"
CALLER = "footplate.caller"
"""The name in an ASGI scope under which the guard stores the caller."""
Handler = TypeVar("Handler", bound=Callable[..., Any])


class Scope(StrEnum):
    READ = "read"
    """Allows GET requests and streams."""
    SUBMIT = "submit"
    """Allows to submit jobs, and verbs on jobs."""
    CODE = "code"
    """Allows bundles, and specs with users' own code."""
    ADMIN = "admin"
    """Allows keys, webhooks and all that the other scopes allow. In a key for every project, also allows drains."""


@dataclass(frozen=True, slots=True)
class Caller:
    name: str
    reach: str
    """The project that the caller may see, or EVERYWHERE."""
    scopes: frozenset[Scope]
    key: KeyId | None = None
    prefix: str | None = None
    asked: str | None = None
    """The project that this request names, if the caller may see every project."""
    quota: Quota = field(default_factory=Quota, compare=False, repr=False)

    @property
    def project(self) -> str:
        """The project whose jobs and files this request reads or changes."""
        return (self.asked or DEFAULT_PROJECT) if self.is_everywhere else self.reach

    @property
    def is_everywhere(self) -> bool:
        return self.reach == EVERYWHERE

    @property
    def by(self) -> str | None:
        """The name of the key for histories and logs. None: the service has no keys."""
        return f"{self.name} ({self.prefix})" if self.prefix else self.name or None

    @property
    def limit(self) -> str | None:
        """The project that limits what this request may see, or None if it may see every project."""
        return None if self.is_everywhere and self.asked is None else self.project

    def in_project(self, project: str | None) -> Caller:
        """Returns the caller of a request that names a project. Raises Forbidden if the key is of another project."""
        if project is None or project == self.project:
            return self
        if not self.is_everywhere:
            raise Forbidden(f"this key acts on project {self.reach!r} only", hint="leave the project out")
        return replace(self, asked=project)

    def may_submit_to(self, project: str) -> bool:
        return self.limit in (None, project)

    def may(self, scope: Scope) -> bool:
        return scope in self.scopes or Scope.ADMIN in self.scopes

    def require(self, needed: Needed) -> None:
        """Raises Forbidden if the caller lacks the scope. The error names the scope."""
        if not self.may(needed.scope):
            scopes = ", ".join(sorted(self.scopes)) or "none"
            hint = "ask the administrator of the project for a key with that scope"
            raise Forbidden(
                f"the request needs a key with the scope '{needed.scope}'; this key has: {scopes}", hint=hint
            )
        if needed.everywhere and not self.is_everywhere:
            text = f"the request acts on every project, but this key is valid for project {self.reach!r} only"
            raise Forbidden(text, hint=f"use a key of project '{EVERYWHERE}' with the scope '{needed.scope}'")


class Needed(NamedTuple):
    """The scope that a route needs, and whether the key must be valid for every project."""

    scope: Scope
    everywhere: bool = False


NOBODY = Caller("", "", frozenset())
"""The caller of an address that needs no key."""
_NEEDED: dict[Any, Needed] = {}


def needs(scope: Scope, *, everywhere: bool = False) -> Callable[[Handler], Handler]:
    """Decorates a route with the scope that it needs. Other routes need `read` for GET, and else `submit`.

    A route whose scope depends on the body calls `services.caller.require(Needed(Scope.CODE))`.
    """

    def mark(handler: Handler) -> Handler:
        _NEEDED[handler] = Needed(scope, everywhere)
        return handler

    return mark


def needed_by(handler: Any, methods: Collection[str]) -> Needed:
    return _NEEDED.get(handler) or (READS if set(methods) <= {"GET", "HEAD"} else SUBMITS)


READS = Needed(Scope.READ)
SUBMITS = Needed(Scope.SUBMIT)
