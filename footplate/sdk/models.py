"""The answers that the SDK returns: resources of `footplate.contract.resources`, some under names of the SDK.

Fields that a newer service adds are ignored. New values that it adds to an enum, such as a new state, are strings.
"""

from __future__ import annotations

from footplate.contract.components import Described as Component
from footplate.contract.events import Event, Failure
from footplate.contract.lifecycle import TERMINAL
from footplate.contract.resources.artifacts import Bundle, Checkpoint, CheckpointFile, File, Output, RowReport
from footplate.contract.resources.artifacts import BundleFile as BundledFile
from footplate.contract.resources.history import Attempt, Line, MetricSummary, Series
from footplate.contract.resources.history import SeenMetric as Seen
from footplate.contract.resources.jobs import BulkItem as Outcome
from footplate.contract.resources.jobs import ForkOf as Fork
from footplate.contract.resources.jobs import (
    ForkPoint,
    Inexact,
    Job,
    Placement,
    Progress,
    QueuedJob,
    SpecWarning,
    Validation,
)
from footplate.contract.resources.jobs import SpecChange as Change
from footplate.contract.resources.operations import CreatedKey as NewKey
from footplate.contract.resources.operations import CreatedWebhook as NewWebhook
from footplate.contract.resources.operations import Delivery, Key, Node, Webhook
from footplate.contract.resources.operations import Health as ServiceHealth

__all__ = [
    "Attempt", "Bundle", "BundledFile", "Change", "Checkpoint", "CheckpointFile", "Component", "Delivery", "Event",
    "Failure", "Fork", "ForkPoint", "Health", "Inexact", "JobInfo", "Key", "Line", "MetricSummary", "NewKey",
    "NewWebhook", "Node", "Outcome", "Output", "Placement", "Progress", "QueuedJob", "RowReport", "Seen", "Series",
    "SpecWarning", "UploadedFile", "Validation", "Webhook",
]  # fmt: skip


class JobInfo(Job):
    """A job as it was when the service answered."""

    fork: Fork | None = None
    """The checkpoint from which the job starts and the differences from the other job. Only `fork()` sets it."""

    @property
    def has_ended(self) -> bool:
        """True if the job has succeeded, failed or been cancelled. A paused job has not ended."""
        return self.state in TERMINAL


class UploadedFile(File):
    """An uploaded file of rows. Its `report` is None in lists."""

    def _repr_html_(self) -> str:
        from footplate.sdk.notebook import file_card

        return file_card(self)


class Health(ServiceHealth):
    clock_ahead_s: float | None = None
    """The number of seconds by which the service's clock is ahead of this machine's, to a second."""
