"""The blocking half of the SDK. Each method waits for the asynchronous method of the same name.

`waits`, `yields` and `itself` derive a blocking method from an asynchronous one, with its parameters and docstring.
docs/decisions/0038 says why no method is written twice.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator
from functools import update_wrapper
from typing import Any, Concatenate, Generic, ParamSpec, Self, TypeVar, Unpack, overload

from pydantic import PrivateAttr

from footplate.sdk.bundles import AsyncBundles
from footplate.sdk.checkpoints import AsyncCheckpoint, AsyncCheckpoints
from footplate.sdk.files import AsyncOutputs
from footplate.sdk.jobs import AsyncJob, AsyncJobs, Filters, JobView
from footplate.sdk.keys import AsyncKeys
from footplate.sdk.lists import Listing, Table
from footplate.sdk.metrics import AsyncMetrics
from footplate.sdk.models import Checkpoint, JobInfo
from footplate.sdk.notebook import checkpoint_table, job_table
from footplate.sdk.uploads import AsyncFiles
from footplate.sdk.webhooks import AsyncWebhooks
from footplate.sdk.wire import iterate, run

A = TypeVar("A")
B = TypeVar("B", bound="Blocking[Any]")
F = TypeVar("F", bound=Callable[..., Any])
P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")


class Blocking(Generic[A]):
    """The base of blocking objects. Their methods call those of an asynchronous object, `_twin`."""

    def __init__(self, twin: A) -> None:
        self._twin = twin


@overload
def waits(method: Callable[Concatenate[A, P], Coroutine[Any, Any, R]]) -> Callable[Concatenate[Any, P], R]: ...


@overload
def waits(
    method: Callable[Concatenate[A, P], Coroutine[Any, Any, R]], result: Callable[[R], T]
) -> Callable[Concatenate[Any, P], T]: ...


def waits(method: Callable[..., Coroutine[Any, Any, Any]], result: Callable[[Any], Any] | None = None) -> Any:
    """Returns a blocking method for a coroutine method. `result` converts the coroutine's result."""

    def blocking(self: Any, /, *args: Any, **kwargs: Any) -> Any:
        value = run(method(self._twin, *args, **kwargs))
        return value if result is None else result(value)

    return _described(blocking, method)


