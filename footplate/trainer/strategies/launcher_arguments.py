"""How a launcher says that the work is shared, in the arguments' words: `accelerate launch --use_fsdp` and its like, or
what `accelerate config` has written for it. Accelerate would heed it beside the strategy that is chosen here.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from footplate.contract.arguments.accelerate_config import fsdp_config, zero_config
from footplate.contract.errors import NotAvailableYet

Environment = Mapping[str, str]

_NOTHING = ("", "no", "none", "0", "false")
_FSDP, _ZERO, _SIZES = "FSDP_", "ACCELERATE_DEEPSPEED_", "PARALLELISM_CONFIG_"
_OF_ZERO = ("zero_stage", "offload_optimizer_device", "offload_param_device")
_BY_ITSELF = {
    "cpu_ram_efficient_loading": ("true", "false"),
    "forward_prefetch": ("false",),
    "use_orig_params": ("true",),
    "sync_module_states": ("true",),
    "activation_checkpointing": ("false",),
    "activation_checkpointing_offload": ("false",),
    "offload_params": ("false",),
}
"""What a launcher says of FSDP though nobody has asked for it, and what changes no result."""


def sharing(environment: Environment = os.environ) -> dict[str, Any]:
    """Arguments by name: empty where the launcher says nothing of it."""
    found: dict[str, Any] = {}
    if _says(environment, "ACCELERATE_USE_FSDP"):
        found |= {"fsdp": True, "fsdp_config": _fsdp(environment)}
    if _says(environment, "ACCELERATE_USE_DEEPSPEED"):
        found["deepspeed"] = _deepspeed(environment)
    if _says(environment, "ACCELERATE_USE_PARALLELISM_CONFIG"):
        sizes = _named(environment, _SIZES)
        found["parallelism_config"] = {name: int(size) for name, size in sizes.items() if name.endswith("_size")}
    return found


def heed(args: Any, environment: Environment = os.environ) -> None:
    """Where the arguments say nothing of it. What they say wins, unless it is the other way to share a model."""
    said = sharing(environment)
    if args.fsdp:
        said.pop("fsdp_config", None)
    for name, value in said.items():
        other = {"fsdp": "deepspeed", "deepspeed": "fsdp"}.get(name)
        if other and getattr(args, other):
            raise ValueError(
                f"the launcher says {name}, and the arguments {other}: leave one of them out. Started with torchrun, "
                "the arguments alone say it"
            )
        if not getattr(args, name):
            setattr(args, name, value)


def refuse(world: int, environment: Environment = os.environ) -> None:
    """What nothing here does, or would do to what several processes share: Accelerate compiles what one trains."""
    several = {"ACCELERATE_DYNAMO_BACKEND": "torch_compile=True, with torch_compile_backend"} if world > 1 else {}
    for name, argument in {"ACCELERATE_USE_MEGATRON_LM": "fsdp=True, or deepspeed", **several}.items():
        if _says(environment, name):
            raise NotAvailableYet(
                f"the launcher says {name}={environment[name]}, and the Trainer does not do that",
                hint=f"start with torchrun, which says nothing of it, and say {argument}",
            )


def _fsdp(environment: Environment) -> dict[str, Any]:
    said = {name: text for name, text in _named(environment, _FSDP).items() if text not in _BY_ITSELF.get(name, ())}
    # Both are always said, and each version has its own.
    said.pop("sharding_strategy" if said.get("version") == "2" else "reshard_after_forward", None)
    if said.get("auto_wrap_policy") != "size_based_wrap":
        said.pop("min_num_params", None)
    if said.pop("transformer_cls_to_wrap", None):
        said["transformer_layer_cls_to_wrap"] = environment[f"{_FSDP}TRANSFORMER_CLS_TO_WRAP"]
    return fsdp_config(said)


def _deepspeed(environment: Environment) -> str | dict[str, Any]:
    said = _named(environment, _ZERO)
    if said.pop("config_file", None):
        return environment[f"{_ZERO}CONFIG_FILE"]
    given: dict[str, Any] = {name: said.pop(name) for name in _OF_ZERO if name in said}
    if "zero_stage" in given:
        given["zero_stage"] = int(given["zero_stage"])
    for name in (name for name, text in said.items() if text != "false"):
        raise NotAvailableYet(
            f"the launcher says {_ZERO}{name.upper()}={environment[_ZERO + name.upper()]}, which is not taken over",
            hint="leave it out: each process makes the model before it is shared out, and checkpoints are whole",
        )
    config = zero_config(given)
    for name, key in (("GRADIENT_ACCUMULATION_STEPS", int), ("GRADIENT_CLIPPING", float)):
        if (text := environment.get(f"ACCELERATE_{name}", "auto")) not in ("auto", "none"):
            config[name.lower()] = key(text)
    return config


def _says(environment: Environment, name: str) -> bool:
    return environment.get(name, "").lower() not in _NOTHING


def _named(environment: Environment, prefix: str) -> dict[str, str]:
    """In small letters, where something is said."""
    named = {
        name.removeprefix(prefix).lower(): text.lower() for name, text in environment.items() if name.startswith(prefix)
    }
    return {name: text for name, text in named.items() if text not in ("", "no", "none")}
