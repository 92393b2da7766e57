"""The asynchronous operations on jobs. `blocking.py` derives the blocking ones from them."""

from __future__ import annotations

import json
import os
import time
import uuid
from collections.abc import AsyncGenerator, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeAlias, TypedDict, Unpack

from footplate.contract.lifecycle import JobState
from footplate.contract.resources.jobs import PredictionList
from footplate.errors import JobCancelled, JobFailed, invalid
from footplate.sdk.checkpoints import AsyncCheckpoints
from footplate.sdk.files import AsyncOutputs
from footplate.sdk.finding import find
from footplate.sdk.follow import EventPosition, comma_separated, follow, read_event
from footplate.sdk.lists import AsyncListing
from footplate.sdk.metrics import AsyncMetrics, printed_lines, rows_after, series_params
from footplate.sdk.models import (
    Attempt,
    Event,
    Failure,
    JobInfo,
    Line,
    Outcome,
    Progress,
    Series,
    Validation,
)
from footplate.sdk.notebook import LiveCell, job_card, job_table, plot
from footplate.sdk.request import (
    ApiRequest,
    all_resources,
    listed,
    read,
    send,
    send_for,
    send_for_page,
    send_json,
)
from footplate.sdk.texts import Prompt, generated
from footplate.sdk.wire import Wire

if TYPE_CHECKING:
    from footplate.contract.spec import JobSpec  # not at run time: the import takes as long as that of the whole client

Spec: TypeAlias = "JobSpec | Mapping[str, Any] | str | os.PathLike[str] | None"
"""A JobSpec, a dict with the JSON of a spec, the path of a JSON file, or None if keywords give all fields."""


class Filters(TypedDict, total=False):
    """The filters of `list`. A job must match all of them."""

    state: str | Sequence[str]
    tag: str
    name: str
    project: str
    created_after: str
    """A time in RFC 3339 with an offset, inclusive."""
    created_before: str
    sort: str


class Amendments(TypedDict, total=False):
    name: str | None
    tags: Sequence[str]
    metadata: Mapping[str, Any]
    priority: int


class ResumeChanges(TypedDict, total=False):
    """The checkpoint that a resume continues from, and the changes that it can make. Limits may be raised."""

    checkpoint: str
    """"latest", "best" or an id. The newer checkpoints are deleted. A fork keeps them."""
    priority: int
    pool: str
    resources: Mapping[str, Any]
    max_steps: int
    num_train_epochs: float
    time_limit: float | str


class JobView:
    """The properties of a job, as they were when the service answered last."""

    info: JobInfo

    @property
    def id(self) -> str:
        return self.info.id

    @property
    def name(self) -> str | None:
        return self.info.name

    @property
    def state(self) -> str:
        return self.info.state

    @property
    def reason(self) -> str:
        return self.info.reason

    @property
    def progress(self) -> Progress | None:
        return self.info.progress

    @property
    def result(self) -> dict[str, Any] | None:
        return self.info.result

    @property
    def error(self) -> Failure | None:
        return self.info.error

    @property
    def has_ended(self) -> bool:
        return self.info.has_ended

    def raise_for_status(self) -> Self:
        """Raises JobFailed if the job has failed, or JobCancelled if it was cancelled. Otherwise returns the job.

        Sends no request.
        """
        if self.info.has_ended and self.info.state != JobState.SUCCEEDED:
            raise (JobFailed if self.info.state == JobState.FAILED else JobCancelled)(self.info)
        return self

    def _repr_html_(self) -> str:
        return job_card(self)

    def __repr__(self) -> str:
        step_text = f" step {self.progress.steps_text()}" if self.progress else ""
        return f"<{type(self).__name__} {self.id} {self.state}{step_text}>"


