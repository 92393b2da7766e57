"""Reads what a launcher (torchrun, accelerate, DeepSpeed) sets in the environment: this process's rank, and arguments.

Settings of `accelerate launch` and of the file of `accelerate config` become the Trainer's arguments, so that
Accelerate applies none by itself.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from footplate.contract.arguments.accelerate_config import fsdp_config, zero_config
from footplate.contract.errors import NotAvailableYet

if TYPE_CHECKING:
    import torch

PRECISION = "ACCELERATE_MIXED_PRECISION"
_PRECISIONS = ("no", "bf16", "fp16", "fp8")
_NAMES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
_NOTHING = ("", "no", "none", "0", "false")
_FSDP, _ZERO, _SIZES = "FSDP_", "ACCELERATE_DEEPSPEED_", "PARALLELISM_CONFIG_"
_OF_ZERO = ("zero_stage", "offload_optimizer_device", "offload_param_device")
_IGNORED_FSDP_VALUES = {
    "cpu_ram_efficient_loading": ("true", "false"),
    "forward_prefetch": ("false",),
    "use_orig_params": ("true",),
    "sync_module_states": ("true",),
    "activation_checkpointing": ("false",),
    "activation_checkpointing_offload": ("false",),
    "offload_params": ("false",),
}
"""FSDP settings that a launcher always sets, with the values that change no result and are ignored."""


def launched_on_cpu() -> bool:
    """Returns True if `accelerate launch --cpu` started this process, even if there are GPUs."""
    return os.environ.get("ACCELERATE_USE_CPU", "").lower() in ("1", "true", "yes", "y", "t", "on")


def launched_precision() -> str:
    """Returns the precision of `accelerate launch --mixed_precision` or `accelerate config`. Arguments override it."""
    precision = os.environ.get(PRECISION, "no").lower()
    if precision not in _PRECISIONS:
        raise ValueError(f"{PRECISION} is {precision!r}: use one of {', '.join(_PRECISIONS)}")
    return precision


@dataclass(frozen=True, slots=True)
class Place:
    """This process among the processes of a distributed run. Without a launcher, there is one process."""

    rank: int = 0
    world: int = 1
    local_rank: int = 0
    """The number of this process on its machine."""
    is_launched: bool = False
    """True if a launcher started this process, alone or with others."""

    @property
    def gpu(self) -> torch.device:
        """The GPU with this process's number on its machine, modulo the GPUs that the process sees."""
        import torch

        return torch.device("cuda", self.local_rank % torch.cuda.device_count())

    @classmethod
    def here(cls, local_rank: int = -1, environment: Mapping[str, str] = os.environ) -> Place:
        """Reads the rank and the number of processes from the environment.

        Old launchers pass `local_rank` instead of LOCAL_RANK.
        """
        local = int(environment.get("LOCAL_RANK", local_rank))
        if local < 0:
            return cls()
        missing = [name for name in _NAMES if name not in environment]
        if missing:
            raise ValueError(
                f"a launcher has set LOCAL_RANK or local_rank to {local}, but not "
                f"{', '.join(missing)}: start the script with torchrun, or unset LOCAL_RANK to train in one process"
            )
        return cls(int(environment["RANK"]), int(environment["WORLD_SIZE"]), local, is_launched=True)


def set_launched_arguments(args: Any) -> None:
    """Sets the arguments that the launcher sets and the script does not. FSDP and DeepSpeed together are refused."""
    arguments: dict[str, Any] = {}
    if _is_set("ACCELERATE_USE_FSDP"):
        arguments |= {"fsdp": True, "fsdp_config": _fsdp()}
    if _is_set("ACCELERATE_USE_DEEPSPEED"):
        arguments["deepspeed"] = _deepspeed()
    if _is_set("ACCELERATE_USE_PARALLELISM_CONFIG"):
        sizes = _named(_SIZES)
        arguments["parallelism_config"] = {name: int(size) for name, size in sizes.items() if name.endswith("_size")}
    if args.fsdp:
        arguments.pop("fsdp_config", None)
    for name, value in arguments.items():
        other_strategy = {"fsdp": "deepspeed", "deepspeed": "fsdp"}.get(name)
        if other_strategy and getattr(args, other_strategy):
            raise ValueError(
                f"the launcher sets {name}, and the arguments set {other_strategy}: leave one of them out. If the "
                "script is started with torchrun, only the arguments are used"
            )
        if not getattr(args, name):
            setattr(args, name, value)


def refuse_unsupported(world: int) -> None:
    """Raises NotAvailableYet for settings of the launcher that the Trainer does not support."""
    several = {"ACCELERATE_DYNAMO_BACKEND": "torch_compile=True, with torch_compile_backend"} if world > 1 else {}
    for name, argument in {"ACCELERATE_USE_MEGATRON_LM": "fsdp=True, or deepspeed", **several}.items():
        if _is_set(name):
            raise NotAvailableYet(
                f"the launcher sets {name}={os.environ[name]}, which the Trainer does not support",
                hint=f"start with torchrun, which does not set it, and use {argument}",
            )


def _fsdp() -> dict[str, Any]:
    settings = {name: text for name, text in _named(_FSDP).items() if text not in _IGNORED_FSDP_VALUES.get(name, ())}
    # The launcher sets sharding_strategy and reshard_after_forward. FSDP 1 reads the first, and FSDP 2 the second.
    settings.pop("sharding_strategy" if settings.get("version") == "2" else "reshard_after_forward", None)
    if settings.get("auto_wrap_policy") != "size_based_wrap":
        settings.pop("min_num_params", None)
    if settings.pop("transformer_cls_to_wrap", None):
        settings["transformer_layer_cls_to_wrap"] = os.environ[f"{_FSDP}TRANSFORMER_CLS_TO_WRAP"]
    return fsdp_config(settings)


def _deepspeed() -> str | dict[str, Any]:
    settings = _named(_ZERO)
    if settings.pop("config_file", None):
        return os.environ[f"{_ZERO}CONFIG_FILE"]
    zero: dict[str, Any] = {name: settings.pop(name) for name in _OF_ZERO if name in settings}
    if "zero_stage" in zero:
        zero["zero_stage"] = int(zero["zero_stage"])
    for name in (name for name, text in settings.items() if text != "false"):
        raise NotAvailableYet(
            f"the launcher sets {_ZERO}{name.upper()}={os.environ[_ZERO + name.upper()]}, which is not supported",
            hint="leave it out: each process makes the model before it is sharded, and checkpoints are whole",
        )
    config = zero_config(zero)
    for name, key in (("GRADIENT_ACCUMULATION_STEPS", int), ("GRADIENT_CLIPPING", float)):
        if (text := os.environ.get(f"ACCELERATE_{name}", "auto")) not in ("auto", "none"):
            config[name.lower()] = key(text)
    return config


def _is_set(name: str) -> bool:
    return os.environ.get(name, "").lower() not in _NOTHING


def _named(prefix: str) -> dict[str, str]:
    """Returns the variables with the prefix, by the rest of their name. Values "", "no" and "none" are left out."""
    texts = {
        name.removeprefix(prefix).lower(): text.lower() for name, text in os.environ.items() if name.startswith(prefix)
    }
    return {name: text for name, text in texts.items() if text not in ("", "no", "none")}
