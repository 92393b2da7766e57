"""Reads the arguments `fsdp` and `fsdp_config`, with Hugging Face's names. Unsupported options raise ValueError.

The service uses this module when it accepts a job, and the Trainer before it trains.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Self

from footplate.contract.arguments.training import TrainingArguments
from footplate.contract.errors import did_you_mean

FULL, SHARDED = "FULL_STATE_DICT", "SHARDED_STATE_DICT"
_POLICIES = ("TRANSFORMER_BASED_WRAP", "SIZE_BASED_WRAP", "NO_WRAP")
_STRATEGIES = ("full_shard", "shard_grad_op", "no_shard", "hybrid_shard", "hybrid_shard_zero2")
_PREFETCHES = ("NO_PREFETCH", "BACKWARD_PRE", "BACKWARD_POST")
_ELSEWHERE = {
    "xla": "XLA has strategies of its own, which are not supported",
    "xla_fsdp_v2": "XLA has strategies of its own, which are not supported",
    "xla_fsdp_settings": "XLA has strategies of its own, which are not supported",
    "xla_fsdp_grad_ckpt": "XLA has strategies of its own, which are not supported",
    "cpu_ram_efficient_loading": "every process makes the model, on the CPU, before it is sharded",
}
_OF_FSDP1 = ("forward_prefetch", "backward_prefetch", "use_orig_params", "sync_module_states", "limit_all_gathers")
_NOT_OF_FSDP1: dict[str, tuple[Any, str]] = {
    "state_dict_type": (
        SHARDED,
        "version 1 writes whole checkpoints. Leave state_dict_type out, or use version 2, which can shard them",
    ),
    "cpu_offload": (True, "leave version out, because version 2 offloads"),
    "use_orig_params": (False, "leave it out, because parameters with and without decay would be merged"),
    "sync_module_states": (False, "leave it out: all processes begin with the main process's weights"),
}
"""Values that are refused with FSDP 1, each with what would work."""


@dataclass(frozen=True)
class FsdpConfig:
    """The checked options of FSDP."""

    version: int = 2
    reshard: str = "full_shard"
    """`full_shard` frees a layer's parameters after its forward, `shard_grad_op` after its backward."""
    auto_wrap_policy: str = _POLICIES[0]
    layers: tuple[str, ...] = ()
    """The classes of modules that are gathered one at a time. If empty, the model's `_no_split_modules` or else its
    repeated modules are used."""
    min_num_params: int = 0
    cpu_offload: bool = False
    activation_checkpointing: bool = False
    state_dict_type: str = FULL
    forward_prefetch: bool = False
    backward_prefetch: str = "NO_PREFETCH"
    use_orig_params: bool = True
    sync_module_states: bool = True
    limit_all_gathers: bool = True

    @classmethod
    def of(cls, args: TrainingArguments) -> Self:
        words = args.fsdp.split() if isinstance(args.fsdp, str) else args.fsdp if isinstance(args.fsdp, list) else []
        return cls.read(args.fsdp_config, args, words)

    @classmethod
    def read(cls, config: dict[str, Any] | str | None, args: TrainingArguments, words: Iterable[str] = ()) -> Self:
        """Reads the options of `fsdp_config`, and the `words` of `fsdp`. Raises ValueError if one cannot be used."""
        options = _settings(config)
        for name, why in _ELSEWHERE.items():
            if _truth(options.pop(name, False)):
                raise ValueError(f"fsdp_config has {name}: {why}. Leave it out")
        version = int(options.pop("version", 2))
        if version not in (1, 2):
            raise ValueError(f"fsdp_config's version is {version}: use 1 or 2")
        options = {**options_of_words(words), **options}
        if version == 2 and (fsdp1_names := [name for name in _OF_FSDP1 if name in options]):
            raise ValueError(
                f"fsdp_config has {', '.join(fsdp1_names)}, which only FSDP 1 has, not version 2: leave it out"
            )
        settings = cls(
            version=version,
            reshard=_reshard(options.pop("reshard_after_forward", True), version),
            auto_wrap_policy=_one_of("auto_wrap_policy", options.pop("auto_wrap_policy", _POLICIES[0]), _POLICIES),
            layers=_names(options.pop("transformer_layer_cls_to_wrap", ())),
            min_num_params=int(options.pop("min_num_params", 0) or 0),
            state_dict_type=_one_of("state_dict_type", options.pop("state_dict_type", FULL), (FULL, SHARDED)),
            backward_prefetch=_one_of(
                "backward_prefetch", options.pop("backward_prefetch", None) or "NO_PREFETCH", _PREFETCHES
            ),
            **{name: _truth(options.pop(name)) for name in _TRUTHS if name in options},
        )
        if options:
            name = next(iter(options))
            hint = did_you_mean(name, _KNOWN) or f"the options are {', '.join(_KNOWN)}"
            raise ValueError(f"fsdp_config has no option {name!r}: {hint}")
        for name, (value, what_works) in _NOT_OF_FSDP1.items():
            if version == 1 and getattr(settings, name) == value:
                raise ValueError(f"fsdp_config's {name} cannot be {value} with version 1: {what_works}")
        if settings.activation_checkpointing and args.activation_checkpointing:
            raise ValueError(
                "activation_checkpointing and fsdp_config's activation_checkpointing both recompute layers: set one"
            )
        if args.fp16:
            raise ValueError("fp16's loss scale is not shared among fsdp's processes: use bf16, which needs none")
        return settings