class AsyncJobs:
    def __init__(self, wire: Wire, patience: float) -> None:
        self._wire, self._patience = wire, patience

    async def create(self, /, spec: Spec = None, *, idempotency_key: str | None = None, **fields: Any) -> AsyncJob:
        """Submits a job from a spec, the path of a JSON file, or keywords, which replace top-level fields of the spec.

        The request is repeated if its answer is lost. The idempotency key, made here unless you pass one, lets the
        service recognise the same job.
        """
        headers = {"Idempotency-Key": idempotency_key or uuid.uuid4().hex}
        request = ApiRequest.with_json("POST", "/jobs", spec_fields(spec, fields), headers=headers, is_repeatable=True)
        return self._job(await send_for(JobInfo, self._wire, request))

    async def get(self, job: str) -> AsyncJob:
        """Returns a job by its id, its name if only one job has that name, or the beginning or end of its id.

        "@last" is the newest job.
        """
        return self._job(await find(self._wire, job))

    async def validate(self, /, spec: Spec = None, **fields: Any) -> Validation:
        """Checks a spec without creating a job. Returns the effective spec and where the job would run."""
        request = ApiRequest.with_json("POST", "/jobs/validate", spec_fields(spec, fields), is_repeatable=True)
        return await send_for(Validation, self._wire, request)

    def list(self, *, limit: int | None = None, **filters: Unpack[Filters]) -> AsyncListing[AsyncJob]:
        """Returns jobs, newest first, at most `limit`: `async for job in …` page by page, or `await …` for a list."""
        return AsyncListing(self.pages(limit, filters), job_table)

    async def pages(self, limit: int | None, filters: Filters) -> AsyncGenerator[AsyncJob, None]:
        """Yields the jobs of `list`, and requests a page when the one before is used up."""
        params: dict[str, Any] = {**filters, "state": comma_separated(filters.get("state"))}
        async for info in listed(JobInfo, self._wire, "/jobs", limit, **params):
            yield self._job(info)

    async def series(
        self,
        jobs: Iterable[str | JobView],
        *names: str,
        x: str = "step",
        points: int = 1000,
        everything: bool = False,
        first_step: int | None = None,
        last_step: int | None = None,
    ) -> Sequence[Series]:
        """Returns the curves of several jobs, as `job.metrics.series` does for one job. Jobs may be ids or names."""
        ids = [(await self.get(job)).id if isinstance(job, str) else job.id for job in jobs]
        params = series_params(names, x, points, everything, first_step, last_step)
        return await all_resources(Series, self._wire, "/metrics/series", jobs=",".join(ids), **params)

    async def bulk(
        self, action: str, *, ids: Sequence[str] | None = None, mode: str | None = None, **where: Unpack[Filters]
    ) -> Sequence[Outcome]:
        """Applies cancel, pause, resume or delete to many jobs, and returns an outcome for each.

        The jobs are those of `ids`, or all that match the filters and that the action can change. Only cancel has a
        mode.
        """
        body: dict[str, Any] = {"action": action} | ({"mode": mode} if mode is not None else {})
        if ids is not None:
            body["ids"] = list(ids)
        project, filters = where.pop("project", None), dict[str, Any](where)
        if isinstance(filters.get("state"), str):
            filters["state"] = filters["state"].split(",")
        if filters or ids is None:
            body["where"] = filters
        outcomes: list[Outcome] = []
        while True:
            params = {"project": project}
            request = ApiRequest.with_json("POST", "/jobs/bulk", body, is_repeatable=True, params=params)
            page = await send_for_page(self._wire, request)
            outcomes += [read(Outcome, row) for row in page["data"]]
            if page["next_cursor"] is None:
                return outcomes
            body["cursor"] = page["next_cursor"]

    def _job(self, info: JobInfo) -> AsyncJob:
        return AsyncJob(self._wire, info, self._patience)