def yields(method: Callable[Concatenate[A, P], AsyncGenerator[R, None]]) -> Callable[Concatenate[Any, P], Iterator[R]]:
    """Returns a blocking method for an asynchronous generator method."""

    def blocking(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> Iterator[R]:
        return iterate(method(self._twin, *args, **kwargs))

    return _described(blocking, method)


def itself(method: Callable[Concatenate[A, P], Coroutine[Any, Any, A]]) -> Callable[Concatenate[B, P], B]:
    """Returns a blocking method for a coroutine method that returns `self`. The blocking one returns its own `self`."""

    def blocking(self: B, /, *args: P.args, **kwargs: P.kwargs) -> B:
        run(method(self._twin, *args, **kwargs))
        return self

    return _described(blocking, method)


def _described(blocking: F, method: Callable[..., Any]) -> F:
    """Gives the blocking method the name, the docstring and the signature of the asynchronous one, for `help()`."""
    signature = inspect.signature(method)
    # The types of results differ in their names: AsyncJob is a Job here.
    returned = str(signature.return_annotation).replace("Async", "")
    update_wrapper(blocking, method)
    vars(blocking)["__signature__"] = signature.replace(return_annotation=returned)
    return blocking


class Metrics(Blocking[AsyncMetrics]):
    """A job's metrics. `job.metrics()` returns every row. `summary` and `series` are fast for any number of rows."""

    __call__ = waits(AsyncMetrics.__call__)
    summary = waits(AsyncMetrics.summary)
    series = waits(AsyncMetrics.series)


class _CheckpointActions(Blocking[AsyncCheckpoint]):
    contents = waits(AsyncCheckpoint.contents)
    download = waits(AsyncCheckpoint.download)
    pin = waits(AsyncCheckpoint.pin, lambda twin: SavedCheckpoint.of(twin))
    unpin = waits(AsyncCheckpoint.unpin, lambda twin: SavedCheckpoint.of(twin))
    delete = waits(AsyncCheckpoint.delete)


class SavedCheckpoint(Checkpoint, _CheckpointActions):
    """One of a job's checkpoints, as it was when the service answered."""

    _twin: AsyncCheckpoint = PrivateAttr()

    @classmethod
    def of(cls, twin: AsyncCheckpoint) -> Self:
        checkpoint = cls.model_validate(twin.model_dump())
        checkpoint._twin = twin
        return checkpoint


def _saved(twin: AsyncCheckpoint | None) -> SavedCheckpoint | None:
    return None if twin is None else SavedCheckpoint.of(twin)


class Checkpoints(Blocking[AsyncCheckpoints]):
    """The checkpoints that a job has saved."""

    list = waits(AsyncCheckpoints.list, lambda twins: Table([*map(SavedCheckpoint.of, twins)], checkpoint_table))
    get = waits(AsyncCheckpoints.get, SavedCheckpoint.of)
    latest = waits(AsyncCheckpoints.latest, _saved)
    best = waits(AsyncCheckpoints.best, _saved)


class Outputs(Blocking[AsyncOutputs]):
    """The files that a job wrote as its outputs, such as the final model."""

    list = waits(AsyncOutputs.list)
    download = waits(AsyncOutputs.download)


class Job(Blocking[AsyncJob], JobView):
    """One job. Its actions change the job and update `info`."""

    def __init__(self, twin: AsyncJob) -> None:
        super().__init__(twin)
        self.checkpoints = Checkpoints(twin.checkpoints)
        self.outputs = Outputs(twin.outputs)
        self.metrics = Metrics(twin.metrics)

    @property
    def info(self) -> JobInfo:  # type: ignore[override]  # read-only here: the asynchronous one keeps it
        return self._twin.info

    refresh = itself(AsyncJob.refresh)
    cancel = itself(AsyncJob.cancel)
    pause = itself(AsyncJob.pause)
    resume = itself(AsyncJob.resume)
    do = itself(AsyncJob.do)
    amend = itself(AsyncJob.amend)
    wait = itself(AsyncJob.wait)
    watch = itself(AsyncJob.watch)
    fork = waits(AsyncJob.fork, lambda twin: Job(twin))
    predict = waits(AsyncJob.predict)
    generate = yields(AsyncJob.generate)
    export = waits(AsyncJob.export)
    delete = waits(AsyncJob.delete)
    events = yields(AsyncJob.events)
    logs = yields(AsyncJob.logs)
    plot = waits(AsyncJob.plot)
    attempts = waits(AsyncJob.attempts)
    spec = waits(AsyncJob.spec)


class Jobs(Blocking[AsyncJobs]):
    create = waits(AsyncJobs.create, Job)
    get = waits(AsyncJobs.get, Job)
    validate = waits(AsyncJobs.validate)
    series = waits(AsyncJobs.series)
    bulk = waits(AsyncJobs.bulk)

    def list(self, *, limit: int | None = None, **filters: Unpack[Filters]) -> Listing[Job]:
        """Returns jobs, newest first, at most `limit`. Pages are requested as they are needed."""
        return Listing((Job(twin) async for twin in self._twin.pages(limit, filters)), job_table)


class Files(Blocking[AsyncFiles]):
    """Uploaded files of rows: `file = client.files.upload("rows.jsonl")`, then `"data": file.id`."""

    upload = waits(AsyncFiles.upload)
    get = waits(AsyncFiles.get)
    list = yields(AsyncFiles.list)
    download = waits(AsyncFiles.download)
    delete = waits(AsyncFiles.delete)


class Bundles(Blocking[AsyncBundles]):
    """Bundles of your own code: `"code": {"bundle": client.bundles.upload("my_folder").sha256}`."""

    upload = waits(AsyncBundles.upload)
    get = waits(AsyncBundles.get)
    list = yields(AsyncBundles.list)
    delete = waits(AsyncBundles.delete)


class Keys(Blocking[AsyncKeys]):
    """Keys, for administrators: `print(client.keys.create("ci", "vision", scopes=["submit"]).key)`."""

    create = waits(AsyncKeys.create)
    list = waits(AsyncKeys.list)
    delete = waits(AsyncKeys.delete)


class Webhooks(Blocking[AsyncWebhooks]):
    """Webhooks: `hook = client.webhooks.create("https://…", states=["failed"])`. `hook.secret` is shown once."""

    create = waits(AsyncWebhooks.create)
    list = waits(AsyncWebhooks.list)
    get = waits(AsyncWebhooks.get)
    update = waits(AsyncWebhooks.update)
    rotate = waits(AsyncWebhooks.rotate)
    test = waits(AsyncWebhooks.test)
    deliveries = yields(AsyncWebhooks.deliveries)
    delete = waits(AsyncWebhooks.delete)
