"""What can go wrong, as one tree.

    FootplateError                 code, message, hint; every one of ours carries all three
    ├── InvalidSpec                many Problems at once, each with a JSON pointer        422
    ├── UnknownComponent           a name that nobody registered                          422
    ├── NotAvailableYet            understood, and not built yet                          422
    ├── NotFound                   no such thing here (or not yours: the same answer)     404
    ├── Conflict                   the state cannot serve this                            409
    ├── PreconditionFailed         If-Match names a version that is gone                  412
    ├── IdempotencyMismatch        the key was used with another body                     422
    ├── Unavailable                a part that we need is away; try again                 503
    ├── Unauthorized / Forbidden   no key, or one that may not                            401 / 403
    ├── SettingsError              refuses to start, with the sentence that says why
    └── AttemptError               an attempt ended badly, and why
        ├── NoValidCheckpoint      had some, none verifies
        ├── CheckpointCorrupt      this one does not verify
        ├── DatasetError           missing, changed or unreadable data
        ├── NotFetched             what lies on a hub or at a URL, and cannot be had from there
        ├── NotBuildable           a named part cannot be made from what it was given
        └── OwnCodeError           the user's own code cannot be used: where, and why

A code is stable: programs may compare it. A message may be reworded.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import asdict, dataclass
from difflib import get_close_matches
from itertools import islice
from typing import Any


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing wrong with a body: where (an RFC 6901 pointer), what, and what would work."""

    pointer: str
    code: str
    detail: str
    hint: str | None = None

    def as_dict(self) -> dict[str, Any]:
        return {name: value for name, value in asdict(self).items() if value is not None}


class FootplateError(Exception):
    """Root of the tree. `code` is stable; `message` says what happened to what; `hint` says what would work."""

    code = "internal"
    status = 500
    title = "Something went wrong"

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        # A script's user has nothing but what Python prints; some of ours print it themselves.
        if hint and type(self).__str__ is Exception.__str__:
            self.add_note(hint)


class InvalidSpec(FootplateError):
    """A body that cannot be accepted: every problem at once."""

    code = "invalid_spec"
    status = 422
    title = "The request body is not valid"

    def __init__(self, problems: Sequence[Problem]) -> None:
        first = f"{problems[0].pointer or '/'}: {problems[0].detail}" if problems else "no problem given"
        others = len(problems) - 1
        more = f" (and {others} more problem{'s' if others > 1 else ''})" if others > 0 else ""
        super().__init__(first + more)
        self.problems = list(problems)


class UnknownComponent(FootplateError):
    """A name that nobody registered, answered with the nearest and the known."""

    code = "unknown_component"
    status = 422
    title = "Unknown component"

    def __init__(self, kind: str, name: str, known: Iterable[str]) -> None:
        names = sorted(known)
        super().__init__(
            f"no {kind} named {name!r}. Known: {', '.join(names) or 'none'}.", hint=did_you_mean(name, names)
        )
        self.kind, self.name, self.known = kind, name, names


class NotAvailableYet(FootplateError):
    """Understood, and not built yet: refused with that reason rather than ignored."""

    code = "not_available_yet"
    status = 422
    title = "Not available yet"


class NotFound(FootplateError):
    """No such thing here. Another project's id gets the same answer."""

    code = "not_found"
    status = 404
    title = "Not found"


class Conflict(FootplateError):
    """The state it is in cannot serve this; `allowed` names what it can."""

    code = "conflict"
    status = 409
    title = "The job's state does not allow this"

    def __init__(self, message: str, *, hint: str | None = None, state: str = "", allowed: Sequence[str] = ()) -> None:
        super().__init__(message, hint=hint)
        self.state, self.allowed = state, list(allowed)


class PreconditionFailed(FootplateError):
    """If-Match named a version that is no longer the job's."""

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
    """A part that we need is away. Try again after `retry_after_seconds`."""

    code = "unavailable"
    status = 503
    title = "Not available right now"
    retry_after_seconds = 2


class SettingsError(FootplateError):
    """Refuses to start, with the sentence that says what is wrong and what would work."""

    code = "bad_settings"


class AttemptError(FootplateError):
    """An attempt ended badly; the code becomes the job's `error.code`."""

    code = "error"


class CheckpointCorrupt(AttemptError):
    code = "checkpoint_corrupt"


class NoValidCheckpoint(AttemptError):
    code = "no_valid_checkpoint"


class DatasetError(AttemptError):
    code = "dataset_error"


class NotFetched(AttemptError):
    """What a spec names on a hub, or by a URL, is not to be had. The code says what of: `dataset_not_found`."""

    def __init__(self, code: str, message: str, *, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.code = code


class NotBuildable(AttemptError):
    """A named part cannot be made from what it was given: no other attempt would change that."""

    code = "not_buildable"


class OwnCodeError(AttemptError):
    """The user's own code cannot be used. `trace` is what he would see if he ran it himself."""

    code = "own_code_error"

    def __init__(self, message: str, *, hint: str | None = None, trace: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.trace = trace


MOST_HINTS = 10
MAX_HINT_NAMES, MAX_HINT_CHARACTERS = 500, 80
_hints_left: ContextVar[list[int] | None] = ContextVar("hints_left", default=None)


@contextmanager
def few_hints() -> Iterator[None]:
    """Limits `did_you_mean` to `MOST_HINTS` searches while it is open: a body can be nothing but misspelt names, and a
    search among a hundred names takes a millisecond."""
    token = _hints_left.set([MOST_HINTS])
    try:
        yield
    finally:
        _hints_left.reset(token)


def did_you_mean(name: str, known: Iterable[str]) -> str | None:
    """`did you mean 'accuracy'?`, or None when nothing is near, or when nobody looks: see `few_hints`."""
    if (left := _hints_left.get()) is not None:
        left[0] -= 1
        if left[0] < 0:
            return None
    short = [one for one in islice(known, MAX_HINT_NAMES) if len(one) <= MAX_HINT_CHARACTERS]
    near = get_close_matches(name[:MAX_HINT_CHARACTERS], short, n=1, cutoff=0.6)
    return f"did you mean {near[0]!r}?" if near else None
