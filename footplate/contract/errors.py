"""The tree of all errors.

    FootplateError                 the root: every error has a code, a message and a hint
    ├── InvalidSpec                many Problems at once, each with a JSON pointer        422
    ├── UnknownComponent           a name that is not registered                          422
    ├── NotAvailableYet            understood, but not built yet                          422
    ├── NotFound                   it does not exist, or belongs to another project       404
    ├── Conflict                   the job's state does not allow the request             409
    ├── PreconditionFailed         If-Match names an old version                          412
    ├── IdempotencyMismatch        the key was used with another body                     422
    ├── Unavailable                Redis, SQL or a node is unreachable; try again         503
    ├── Unauthorized / Forbidden   no key, or a key without the right                     401 / 403
    ├── SettingsError              a setting is wrong, so the process does not start
    └── AttemptError               an attempt failed
        ├── NoValidCheckpoint      there are checkpoints, but none verifies
        ├── CheckpointCorrupt      this checkpoint does not verify
        ├── DatasetError           missing, changed or unreadable data
        ├── NotFetched             a file on a hub or at a URL cannot be fetched
        ├── NotBuildable           a component cannot be built from its arguments
        └── OwnCodeError           the user's own code cannot be used

A code is stable: programs may compare it. A message may be reworded.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from difflib import get_close_matches
from itertools import islice
from types import FunctionType
from typing import Any


@dataclass(frozen=True, slots=True)
class Problem:
    """A mistake in a request body. `pointer` (RFC 6901) names the field, and `hint` says what would work."""

    pointer: str
    code: str
    detail: str
    hint: str | None = None
    expected: tuple[str, ...] = field(default=(), compare=False, repr=False)
    """The names or the type that would be accepted, from which hints are made. Clients read them in `detail` only."""

    def __str__(self) -> str:
        return f"{self.pointer or '/'}: {self.detail}" + (f" ({self.hint})" if self.hint else "")

    def as_dict(self) -> dict[str, Any]:
        names = ("pointer", "code", "detail", "hint")
        return {name: value for name in names if (value := getattr(self, name)) is not None}


class FootplateError(Exception):
    """The base of all errors. `code` is stable, `message` says what happened, and `hint` says what would work."""

    code = "internal"
    status = 500
    title = "Something went wrong"

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        # A script's user sees only what Python prints. A class of ours with its own __str__ prints the hint itself.
        if hint and not isinstance(type(self).__str__, FunctionType):
            self.add_note(hint)


class InvalidSpec(FootplateError):
    """A body that cannot be accepted, with all of its problems."""

    code = "invalid_spec"
    status = 422
    title = "The request body is not valid"

    def __init__(self, problems: Sequence[Problem]) -> None:
        first_problem = f"{problems[0].pointer or '/'}: {problems[0].detail}" if problems else "no problem given"
        further_count = len(problems) - 1
        suffix = f" (and {further_count} more problem{'s' if further_count > 1 else ''})" if further_count > 0 else ""
        super().__init__(first_problem + suffix)
        self.problems = list(problems)


MOST_KNOWN = 30
"""The largest number of known names in a message."""


class UnknownComponent(FootplateError):
    """A name that is not registered. The message lists the known names, and the hint the nearest one."""

    code = "unknown_component"
    status = 422
    title = "Unknown component"

    def __init__(self, kind: str, name: str, known: Iterable[str]) -> None:
        names = sorted(known)
        text = f"no {kind} named {name!r}. Known: {listing(names, MOST_KNOWN) or 'none'}."
        super().__init__(text, hint=did_you_mean(name, names))
        self.kind, self.name, self.known = kind, name, names


class NotAvailableYet(FootplateError):
    """Raised for a request that is valid, but that this version does not support."""

    code = "not_available_yet"
    status = 422
    title = "Not available yet"


class NotFound(FootplateError):
    """Raised if a resource does not exist, or belongs to another project.

    `parameter` is the field of a request to OpenAI's API that names the resource.
    """

    code = "not_found"
    status = 404
    title = "Not found"

    def __init__(self, message: str, *, hint: str | None = None, parameter: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.parameter = parameter


class Conflict(FootplateError):
    """The job's state does not allow the request. `allowed` names the actions that it does allow."""

    code = "conflict"
    status = 409
    title = "The job's state does not allow this"

    def __init__(self, message: str, *, hint: str | None = None, state: str = "", allowed: Sequence[str] = ()) -> None:
        super().__init__(message, hint=hint)
        self.state, self.allowed = state, list(allowed)


