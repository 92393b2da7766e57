"""The fields that several processes are about: how they share the work, talk to each other, write and log."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from footplate.contract.arguments.groups import Count, Whole
from footplate.contract.arguments.parallelism import sizes


def _plain(value: object) -> object:
    """An object that knows itself as a dict, such as the reference's AcceleratorConfig."""
    to_dict: Any = getattr(value, "to_dict", None)
    return to_dict() if to_dict is not None else value


Settings = Annotated[dict[str, Any] | str | None, BeforeValidator(_plain)]
"""A dict, or the path of a JSON file that holds one."""


Parallelism = Annotated[dict[str, int] | None, BeforeValidator(sizes)]


@dataclass
class Processes:
    local_rank: Whole = -1
    """Which process of its node this is, for launchers that say so on the command line; torchrun says it in LOCAL_RANK,
    which wins."""
    average_tokens_across_devices: bool = True
    """A loss of tokens is a mean over those of all processes. False divides by each process's own."""
    log_on_each_node: bool = True
    """The first process of every node logs and prints; False leaves it to the first of all."""
    save_on_each_node: bool = False
    """The first process of every node writes checkpoints, for nodes that share no file system."""
    eval_use_gather_object: bool = False
    """Predictions may be of any kind: they are pickled to reach the other processes. False sends tensors only."""
    accelerator_config: Settings = None
    """How batches are shared among processes: `split_batches`, `even_batches`, `non_blocking`,
    `gradient_accumulation_kwargs`. A dict, an AcceleratorConfig, or the path of a JSON file."""


@dataclass
class Ddp:
    ddp_find_unused_parameters: bool | None = None
    """Look in every backward for parameters that had no part in it. None does, unless activations are recomputed."""
    ddp_bucket_cap_mb: Count | None = None
    """Gradients are sent in pieces of so many MB; None is torch's 25."""
    ddp_broadcast_buffers: bool | None = None
    """Every forward begins with the first process's buffers; None does so, as torch."""
    ddp_static_graph: bool | None = None
    """The same parameters have a part in every step: torch may then plan ahead."""
    ddp_backend: str | None = None
    """How processes talk: `nccl`, `gloo`, or one per device as `cuda:nccl,cpu:gloo`. None chooses by the device."""
    ddp_timeout: Annotated[Whole, Field(ge=1)] = 1800
    """Seconds after which a process that waits for another one gives up."""


@dataclass
class Sharding:
    fsdp: bool | str | list[str] | None = None
    """Shard parameters, gradients and optimizer state over the processes (FSDP). The older words (`full_shard`,
    `shard_grad_op`, `offload`, `auto_wrap`) are understood."""
    fsdp_config: Settings = None
    """How: `version`, `reshard_after_forward`, `transformer_layer_cls_to_wrap`, `min_num_params`, `cpu_offload`,
    `activation_checkpointing`, `state_dict_type` and more. A dict, or the path of a JSON file."""
    parallelism_config: Parallelism = None
    """Over how many processes a model or a sample is shared, and how: Accelerate's ParallelismConfig, or its sizes by
    name, as `tp_size`, `dp_shard_size` and `cp_size`. With a `tp_size` the model comes cut into parts."""
    deepspeed: Settings = None
    """DeepSpeed's own configuration, a dict or the path of a JSON file; its values that are `auto` follow the other
    arguments."""
