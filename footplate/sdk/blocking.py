"""Jobs without `await`: each method waits for the method of the same name in `jobs.py`."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self, Unpack

from pydantic import PrivateAttr

from footplate.sdk.checkpoints import AsyncCheckpoint, AsyncCheckpoints
from footplate.sdk.files import AsyncOutputs
from footplate.sdk.jobs import (
    Amendments,
    AsyncJob,
    AsyncJobs,
    Filters,
    JobView,
    ResumeChanges,
    Spec,
)
from footplate.sdk.lists import Listing, Rows, Table
from footplate.sdk.metrics import AsyncMetrics
from footplate.sdk.models import (
    Attempt,
    Checkpoint,
    CheckpointFile,
    Event,
    JobInfo,
    Line,
    MetricSummary,
    Outcome,
    Output,
    Series,
    UploadedFile,
    Validation,
)
from footplate.sdk.notebook import checkpoint_table, job_table
from footplate.sdk.texts import Prompt
from footplate.sdk.uploads import AsyncFiles
from footplate.sdk.waiting import each, now


class Jobs:
    def __init__(self, jobs: AsyncJobs) -> None:
        self._jobs = jobs

    def create(self, spec: Spec = None, *, idempotency_key: str | None = None, **fields: Any) -> Job:
        """Submits a job from a spec, the path of a JSON file, or keywords, which replace top-level fields of the spec.

        The request is repeated if its answer is lost. The idempotency key, made here unless you pass one, lets the
        service recognise the same job.
        """
        return Job(now(self._jobs.create(spec, idempotency_key=idempotency_key, **fields)))

    def get(self, job: str) -> Job:
        """Returns a job by its id, its name if only one job has that name, or the beginning or end of its id."""
        return Job(now(self._jobs.get(job)))

    def validate(self, spec: Spec = None, **fields: Any) -> Validation:
        """Returns the effective spec and its placement, as `create` would, without a job. Raises InvalidRequest."""
        return now(self._jobs.validate(spec, **fields))

    def list(self, *, limit: int | None = None, **filters: Unpack[Filters]) -> Listing[Job]:
        """Returns jobs, newest first, at most `limit`. Pages are requested as they are needed."""
        return Listing(map(Job, each(self._jobs._pages(limit, filters))), job_table)

    def series(
        self,
        jobs: Iterable[str | JobView],
        *names: str,
        x: str = "step",
        points: int = 1000,
        everything: bool = False,
    ) -> Sequence[Series]:
        """Returns curves of several jobs, given as jobs, ids or names: those of `job.metrics.series`, for each job."""
        return now(self._jobs.series(jobs, *names, x=x, points=points, everything=everything))

    def bulk(
        self, action: str, *, ids: Sequence[str] | None = None, mode: str = "checkpoint", **where: Unpack[Filters]
    ) -> Sequence[Outcome]:
        """Applies cancel, pause, resume or delete to many jobs, and returns an outcome for each.

        The jobs are those of `ids`, or all that match the filters and that the action can change.
        """
        return now(self._jobs.bulk(action, ids=ids, mode=mode, **where))


class Job(JobView):
    """One job. Its actions change the job and update `info`."""

    def __init__(self, job: AsyncJob) -> None:
        self._job = job
        self.checkpoints = Checkpoints(job.checkpoints)
        self.outputs = Outputs(job.outputs)
        self.metrics = Metrics(job.metrics)

    @property
    def info(self) -> JobInfo:  # type: ignore[override]  # read-only here: the asynchronous one keeps it
        return self._job.info

    def refresh(self) -> Self:
        now(self._job.refresh())
        return self

    def cancel(self, mode: str = "checkpoint") -> Self:
        """Stops the job: "checkpoint" saves first, "graceful" stops at the next step, "kill" stops at once."""
        now(self._job.cancel(mode))
        return self

    def pause(self) -> Self:
        now(self._job.pause())
        return self

    def resume(self, **changes: Unpack[ResumeChanges]) -> Self:
        now(self._job.resume(**changes))
        return self

    def do(self, *, save: bool = False, evaluate: bool = False, set: Mapping[str, Any] | None = None) -> Self:
        """Requests a checkpoint, an evaluation or new arguments from the running loop, after the current step.

        The arguments that can be set are learning_rate, max_steps, logging_steps, eval_steps and save_steps. They hold
        from then on. Events of kind `do` have the result.
        """
        now(self._job.do(save=save, evaluate=evaluate, set=set))
        return self

    def fork(
        self,
        checkpoint: str = "latest",
        *,
        mode: str = "full",
        patch: Mapping[str, Any] | None = None,
        idempotency_key: str | None = None,
    ) -> Job:
        """Starts another job from a checkpoint of this one: "latest", "best" or an id.

        The mode "weights" takes the weights alone. `patch` is merged into this job's spec, and None removes a field.
        The differences are in the new job's `info.fork`.
        """
        return Job(now(self._job.fork(checkpoint, mode=mode, patch=patch, idempotency_key=idempotency_key)))

    def predict(
        self, inputs: Sequence[Any], *, checkpoint: str | None = None, wait: float = 60.0, **parameters: Any
    ) -> Sequence[dict[str, Any]]:
        """Runs a checkpoint of the job on rows or texts, and returns a result for each.

        The checkpoint is "latest", "best" or an id. Without one, the job's final model answers. If the model is not
        loaded, a node loads it within `wait` seconds. `parameters` are those of a language model: max_tokens,
        temperature, top_p, stop, seed.
        """
        return now(self._job.predict(inputs, checkpoint=checkpoint, wait=wait, **parameters))

    def generate(self, prompt: Prompt, *, checkpoint: str | None = None, **parameters: Any) -> Iterator[str]:
        """Yields the parts of a text that a checkpoint of the job generates, while it is made.

        `prompt` is a text to continue, or a conversation: a list of messages with a role and a content. `parameters`
        are max_tokens, temperature, top_p, stop and seed.
        """
        return each(self._job.generate(prompt, checkpoint=checkpoint, **parameters))

    def export(
        self, folder: str | os.PathLike[str], *, checkpoint: str | None = None, merge: bool = False
    ) -> Sequence[Path]:
        """Writes a model's weights, tokenizer and card to a local folder, for use elsewhere.

        A node makes these files, with the adapters merged into the weights if `merge` is true. Without a checkpoint,
        the job's final model is exported.
        """
        return now(self._job.export(folder, checkpoint=checkpoint, merge=merge))

    def amend(self, *, if_version: int | None = None, **changes: Unpack[Amendments]) -> Self:
        """Changes the named fields. With `if_version`, raises VersionChanged if the job has changed since."""
        now(self._job.amend(if_version=if_version, **changes))
        return self

    def delete(self) -> None:
        """Deletes a job that has ended, with its files."""
        now(self._job.delete())

    def events(
        self, *, after: int = 0, kinds: str | Collection[str] | None = None, follow: bool = True
    ) -> Iterator[Event]:
        """Yields the job's events after the number `after`, and with `follow` new ones until it has ended.

        Each event comes once and in order, even if connections break.
        """
        return each(self._job.events(after=after, kinds=kinds, follow=follow))

    def wait(self, timeout: float | None = None) -> Self:
        """Waits until the job has succeeded, failed or been cancelled. A paused job is waited for, too.

        Raises WaitTimeout after `timeout` seconds.
        """
        now(self._job.wait(timeout))
        return self

    def logs(
        self,
        *,
        after: int = 0,
        stream: str | None = None,
        rank: int | None = None,
        grep: str | None = None,
        follow: bool = False,
    ) -> Iterator[Line]:
        """Yields printed lines after the number `after`, filtered by stream, rank and text.

        With `follow`, also yields new lines until the job has ended.
        """
        return each(self._job.logs(after=after, stream=stream, rank=rank, grep=grep, follow=follow))

    def watch(self) -> Self:
        """Shows the job until it has ended: a live cell in a notebook, and lines elsewhere."""
        now(self._job.watch())
        return self

    def plot(self, *names: str, x: str = "step", axes: Any = None) -> Any:
        """Draws curves with matplotlib, all of them if none is named, and returns the axes."""
        return now(self._job.plot(*names, x=x, axes=axes))

    def attempts(self) -> list[Attempt]:
        return now(self._job.attempts())

    def spec(self) -> dict[str, Any]:
        """Returns the effective spec with every default."""
        return now(self._job.spec())


class Metrics:
    """A job's metrics. `job.metrics()` returns every row. `summary` and `series` are fast for any number of rows."""

    def __init__(self, metrics: AsyncMetrics) -> None:
        self._metrics = metrics

    def __call__(self, *, after: int = 0) -> Rows:
        """Returns a row per log or eval: {"no", "step", "epoch", "loss", …}. `.to_pandas()` makes a data frame."""
        return now(self._metrics(after=after))

    def summary(self) -> dict[str, MetricSummary]:
        """Returns the last, the lowest and the highest value of each metric, with their steps."""
        return now(self._metrics.summary())

    def series(self, *names: str, x: str = "step", points: int = 1000, everything: bool = False) -> dict[str, Series]:
        """Returns curves by name, each with at most `points` points, among them every spike. Without names, all curves.

        `x` is step, time or epoch. `everything` includes points that a later attempt repeats.
        """
        return now(self._metrics.series(*names, x=x, points=points, everything=everything))


