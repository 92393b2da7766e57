"""The resources that a job runs on, and the rules for another attempt."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Literal, Self

from pydantic import Field, JsonValue, model_validator

from footplate.contract.fields import DURATION, Group, Many, ShortText, Slug, Whole

DAY = 86400.0
TimeLimit = Annotated[float, Field(gt=0, le=366 * DAY), DURATION]


class Single(Group):
    """One process. Accelerate prepares model, data and optimizer as in every other strategy."""

    type: Literal["single"] = "single"


class Ddp(Group):
    """One replica of the model per process; gradients are averaged. Options are the `ddp_*` fields of `training`."""

    type: Literal["ddp"]


class Fsdp(Group):
    """FSDP shards the model over the processes."""

    type: Literal["fsdp"]
    config: dict[str, JsonValue] = Field(default_factory=dict)
    """The options of `training.fsdp_config`, under the same names."""


class DeepSpeed(Group):
    """DeepSpeed's ZeRO shards optimizer, gradients or weights over the processes."""

    type: Literal["deepspeed"]
    config: dict[str, JsonValue] = Field(default_factory=dict)
    """DeepSpeed's own JSON config."""


class AccelerateConfig(Group):
    """A config that `accelerate config` wrote. The service translates the config into the fields of the spec."""

    type: Literal["accelerate"]
    config: dict[str, JsonValue]
    """The file that `accelerate config` wrote, as JSON."""


Strategy = Annotated[Single | Ddp | Fsdp | DeepSpeed | AccelerateConfig, Field(discriminator="type")]
STRATEGIES: dict[str, type[Group]] = {
    "single": Single, "ddp": Ddp, "fsdp": Fsdp, "deepspeed": DeepSpeed, "accelerate": AccelerateConfig,
}  # fmt: skip


class Resources(Group):
    """The nodes, GPUs, processes and time limits of a job."""

    nodes: Annotated[Whole, Field(ge=1, le=1024)] = 1
    """The number of nodes. The job starts when all of them have room."""
    gpus_per_node: Annotated[Whole, Field(ge=0, le=64)] | None = None
    """GPUs on each node. null takes one slot: a GPU if the node has GPUs, else CPU. 0 runs on CPU."""
    gpu: ShortText | None = None
    """A text that the GPU's name must contain, for example "H100". null takes any GPU."""
    processes_per_node: Annotated[Whole, Field(ge=1, le=256)] | None = None
    """Training processes on each node. null is one for each GPU of `gpus_per_node`, else one."""
    pool: Slug = "default"
    """The pool of nodes that the job may run on."""
    strategy: Strategy = Single()
    """The way in which the processes share the work. The name alone takes the strategy's defaults. Several processes
    use "ddp" unless the spec names another."""
    time_limit: TimeLimit | None = None
    """The longest running time over all attempts. A job that reaches the limit fails with the reason `time_limit`, and
    can be resumed. null means no limit. At most 366 days."""
    stall_limit: Annotated[float, Field(gt=0, le=7 * DAY), DURATION] = 600.0
    """The time without any progress after which an attempt counts as stalled and is killed. At most seven days."""

    @property
    def processes(self) -> int:
        """The number of processes on each node. If the spec sets no number, there is one process, on a GPU or a CPU."""
        return self.processes_per_node or max(1, self.gpus_per_node or 0)

    @property
    def world_size(self) -> int:
        return self.nodes * self.processes

    @property
    def needs_a_launcher(self) -> bool:
        """True if even a single process needs the environment variables that a launcher sets, such as RANK."""
        return self.strategy.type == "deepspeed"

    @model_validator(mode="after")
    def _several_processes_use_ddp(self) -> Self:
        """Chooses DDP for several processes if the spec names no strategy."""
        if self.world_size > 1 and "strategy" not in self.model_fields_set:
            # The model is frozen, so a plain assignment would raise.
            object.__setattr__(self, "strategy", Ddp(type="ddp"))
        return self


class RetryOn(StrEnum):
    """The reasons of a failed attempt after which a job may be tried again."""

    NODE_LOST = "node_lost"
    CRASHED = "crashed"
    STALLED = "stalled"
    OOM = "oom"
    ERROR = "error"


class Retry(Group):
    """The rules for another attempt after a failed or lost one. A drain is not a failure and does not count."""

    max_attempts: Annotated[Whole, Field(ge=1, le=100)] = 3
    """The number of failed and lost attempts after which the job fails. 1 never tries again. Three in a row without
    a new checkpoint fail the job, too."""
    on: Many[Annotated[RetryOn, Field(strict=False)]] = (RetryOn.NODE_LOST, RetryOn.CRASHED, RetryOn.STALLED)
    """The reasons after which another attempt follows. Any other reason fails the job at once."""
    backoff: Annotated[float, Field(ge=0, le=DAY), DURATION] = 0.0
    """The wait before another attempt, at most a day. The wait doubles with each attempt that wrote no new checkpoint.
    0 takes the service's setting, `FOOTPLATE_RETRY_BACKOFF_SECONDS`."""