class AsyncJob(JobView):
    """One job. Its actions change the job and update `info`."""

    def __init__(self, wire: Wire, info: JobInfo, patience: float) -> None:
        self._wire, self.info, self._patience = wire, info, patience
        self._path = f"/jobs/{info.id}"
        self.checkpoints = AsyncCheckpoints(wire, self._path)
        self.outputs = AsyncOutputs(wire, self._path)
        self.metrics = AsyncMetrics(wire, self._path)

    async def refresh(self) -> Self:
        self.info = await send_for(JobInfo, self._wire, ApiRequest("GET", self._path))
        return self

    async def cancel(self, mode: str = "checkpoint") -> Self:
        """Stops the job: "checkpoint" saves first, "graceful" stops at the next step, "kill" stops at once."""
        return await self._act("cancel", {"mode": mode})

    async def pause(self) -> Self:
        return await self._act("pause", {})

    async def resume(self, **changes: Unpack[ResumeChanges]) -> Self:
        """Queues the job again, to continue from its newest checkpoint or, with `checkpoint`, from an older one.

        The checkpoint is "latest", "best" or an id. If it is not the newest, the newer checkpoints are deleted.
        """
        return await self._act("resume", changes)

    async def do(self, *, save: bool = False, evaluate: bool = False, set: Mapping[str, Any] | None = None) -> Self:
        """Requests a checkpoint, an evaluation or new arguments from the running loop, after the current step.

        The arguments that can be set are learning_rate, max_steps, logging_steps, eval_steps and save_steps. Later
        attempts keep the new values. Events of kind `do` have the result.
        """
        commands: dict[str, Any] = {"save": save, "evaluate": evaluate, "set": dict(set or {})}
        return await self._act("do", commands, headers={"Idempotency-Key": uuid.uuid4().hex})

    async def fork(
        self,
        checkpoint: str = "latest",
        *,
        mode: str = "full",
        patch: Mapping[str, Any] | None = None,
        idempotency_key: str | None = None,
    ) -> AsyncJob:
        """Starts another job from a checkpoint of this one: "latest", "best" or an id.

        The mode "weights" takes the weights alone. `patch` is merged into this job's spec, and None removes a field.
        The differences are in the new job's `info.fork`.
        """
        headers = {"Idempotency-Key": idempotency_key or uuid.uuid4().hex}
        body = {"checkpoint": checkpoint, "mode": mode, "patch": dict(patch or {})}
        request = ApiRequest.with_json("POST", f"{self._path}/fork", body, headers=headers, is_repeatable=True)
        return AsyncJob(self._wire, await send_for(JobInfo, self._wire, request), self._patience)

    async def predict(
        self, /, inputs: Sequence[Any], *, checkpoint: str | None = None, wait: float = 60.0, **parameters: Any
    ) -> Sequence[dict[str, Any]]:
        """Runs a checkpoint of the job on rows or texts, and returns a result for each.

        The checkpoint is "latest", "best" or an id. Without one, the job's final model answers. If the model is not
        loaded, a node loads it within `wait` seconds. `parameters` are those of a language model: max_tokens,
        temperature, top_p, stop, seed.
        """
        body = {"inputs": list(inputs), "checkpoint": checkpoint, "wait": wait, "parameters": parameters}
        request = ApiRequest.with_json(
            "POST", f"{self._path}/predict", body, is_repeatable=True, read_seconds=wait + ANSWER_SECONDS
        )
        return list((await send_for(PredictionList, self._wire, request)).data)

    def generate(
        self, /, prompt: Prompt, *, checkpoint: str | None = None, **parameters: Any
    ) -> AsyncGenerator[str, None]:
        """Yields a text that a checkpoint of the job generates, in chunks, while it is generated.

        `prompt` is a text to continue, or a conversation: a list of messages with a role and a content. `parameters`
        are max_tokens, temperature, top_p, stop and seed.
        """
        return generated(self._wire, self.id, prompt, checkpoint, parameters)

    async def export(
        self, folder: str | os.PathLike[str], *, checkpoint: str | None = None, merge: bool = False
    ) -> Sequence[Path]:
        """Writes a model's weights, tokenizer and card to a local folder, for use elsewhere.

        A node makes these files, with the adapters merged into the weights if `merge` is true. Without a checkpoint,
        the job's final model is exported.
        """
        request = ApiRequest.with_json("POST", f"{self._path}/export", {"checkpoint": checkpoint, "merge": merge})
        export_job = AsyncJob(self._wire, await send_for(JobInfo, self._wire, request), self._patience)
        await export_job.wait()
        export_job.raise_for_status()
        return await export_job.outputs.download(folder)

    async def amend(self, *, if_version: int | None = None, **changes: Unpack[Amendments]) -> Self:
        """Changes a job's name, tags, metadata or priority.

        With `if_version`, raises VersionChanged if the job's version is another one.
        """
        headers = {} if if_version is None else {"If-Match": f'"{if_version}"'}
        request = ApiRequest.with_json("PATCH", self._path, changes, headers=headers, is_repeatable=if_version is None)
        self.info = await send_for(JobInfo, self._wire, request)
        return self

    async def delete(self) -> None:
        """Deletes a job that has ended, with its files."""
        await send(self._wire, ApiRequest("DELETE", self._path))

    def events(
        self, *, after: int = 0, kinds: str | Collection[str] | None = None, follow: bool = True
    ) -> AsyncGenerator[Event, None]:
        """Yields the job's events after the number `after`, and with `follow` new ones until it has ended.

        Each event comes once and in order, even if connections break.
        """
        return self._follow(self._position(after, kinds)) if follow else self._history(after, comma_separated(kinds))

    async def wait(self, timeout: float | None = None) -> Self:
        """Waits until the job has succeeded, failed or been cancelled. A paused job has not ended.

        Raises WaitTimeout after `timeout` seconds. A timeout of 0 asks the service once.
        """
        if timeout is not None and timeout <= 0:
            await self.refresh()
        position = self._position(self.info.last_no, "state")
        position.deadline = None if timeout is None else time.monotonic() + timeout
        while not self.info.has_ended:
            position.end = None
            # The service has answered before. If it is unreachable for a moment, the patience applies.
            async for _ in self._follow(position, was_connected=True):
                pass
            self.info = await send_for(JobInfo, self._wire, ApiRequest("GET", self._path), patience=self._patience)
        return self

    def logs(
        self,
        *,
        after: int = 0,
        stream: str | None = None,
        rank: int | None = None,
        grep: str | None = None,
        follow: bool = False,
    ) -> AsyncGenerator[Line, None]:
        """Yields printed lines after the number `after`, filtered by stream, rank and text.

        With `follow`, also yields new lines until the job has ended.
        """
        follow_lines = (lambda last_no: self.events(after=last_no, kinds="line")) if follow else None
        return printed_lines(self._wire, self._path, follow_lines, after, stream=stream, rank=rank, grep=grep)

    async def watch(self) -> Self:
        """Shows the job until it has ended: a live cell in a notebook, and lines elsewhere."""
        cell = LiveCell(self)
        async for event in self.events():
            cell.show(event)
        await self.wait()
        cell.draw()
        return self

    async def plot(
        self,
        *names: str,
        x: str = "step",
        axes: Any = None,
        first_step: int | None = None,
        last_step: int | None = None,
    ) -> Any:
        """Draws curves with matplotlib, all of them if none is named, and returns the axes."""
        curves = await self.metrics.series(*names, x=x, first_step=first_step, last_step=last_step)
        return plot(list(curves.values()), {self.id: self.name or self.id}, x, axes)

    async def attempts(self) -> list[Attempt]:
        return await all_resources(Attempt, self._wire, f"{self._path}/attempts")

    async def spec(self) -> dict[str, Any]:
        """Returns the job's effective spec, which contains every default value."""
        return dict(await send_json(self._wire, ApiRequest("GET", f"{self._path}/spec")))

    def _follow(self, position: EventPosition, *, was_connected: bool = False) -> AsyncGenerator[Event, None]:
        return follow(self._wire, f"{self._path}/stream", position, was_connected=was_connected)

    async def _history(self, after: int, kinds: str | None) -> AsyncGenerator[Event, None]:
        async for row in rows_after(self._wire, f"{self._path}/events", after, kinds=kinds):
            if event := read_event(row):
                yield event

    def _position(self, after: int, kinds: str | Collection[str] | None) -> EventPosition:
        return EventPosition(after, comma_separated(kinds), subject=self.id, patience=self._patience)

    async def _act(self, action: str, body: Mapping[str, Any], **options: Any) -> Self:
        """Sends an action, with retries, because repeating an action changes nothing."""
        request = ApiRequest.with_json("POST", f"{self._path}/{action}", body, is_repeatable=True, **options)
        self.info = await send_for(JobInfo, self._wire, request)
        return self


ANSWER_SECONDS = 600.0
"""The time in seconds that a prediction may take after the model was loaded."""


def spec_fields(spec: Spec, fields: Mapping[str, Any]) -> dict[str, Any]:
    if isinstance(spec, str | os.PathLike):
        spec = _fields_in_file(Path(spec))
    if spec is None or isinstance(spec, Mapping):
        return {**(spec or {}), **fields}
    return {**spec.as_json(), **fields}


def _fields_in_file(path: Path) -> dict[str, Any]:
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        detail = f"{path} cannot be read: {error.strerror}"
        raise invalid("no_such_file", detail, "pass the path of a JSON file, or a dict") from error
    except ValueError as error:
        raise invalid("invalid_json", f"{path} is not JSON: {error}") from error
    if not isinstance(document, dict):
        raise invalid("invalid_json", f"{path} is not a JSON object")
    return document