_TRUTHS = tuple(field.name for field in fields(FsdpConfig) if field.type == "bool")
_KNOWN = (
    "version", "reshard_after_forward", "auto_wrap_policy", "transformer_layer_cls_to_wrap", "min_num_params",
    "state_dict_type", "backward_prefetch", *_TRUTHS,
)  # fmt: skip


def _settings(config: dict[str, Any] | str | None) -> dict[str, Any]:
    options = json.loads(Path(config).read_text(encoding="utf-8")) if isinstance(config, str) else dict(config or {})
    return {name.removeprefix("fsdp_"): value for name, value in options.items()}


def options_of_words(words: Iterable[str]) -> dict[str, Any]:
    """Returns the options for the older values of `fsdp`, such as full_shard and auto_wrap."""
    options: dict[str, Any] = {}
    for word in (str(getattr(item, "value", item)) for item in words):
        if word in _STRATEGIES:
            options["reshard_after_forward"] = word
        elif word == "offload":
            options["cpu_offload"] = True
        elif word not in ("auto_wrap", "true", "True", ""):
            choices = (*_STRATEGIES, "offload", "auto_wrap")
            hint = did_you_mean(word, choices) or f"the options are {', '.join(choices)}"
            raise ValueError(f"fsdp has no option {word!r}: {hint}")
    return options


def _reshard(value: Any, version: int) -> str:
    word = str(value).lower()
    word = {"true": "full_shard", "false": "shard_grad_op"}.get(word, word)
    choices = _STRATEGIES[:2]
    if word not in choices:
        raise ValueError(
            f"fsdp_config's reshard_after_forward is {value!r}, but version {version} accepts {', '.join(choices)}"
            + (", true and false" if version == 2 else "")
        )
    return word


def _one_of(name: str, value: Any, choices: tuple[str, ...]) -> str:
    word = str(value).upper()
    if word not in choices:
        raise ValueError(f"fsdp_config's {name} is {value!r}: use one of {', '.join(choices)}")
    return word


def _names(value: Any) -> tuple[str, ...]:
    return tuple(name.strip() for name in value.split(",")) if isinstance(value, str) else tuple(value or ())


def _truth(value: Any) -> bool:
    return str(value).lower() in ("true", "1", "yes", "y", "on", "t")
