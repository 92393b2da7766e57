"""Reads the launcher's environment variables and turns them into arguments, so that Accelerate applies none by itself.

`accelerate launch --use_fsdp` sets such variables, and so do its other options and the file of `accelerate config`.
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


def apply(args: Any, environment: Environment = os.environ) -> None:
    """Sets the arguments that the launcher sets and the script does not. FSDP and DeepSpeed together are refused."""
    arguments: dict[str, Any] = {}
    if _is_set(environment, "ACCELERATE_USE_FSDP"):
        arguments |= {"fsdp": True, "fsdp_config": _fsdp(environment)}
    if _is_set(environment, "ACCELERATE_USE_DEEPSPEED"):
        arguments["deepspeed"] = _deepspeed(environment)
    if _is_set(environment, "ACCELERATE_USE_PARALLELISM_CONFIG"):
        sizes = _named(environment, _SIZES)
        arguments["parallelism_config"] = {name: int(size) for name, size in sizes.items() if name.endswith("_size")}
    if args.fsdp:
        arguments.pop("fsdp_config", None)
    for name, value in arguments.items():
        other = {"fsdp": "deepspeed", "deepspeed": "fsdp"}.get(name)
        if other and getattr(args, other):
            raise ValueError(
                f"the launcher sets {name}, and the arguments set {other}: leave one of them out. If the "
                "script is started with torchrun, only the arguments are used"
            )
        if not getattr(args, name):
            setattr(args, name, value)


def refuse(world: int, environment: Environment = os.environ) -> None:
    """Raises NotAvailableYet for settings of the launcher that the Trainer does not support."""
    several = {"ACCELERATE_DYNAMO_BACKEND": "torch_compile=True, with torch_compile_backend"} if world > 1 else {}
    for name, argument in {"ACCELERATE_USE_MEGATRON_LM": "fsdp=True, or deepspeed", **several}.items():
        if _is_set(environment, name):
            raise NotAvailableYet(
                f"the launcher sets {name}={environment[name]}, which the Trainer does not support",
                hint=f"start with torchrun, which does not set it, and use {argument}",
            )


def _fsdp(environment: Environment) -> dict[str, Any]:
    settings = {
        name: text
        for name, text in _named(environment, _FSDP).items()
        if text not in _IGNORED_FSDP_VALUES.get(name, ())
    }
    # The launcher sets sharding_strategy and reshard_after_forward. FSDP 1 reads the first, and FSDP 2 the second.
    settings.pop("sharding_strategy" if settings.get("version") == "2" else "reshard_after_forward", None)
    if settings.get("auto_wrap_policy") != "size_based_wrap":
        settings.pop("min_num_params", None)
    if settings.pop("transformer_cls_to_wrap", None):
        settings["transformer_layer_cls_to_wrap"] = environment[f"{_FSDP}TRANSFORMER_CLS_TO_WRAP"]
    return fsdp_config(settings)


def _deepspeed(environment: Environment) -> str | dict[str, Any]:
    settings = _named(environment, _ZERO)
    if settings.pop("config_file", None):
        return environment[f"{_ZERO}CONFIG_FILE"]
    zero: dict[str, Any] = {name: settings.pop(name) for name in _OF_ZERO if name in settings}
    if "zero_stage" in zero:
        zero["zero_stage"] = int(zero["zero_stage"])
    for name in (name for name, text in settings.items() if text != "false"):
        raise NotAvailableYet(
            f"the launcher sets {_ZERO}{name.upper()}={environment[_ZERO + name.upper()]}, which is not supported",
            hint="leave it out: each process makes the model before it is sharded, and checkpoints are whole",
        )
    config = zero_config(zero)
    for name, key in (("GRADIENT_ACCUMULATION_STEPS", int), ("GRADIENT_CLIPPING", float)):
        if (text := environment.get(f"ACCELERATE_{name}", "auto")) not in ("auto", "none"):
            config[name.lower()] = key(text)
    return config


def _is_set(environment: Environment, name: str) -> bool:
    return environment.get(name, "").lower() not in _NOTHING


def _named(environment: Environment, prefix: str) -> dict[str, str]:
    """Returns the variables with the prefix, by the rest of their name. Values "", "no" and "none" are left out."""
    named = {
        name.removeprefix(prefix).lower(): text.lower() for name, text in environment.items() if name.startswith(prefix)
    }
    return {name: text for name, text in named.items() if text not in ("", "no", "none")}
