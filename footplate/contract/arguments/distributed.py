"""The fields for several processes: how they share the work, communicate, write and log."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from footplate.contract.arguments.groups import Count, Whole
from footplate.contract.arguments.parallelism import sizes


def _plain(value: object) -> object:
    """Converts a path to text, and an object with `to_dict`, such as Accelerate's AcceleratorConfig, to a dict."""
    if isinstance(value, type):
        raise NotImplementedError(
            f"Tried passing in a callable to `accelerator_config`: {value.__name__} is a class. Pass an object of it, "
            "a dict or the path of a JSON file"
        )
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    to_dict: Any = getattr(value, "to_dict", None)
    return to_dict() if to_dict is not None else value


Settings = Annotated[dict[str, Any] | str | None, BeforeValidator(_plain)]
"""A dict, or the path of a JSON file that holds one."""


Parallelism = Annotated[dict[str, int] | None, BeforeValidator(sizes)]


@dataclass
class Processes:
    local_rank: Whole = -1
    """The process's index on its node, for launchers that pass it on the command line. torchrun sets LOCAL_RANK, which
    wins."""
    average_tokens_across_devices: bool = True
    """Divide a loss of tokens by the mean number of tokens of all processes. False divides by each process's own."""
    log_on_each_node: bool = True
    """Log and print on the first process of every node. False leaves it to the first process of all."""
    save_on_each_node: bool = False
    """Write checkpoints on the first process of every node, for nodes that share no file system."""
    eval_use_gather_object: bool = False
    """Allow predictions of any kind, which are pickled to reach the other processes. False sends tensors only."""
    accelerator_config: Settings = None
    """The way in which batches are shared among processes: `split_batches`, `even_batches`, `non_blocking`,
    `gradient_accumulation_kwargs`. A dict, an AcceleratorConfig, or the path of a JSON file."""


@dataclass
class Ddp:
    ddp_find_unused_parameters: bool | None = None
    """Search in every backward for parameters that had no part in it. None: unless activations are recomputed."""
    ddp_bucket_cap_mb: Count | None = None
    """The size in MB of the pieces in which gradients are sent. None is torch's 25."""
    ddp_broadcast_buffers: bool | None = None
    """Begin every forward with the first process's buffers. None does so, like torch."""
    ddp_static_graph: bool | None = None
    """Promise that the same parameters have a part in every step, so that torch may plan ahead."""
    ddp_backend: str | None = None
    """The communication backend: `nccl`, `gloo`, or one per device as `cuda:nccl,cpu:gloo`. None chooses by the
    device."""
    ddp_timeout: Annotated[Whole, Field(ge=1)] = 1800
    """Seconds after which a process stops waiting for another one and fails."""


@dataclass
class Sharding:
    fsdp: bool | str | list[str] | None = None
    """Shard parameters, gradients and optimizer state over the processes (FSDP). The older words (`full_shard`,
    `shard_grad_op`, `offload`, `auto_wrap`) are accepted."""
    fsdp_config: Settings = None
    """FSDP's options: `version`, `reshard_after_forward`, `transformer_layer_cls_to_wrap`, `min_num_params`,
    `cpu_offload`, `activation_checkpointing`, `state_dict_type` and more. A dict, or the path of a JSON file."""
    parallelism_config: Parallelism = None
    """The numbers of processes that share a model or a sample: Accelerate's ParallelismConfig, or its sizes by name,
    such as `tp_size`, `dp_shard_size` and `cp_size`. With a `tp_size` the model is loaded already sharded."""
    deepspeed: Settings = None
    """DeepSpeed's own configuration, a dict or the path of a JSON file. Values that are `auto` follow the other
    arguments."""
