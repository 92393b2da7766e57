"""Jobs without `await`: each name does what its namesake in `jobs.py` does, and waits for it."""

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
from footplate.sdk.uploads import AsyncFiles
from footplate.sdk.waiting import each, now


class Jobs:
    def __init__(self, jobs: AsyncJobs) -> None:
        self._jobs = jobs

    def create(self, spec: Spec, *, idempotency_key: str | None = None, **fields: Any) -> Job:
        """Submits a job; `fields` replace top-level fields of the spec. Sent again when the answer is lost: the key,
        made here unless you bring one, lets the service see that it is the same job."""
        return Job(now(self._jobs.create(spec, idempotency_key=idempotency_key, **fields)))

    def get(self, job: str) -> Job:
        return Job(now(self._jobs.get(job)))

    def validate(self, spec: Spec, **fields: Any) -> Validation:
        """What `create` would say, without a job: the effective spec and where it would run. Raises InvalidRequest."""
        return now(self._jobs.validate(spec, **fields))

    def list(self, *, limit: int | None = None, **filters: Unpack[Filters]) -> Iterator[Job]:
        """Jobs, newest first, page by page as they are asked for; at most `limit`."""
        return map(Job, each(self._jobs.list(limit=limit, **filters)))

    def series(
        self,
        jobs: Iterable[str | JobView],
        *names: str,
        x: str = "step",
        points: int = 1000,
        everything: bool = False,
    ) -> Sequence[Series]:
        """Curves of several jobs beside each other: as `job.metrics.series`, for each of them."""
        return now(self._jobs.series(jobs, *names, x=x, points=points, everything=everything))

    def bulk(
        self, action: str, *, ids: Sequence[str] | None = None, mode: str = "checkpoint", **where: Unpack[Filters]
    ) -> Sequence[Outcome]:
        """cancel, pause, resume or delete, asked of many jobs: of these, or of all that match and that it can change.
        An outcome for each."""
        return now(self._jobs.bulk(action, ids=ids, mode=mode, **where))


class Job(JobView):
    """One job. Verbs change it, and bring `info` up to date."""

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
        """Checkpoint saves, then stops; graceful stops at the next step; kill at once."""
        now(self._job.cancel(mode))
        return self

    def pause(self) -> Self:
        now(self._job.pause())
        return self

    def resume(self, **changes: Unpack[ResumeChanges]) -> Self:
        now(self._job.resume(**changes))
        return self

    def do(self, *, save: bool = False, evaluate: bool = False, set: Mapping[str, Any] | None = None) -> Self:
        """Asks the running loop, after the step at hand, for a checkpoint, an evaluation, or other arguments, which
        hold from then on: learning_rate, max_steps, logging_steps, eval_steps, save_steps. Events of kind `do` tell
        what came of it."""
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
        """Another job, which goes on from a checkpoint of this one: "latest", "best" or an id; mode "weights" takes
        these alone. `patch` is merged into this job's spec, None taking a field away. What differs is in the new job's
        `info.fork`."""
        return Job(now(self._job.fork(checkpoint, mode=mode, patch=patch, idempotency_key=idempotency_key)))

    def amend(self, *, if_version: int | None = None, **changes: Unpack[Amendments]) -> Self:
        """What is not named stays. With `if_version`, VersionChanged if the job has changed since."""
        now(self._job.amend(if_version=if_version, **changes))
        return self

    def delete(self) -> None:
        """With its files. Only a job that has ended."""
        now(self._job.delete())

    def events(
        self, *, after: int = 0, kinds: str | Collection[str] | None = None, follow: bool = True
    ) -> Iterator[Event]:
        """Its history from `after` on, then what happens, until it has ended: each event once and in order, whatever
        happens to the connection. With follow=False only what there is now."""
        return each(self._job.events(after=after, kinds=kinds, follow=follow))

    def wait(self, timeout: float | None = None) -> Self:
        """When it has succeeded, failed or been cancelled; a paused job is waited for. WaitTimeout after so many
        seconds."""
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
        """What training printed, behind the number `after`: to stdout or stderr, on one rank, with some words in it.
        With follow=True, also what it prints until it has ended."""
        return each(self._job.logs(after=after, stream=stream, rank=rank, grep=grep, follow=follow))

    def attempts(self) -> list[Attempt]:
        return now(self._job.attempts())

    def spec(self) -> dict[str, Any]:
        """The effective one, with every default."""
        return now(self._job.spec())