class PreconditionFailed(FootplateError):
    """If-Match named an old version of the job."""

    code = "version_changed"
    status = 412
    title = "The job has changed since you read it"


class IdempotencyMismatch(FootplateError):
    """This Idempotency-Key was used with another body."""

    code = "idempotency_key_reused"
    status = 422
    title = "Idempotency-Key already used with another body"


class Unauthorized(FootplateError):
    code = "unauthorized"
    status = 401
    title = "A key is needed"


class Forbidden(FootplateError):
    code = "forbidden"
    status = 403
    title = "Not allowed"


class Unavailable(FootplateError):
    """Raised if Redis, SQL, the artifact store or a node is unreachable. A client may retry."""

    code = "unavailable"
    status = 503
    title = "Not available right now"
    retry_after_seconds = 2


class SettingsError(FootplateError):
    """A setting is wrong, so the process does not start. The message says what would work."""

    code = "bad_settings"


class AttemptError(FootplateError):
    """An attempt failed; the code becomes the job's `error.code`."""

    code = "error"


class CheckpointCorrupt(AttemptError):
    code = "checkpoint_corrupt"


class NoValidCheckpoint(AttemptError):
    code = "no_valid_checkpoint"


class DatasetError(AttemptError):
    code = "dataset_error"


class NotFetched(AttemptError):
    """Raised if a file on a hub or at a URL cannot be fetched. The code names the reason, such as dataset_not_found."""

    def __init__(self, code: str, message: str, *, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.code = code


class NotBuildable(AttemptError):
    """Raised if a component cannot be built from its arguments. The job is not retried."""

    code = "not_buildable"


class OwnCodeError(AttemptError):
    """Raised if the user's own code cannot be used. `trace` is the traceback without our frames."""

    code = "own_code_error"

    def __init__(self, message: str, *, hint: str | None = None, trace: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.trace = trace


MOST_HINTS = 10
MAX_HINT_NAMES, MAX_HINT_CHARACTERS = 500, 80
_hints_left: ContextVar[list[int] | None] = ContextVar("hints_left", default=None)


@contextmanager
def few_hints() -> Iterator[None]:
    """Limits `did_you_mean` to `MOST_HINTS` searches inside the `with` block.

    A body can be nothing but misspelt names, and a search among a hundred names takes a millisecond.
    """
    token = _hints_left.set([MOST_HINTS])
    try:
        yield
    finally:
        _hints_left.reset(token)


MIN_BEGINNING = 4
"""The smallest number of characters of a name that can be a hint for a longer name with this beginning."""


def listing(names: Sequence[str], most: int, separator: str = ", ") -> str:
    """Returns the first names, at most `most` of them, and the number of the others, as `a, b and 3 more`."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return separator.join(names[:most]) + more


def did_you_mean(name: str, choices: Iterable[str]) -> str | None:
    """Returns `did you mean 'accuracy'?`, or None if no name is near or `few_hints` has used up its searches."""
    if (searches_left := _hints_left.get()) is not None:
        searches_left[0] -= 1
        if searches_left[0] < 0:
            return None
    short_names = [candidate for candidate in islice(choices, MAX_HINT_NAMES) if len(candidate) <= MAX_HINT_CHARACTERS]
    name = name[:MAX_HINT_CHARACTERS]
    # `adam` means adamw_torch, and not ademamix, which has more letters in common.
    longer_names = [choice for choice in short_names if len(name) >= MIN_BEGINNING and choice.startswith(name)]
    if not (nearest_names := longer_names or get_close_matches(name, short_names, n=1, cutoff=0.6)):
        # `DDP` means ddp, though no letter is the same.
        nearest_names = [choice for choice in short_names if choice.lower().startswith(name.lower()) and len(name) > 1]
    return f"did you mean {nearest_names[0]!r}?" if nearest_names else None