class SavedCheckpoint(Checkpoint):
    """One of a job's checkpoints, in its state at the time of the request."""

    _one: AsyncCheckpoint = PrivateAttr()

    @classmethod
    def of(cls, one: AsyncCheckpoint) -> Self:
        checkpoint = cls.model_validate(one.model_dump())
        checkpoint._one = one
        return checkpoint

    def contents(self) -> Sequence[CheckpointFile]:
        """Returns the files with their sha256 at the time of the commit."""
        return now(self._one.contents())

    def download(self, folder: str | os.PathLike[str]) -> Sequence[Path]:
        """Downloads the files below `folder`. Each is verified by its sha256, and then moved into place.

        An interrupted download continues where it stopped, also in a later call.
        """
        return now(self._one.download(folder))

    def pin(self) -> Self:
        """Keeps the checkpoint, whatever the job's limits are."""
        return self.of(now(self._one.pin()))

    def unpin(self) -> Self:
        return self.of(now(self._one.unpin()))

    def delete(self) -> int:
        """Deletes the checkpoint in a moment, and returns the number of bytes that this frees."""
        return now(self._one.delete())


class Checkpoints:
    """The checkpoints that a job has saved."""

    def __init__(self, checkpoints: AsyncCheckpoints) -> None:
        self._checkpoints = checkpoints

    def list(self) -> Sequence[SavedCheckpoint]:
        checkpoints = [SavedCheckpoint.of(checkpoint) for checkpoint in now(self._checkpoints.list())]
        return Table(checkpoints, checkpoint_table)

    def get(self, checkpoint: str) -> SavedCheckpoint:
        """Returns a checkpoint by its id, or the "latest" or "best" one. Raises NotFound."""
        return SavedCheckpoint.of(now(self._checkpoints.get(checkpoint)))

    def latest(self) -> SavedCheckpoint | None:
        checkpoint = now(self._checkpoints.latest())
        return None if checkpoint is None else SavedCheckpoint.of(checkpoint)

    def best(self) -> SavedCheckpoint | None:
        """Returns the best checkpoint by metric_for_best_model. None if the job ranks none."""
        checkpoint = now(self._checkpoints.best())
        return None if checkpoint is None else SavedCheckpoint.of(checkpoint)


