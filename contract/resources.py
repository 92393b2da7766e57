"""What a job runs on and for how long, and when it is tried again."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Literal

from pydantic import Field, JsonValue

from contract.fields import DURATION, Group, Many, Slug, Text, Whole

DAY = 86400.0


class Single(Group):
    """One process. Accelerate still prepares everything, it only has nobody to talk to."""

    type: Literal["single"] = "single"


class Ddp(Group):
    """One replica of the model per process; gradients are averaged. Its knobs are training's `ddp_*`."""

    type: Literal["ddp"]


class Fsdp(Group):
    """The model is sharded over the processes."""

    type: Literal["fsdp"]
    config: dict[str, JsonValue] = Field(default_factory=dict)
    """What training's `fsdp_config` may say, under the same names."""


class DeepSpeed(Group):
    """DeepSpeed's ZeRO."""

    type: Literal["deepspeed"]
    config: dict[str, JsonValue] = Field(default_factory=dict)
    """DeepSpeed's own JSON config."""


class AccelerateConfig(Group):
    """Whatever `accelerate config` can describe."""

    type: Literal["accelerate"]
    config: dict[str, JsonValue]
    """The config that `accelerate config` writes, as JSON."""


Strategy = Annotated[Single | Ddp | Fsdp | DeepSpeed | AccelerateConfig, Field(discriminator="type")]
STRATEGIES: dict[str, type[Group]] = {
    "single": Single, "ddp": Ddp, "fsdp": Fsdp, "deepspeed": DeepSpeed, "accelerate": AccelerateConfig,
}  # fmt: skip


class Resources(Group):
    """The shape of a job: which nodes, how many GPUs, how long."""

    nodes: Annotated[Whole, Field(ge=1, le=1024)] = 1
    """Nodes at once; all of them or none."""
    gpus_per_node: Annotated[Whole, Field(ge=0, le=64)] | None = None
    """null is one slot of whatever the node has, 0 is CPU, n is n GPUs. At most 64."""
    gpu: Text | None = None
    """Only GPUs whose name contains this, for example "H100"; null takes any."""
    processes_per_node: Annotated[Whole, Field(ge=1, le=256)] | None = None
    """Training processes per node; null is one per GPU, one on CPU."""
    pool: Slug = "default"
    """Only nodes that joined this pool."""
    strategy: Strategy = Single()
    """How the processes share the work; its name alone stands for its defaults."""
    time_limit: Annotated[float, Field(gt=0, le=366 * DAY), DURATION] | None = None
    """Running time over all attempts, "4h" or seconds; null is none. Ends in failed(time_limit), resumable."""
    stall_limit: Annotated[float, Field(gt=0, le=7 * DAY), DURATION] = 600.0
    """Time without any progress, "10m" or seconds, after which an attempt is stalled and killed. At most seven days."""


class RetryOn(StrEnum):
    """The ends of an attempt that may be tried again. Values are lifecycle.Reason's."""

    NODE_LOST = "node_lost"
    CRASHED = "crashed"
    STALLED = "stalled"
    OOM = "oom"
    ERROR = "error"


class Retry(Group):
    """When a failed or lost attempt is followed by another. A drain is no failure and costs nothing."""

    max_attempts: Annotated[Whole, Field(ge=1, le=100)] = 3
    """Failures and losses that a job may have in all, 1 to 100; 1 never tries again."""
    on: Many[Annotated[RetryOn, Field(strict=False)]] = (RetryOn.NODE_LOST, RetryOn.CRASHED, RetryOn.STALLED)
    """What counts as worth another try."""
    backoff: Annotated[float, Field(ge=0, le=DAY), DURATION] = 0.0
    """Wait before a retry, "30s" or seconds, at most a day; twice as long where an attempt got no further."""