class Metrics:
    """`job.metrics()` has every row; `summary` and `series` answer as quickly however many there are."""

    def __init__(self, metrics: AsyncMetrics) -> None:
        self._metrics = metrics

    def __call__(self, *, after: int = 0) -> list[dict[str, Any]]:
        """A row per log or eval: {"no", "step", "epoch", "loss", …}, as a data frame takes them."""
        return now(self._metrics(after=after))

    def summary(self) -> dict[str, MetricSummary]:
        """By name: the last, the least and the most value, and where each was."""
        return now(self._metrics.summary())

    def series(self, *names: str, x: str = "step", points: int = 1000, everything: bool = False) -> dict[str, Series]:
        """By name: at most so many points of each curve, every spike among them; without names, every curve. x is step,
        time or epoch. `everything` has what a later attempt repeats, too."""
        return now(self._metrics.series(*names, x=x, points=points, everything=everything))


class SavedCheckpoint(Checkpoint):
    """One of a job's checkpoints, as it stood when the service was asked."""

    _one: AsyncCheckpoint = PrivateAttr()

    @classmethod
    def of(cls, one: AsyncCheckpoint) -> Self:
        found = cls.model_validate(one.model_dump())
        found._one = one
        return found

    def contents(self) -> Sequence[CheckpointFile]:
        """With the sha256 of what was written when it was committed."""
        return now(self._one.contents())

    def download(self, folder: str | os.PathLike[str]) -> Sequence[Path]:
        """Its files, below `folder`, each whole and compared by its sha256, or not there. What breaks off goes on where
        it was, also when it is called again."""
        return now(self._one.download(folder))

    def pin(self) -> Self:
        """Keeps it, whatever the job's limits say."""
        return self.of(now(self._one.pin()))

    def unpin(self) -> Self:
        return self.of(now(self._one.unpin()))

    def delete(self) -> int:
        """Lets go of it; the answer is how many bytes that frees, in a moment."""
        return now(self._one.delete())


class Checkpoints:
    """What a job has saved."""

    def __init__(self, checkpoints: AsyncCheckpoints) -> None:
        self._checkpoints = checkpoints

    def list(self) -> Sequence[SavedCheckpoint]:
        """Newest first."""
        return [SavedCheckpoint.of(one) for one in now(self._checkpoints.list())]

    def get(self, checkpoint: str) -> SavedCheckpoint:
        """By its id; or "latest", or "best". Raises NotFound."""
        return SavedCheckpoint.of(now(self._checkpoints.get(checkpoint)))

    def latest(self) -> SavedCheckpoint | None:
        found = now(self._checkpoints.latest())
        return None if found is None else SavedCheckpoint.of(found)

    def best(self) -> SavedCheckpoint | None:
        """By metric_for_best_model; None where the job looks for none."""
        found = now(self._checkpoints.best())
        return None if found is None else SavedCheckpoint.of(found)


class Files:
    """`file = client.files.upload("rows.jsonl")`, then `"data": file.id`."""

    def __init__(self, files: AsyncFiles) -> None:
        self._files = files

    def upload(self, path: str | os.PathLike[str], *, name: str | None = None) -> UploadedFile:
        """JSON lines, CSV or Parquet, by the suffix of its name. What the service has already is not sent again."""
        return now(self._files.upload(path, name=name))

    def get(self, file: str) -> UploadedFile:
        return now(self._files.get(file))

    def list(self) -> Iterator[UploadedFile]:
        """Newest first, page by page as they are asked for."""
        return each(self._files.list())

    def download(self, file: str, folder: str | os.PathLike[str]) -> Path:
        """Under its name, whole and compared by its sha256, or not there."""
        return now(self._files.download(file, folder))

    def delete(self, file: str) -> None:
        """Not while a job that is not over names it."""
        now(self._files.delete(file))


class Outputs:
    """The files that a job left behind."""

    def __init__(self, outputs: AsyncOutputs) -> None:
        self._outputs = outputs

    def list(self) -> Sequence[Output]:
        return now(self._outputs.list())

    def download(self, folder: str | os.PathLike[str], *, only: Collection[str] | None = None) -> Sequence[Path]:
        """Every file, or those named in `only`, below `folder`; each is whole or not there."""
        return now(self._outputs.download(folder, only=only))