class Files:
    """Uploaded files: `file = client.files.upload("rows.jsonl")`, then `"data": file.id`."""

    def __init__(self, files: AsyncFiles) -> None:
        self._files = files

    def upload(
        self, path: str | os.PathLike[str], *, name: str | None = None, tokenizer: str | None = None
    ) -> UploadedFile:
        """Uploads JSON lines, CSV, Parquet or text, by the suffix. Its `report` has rows, columns and bad rows.

        With a `tokenizer` such as models://bert-base-uncased, the report counts the tokens of all texts. A file that
        the service has already is not sent again, unless its report lacks these numbers.
        """
        return now(self._files.upload(path, name=name, tokenizer=tokenizer))

    def get(self, file: str) -> UploadedFile:
        return now(self._files.get(file))

    def list(self) -> Iterator[UploadedFile]:
        """Yields files, newest first. Pages are requested as they are needed."""
        return each(self._files.list())

    def download(self, file: str, folder: str | os.PathLike[str]) -> Path:
        """Downloads the file under its name, and moves it into place after its sha256 was verified."""
        return now(self._files.download(file, folder))

    def delete(self, file: str) -> None:
        """Deletes the file, unless a job that has not ended names it."""
        now(self._files.delete(file))


class Outputs:
    """The files that a job left behind."""

    def __init__(self, outputs: AsyncOutputs) -> None:
        self._outputs = outputs

    def list(self) -> Sequence[Output]:
        return now(self._outputs.list())

    def download(self, folder: str | os.PathLike[str], *, only: Collection[str] | None = None) -> Sequence[Path]:
        """Downloads every file, or those in `only`, below `folder`. Each is moved into place when it is complete."""
        return now(self._outputs.download(folder, only=only))
