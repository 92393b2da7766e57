"""Arguments that Hugging Face has removed, but that older scripts and pages still use.

A removed name is mapped to a present one with a warning, or refused with what to use instead. Scripts (`translated`)
and specs (`short_forms.py`) use the same table.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from footplate.contract.errors import NotAvailableYet

Values = dict[str, Any]


@dataclass(frozen=True, slots=True)
class RenamedArgument:
    """A removed name that has a counterpart."""

    instead: str
    """The text that messages advise to write instead."""
    apply: Callable[[Any], Values]
    """Returns the present arguments for a value of the removed name. They may be empty."""


@dataclass(frozen=True, slots=True)
class RemovedArgument:
    """A removed name without a counterpart. Only its neutral values, which change nothing, are accepted."""

    instead: str
    neutral: tuple[object, ...] = (None, False)


def _as(name: str) -> RenamedArgument:
    return RenamedArgument(name, lambda value: {name: value})


def _where_true(name: str, to: object) -> RenamedArgument:
    return RenamedArgument(f"{name}={to!r}", lambda value: {name: to} if value else {})


_AMP = "bf16 or fp16: torch's own autocast computes them"

LEGACY: dict[str, RenamedArgument | RemovedArgument] = {
    "evaluation_strategy": _as("eval_strategy"),
    "warmup_ratio": RenamedArgument("warmup_steps below 1", lambda value: {"warmup_steps": value} if value else {}),
    "group_by_length": _where_true("train_sampling_strategy", "group_by_length"),
    "no_cuda": _as("use_cpu"),
    "use_mps_device": RenamedArgument("nothing, because the GPU is used if there is one", lambda value: {}),
    "overwrite_output_dir": RenamedArgument(
        "nothing, because output_dir may contain files of an earlier run", lambda value: {}
    ),
    "save_safetensors": RemovedArgument("nothing, because weights are always saved as safetensors", (None, True)),
    "include_inputs_for_metrics": _where_true("include_for_metrics", ["inputs"]),
    "include_tokens_per_second": _where_true("include_num_input_tokens_seen", "all"),
    "per_gpu_train_batch_size": _as("per_device_train_batch_size"),
    "per_gpu_eval_batch_size": _as("per_device_eval_batch_size"),
    "adafactor": _where_true("optim", "adafactor"),
    "push_to_hub_token": _as("hub_token"),
    "push_to_hub_model_id": _as("hub_model_id"),
    "torchdynamo": _as("torch_compile_backend"),
    "split_batches": RenamedArgument(
        "accelerator_config", lambda value: {"accelerator_config": {"split_batches": True}} if value else {}
    ),
    "dispatch_batches": RenamedArgument(
        "accelerator_config",
        lambda value: {"accelerator_config": {"dispatch_batches": value}} if value is not None else {},
    ),
    "fsdp_min_num_params": RenamedArgument(
        "fsdp_config", lambda value: {"fsdp_config": {"min_num_params": value}} if value else {}
    ),
    "fsdp_transformer_layer_cls_to_wrap": RenamedArgument(
        "fsdp_config", lambda value: {"fsdp_config": {"transformer_layer_cls_to_wrap": value}} if value else {}
    ),
    "half_precision_backend": RemovedArgument(_AMP, (None, "auto", "cuda_amp", "cpu_amp")),
    "fp16_backend": RemovedArgument(_AMP, (None, "auto", "amp", "cuda_amp")),
    "fp16_opt_level": RemovedArgument(f"{_AMP}; Apex and its levels are not supported", (None, "O1")),
    "jit_mode_eval": RemovedArgument("torch_compile"),
    "use_ipex": RemovedArgument("nothing, because torch computes on Intel's CPUs itself"),
    "tpu_num_cores": RemovedArgument("nothing, because Accelerate starts one process per core"),
    "tpu_metrics_debug": RemovedArgument("XLA's own debug report"),
    "ray_scope": RemovedArgument("hyperparameter_search with optuna", (None, "last")),
    "past_index": RemovedArgument("a model that passes its hidden state from batch to batch itself", (None, -1)),
    "mp_parameters": RemovedArgument("fsdp or deepspeed", (None, "")),
    "sharded_ddp": RemovedArgument("fsdp", (None, False, "", [])),
    "xpu_backend": RemovedArgument("ddp_backend"),
    "use_legacy_prediction_loop": RemovedArgument("evaluation_loop, which predicts and evaluates"),
}
"""The removed names. `logging_dir` is not among them, because it still has an effect: trackers write to that folder."""


@dataclass(slots=True)
class PresentArguments:
    """Training arguments under their present names, with lists of the removed names that a user wrote."""

    values: Values
    mapped: dict[str, list[str]] = field(default_factory=dict)
    """Removed names that were mapped, each with the present names that were set for it."""
    declined: dict[str, Any] = field(default_factory=dict)
    """Removed names without a counterpart, each with its value."""
    clashes: dict[str, str] = field(default_factory=dict)
    """Removed names that contradict another argument, each with an explanation."""


def modernized(arguments: Mapping[str, Any]) -> PresentArguments:
    """Maps the removed names among the arguments to present names. Raises no error, but returns all problems."""
    modern = PresentArguments(dict(arguments))
    values = modern.values
    for name in [name for name in arguments if name in LEGACY]:
        rule, value = LEGACY[name], values.pop(name)
        if isinstance(rule, RemovedArgument):
            if not any(type(value) is type(neutral) and value == neutral for neutral in rule.neutral):
                modern.declined[name] = value
            continue
        replacements = rule.apply(value)
        for present_name, new_value in replacements.items():
            merged_value = _joined(values[present_name], new_value) if present_name in values else new_value
            if merged_value is None:
                modern.clashes[name] = (
                    f"{name}={value!r} means {present_name}={new_value!r}, but {present_name} is also set, "
                    f"to {values[present_name]!r}"
                )
            else:
                values[present_name] = merged_value
        modern.mapped[name] = list(replacements)
    return modern


def _joined(present: Any, addition: Any) -> Any:
    """Merges two values of one argument. Returns None if they contradict each other."""
    if isinstance(present, dict) and isinstance(addition, dict):
        agree = all(present.get(key, value) == value for key, value in addition.items())
        return {**present, **addition} if agree else None
    return present if present == addition else None


def translated(arguments: Mapping[str, Any]) -> Values:
    """Returns a script's arguments under their present names, with a warning for each removed name.

    Raises NotAvailableYet or ValueError for a removed name that cannot be mapped.
    """
    modern = modernized(arguments)
    for name, value in modern.declined.items():
        raise NotAvailableYet(
            f"{name} no longer exists, so {name}={value!r} cannot be applied", hint=f"instead: {LEGACY[name].instead}"
        )
    for clash in modern.clashes.values():
        raise ValueError(clash)
    for name in modern.mapped:
        warnings.warn(f"{name} is an older name: write {LEGACY[name].instead}", FutureWarning, stacklevel=2)
    return modern.values
