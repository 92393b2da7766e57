"""The tree of the client's errors.

    FootplateError                   the root: every error has a message and a hint
    ├── Unreachable                  the service does not answer, or has stopped answering
    ├── WaitTimeout                  the job had not ended in time (a TimeoutError too)
    ├── DownloadFailed               a file did not arrive as the service announced it
    ├── JobEnded                     raised by raise_for_status(): the job, and the reason
    │   ├── JobFailed                code, message, hint and the tail of its traceback
    │   └── JobCancelled
    └── ApiError                     a refusal: status, code, request_id, problems with their pointers
        ├── InvalidRequest           413, 415, 422 and other 4xx
        ├── Unauthorized, Forbidden  401, 403
        ├── NotFound                 404
        ├── Conflict                 409, with the job's state and what it allows
        ├── VersionChanged           412
        └── ServiceError             429 and 5xx, after every retry that was safe

A code is stable: programs may compare it. A message may be reworded.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from footplate.contract.errors import FootplateError as FootplateError
from footplate.contract.errors import Problem as Problem

if TYPE_CHECKING:
    from footplate.sdk.models import JobInfo


class Unreachable(FootplateError):
    code = "unreachable"
    title = "No service answers"


class WaitTimeout(FootplateError, TimeoutError):
    code = "wait_timeout"
    title = "The job did not end in time"


class DownloadFailed(FootplateError):
    code = "download_failed"
    title = "A file was not downloaded completely"


class JobEnded(FootplateError):
    """The job did not succeed. `job` has its state."""

    title = "The job did not succeed"

    def __init__(self, job: JobInfo) -> None:
        self.job = job
        error = job.error
        self.code = error.code if error else job.reason
        self.rank = error.rank if error else None
        self.traceback = error.traceback if error else None
        """The end of the traceback, as the job reported it."""
        message = error.message if error else (job.message or job.reason)
        super().__init__(f"{job.id} {job.state}: {message}", hint=error.hint if error else None)

    def __str__(self) -> str:
        """Adds what a notebook should show: the hint, and the traceback in the user's own code."""
        parts = [self.message, self.hint and f"hint: {self.hint}", self.traceback]
        return "\n".join(part for part in parts if part)


class JobFailed(JobEnded):
    pass


class JobCancelled(JobEnded):
    pass


class ApiError(FootplateError):
    """A refusal by the service, in application/problem+json."""

    def __init__(self, status: int, document: Mapping[str, Any]) -> None:
        self.status = status
        self.code = str(document.get("code") or "http_error")
        self.title = str(document.get("title") or "")
        self.request_id = str(document.get("request_id") or "")
        entries = document.get("errors")
        self.problems = (
            [_problem(entry) for entry in entries if isinstance(entry, dict)] if isinstance(entries, list) else []
        )
        detail = document.get("detail") or self.title or f"the service answered {status}"
        super().__init__(str(detail), hint=document.get("hint") or None)

    def __str__(self) -> str:
        """Returns every problem on a line of its own, and the id of the request in the service's log."""
        lines = [str(problem) for problem in self.problems]
        if not lines:
            lines = [self.message + (f" ({self.hint})" if self.hint else "")]
        if self.request_id and self.status >= 500:
            lines.append(f"request id: {self.request_id}")
        return "\n".join(lines)


class InvalidRequest(ApiError):
    pass


class Unauthorized(ApiError):
    def __init__(self, status: int, document: Mapping[str, Any]) -> None:
        """Replaces the service's hint, which is about HTTP headers, by how to pass a key in Python."""
        hint = "set FOOTPLATE_API_KEY to a valid key, or pass one in Python: Client(url, api_key)"
        super().__init__(status, {**document, "hint": hint})


class Forbidden(ApiError):
    pass


class NotFound(ApiError):
    pass


class Conflict(ApiError):
    def __init__(self, status: int, document: Mapping[str, Any]) -> None:
        super().__init__(status, document)
        self.state = str(document.get("state") or "")
        self.allowed = [str(action) for action in document.get("allowed") or ()]


class VersionChanged(ApiError):
    pass


class ServiceError(ApiError):
    pass


_BY_STATUS: dict[int, type[ApiError]] = {
    401: Unauthorized,
    403: Forbidden,
    404: NotFound,
    409: Conflict,
    412: VersionChanged,
    421: Forbidden,
    429: ServiceError,
}


def of_answer(status: int, document: Mapping[str, Any]) -> ApiError:
    """Returns the exception for an answer of 4xx or 5xx."""
    kind = _BY_STATUS.get(status, InvalidRequest if status < 500 else ServiceError)
    return kind(status, document)


def invalid(code: str, detail: str, hint: str | None = None) -> InvalidRequest:
    """Returns the error for a mistake that is found before a request is sent."""
    return InvalidRequest(422, {"code": code, "detail": detail, "hint": hint})


def not_found(detail: str, hint: str | None = None) -> NotFound:
    """Returns the error for a name that none of the listed resources has."""
    return NotFound(404, {"code": "not_found", "detail": detail, "hint": hint})


def _problem(fields: Mapping[str, Any]) -> Problem:
    return Problem(
        str(fields.get("pointer", "")), str(fields.get("code", "")), str(fields.get("detail", "")), fields.get("hint")
    )
