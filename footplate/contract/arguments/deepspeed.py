"""Checks DeepSpeed's configuration, and compares it with the training arguments. Values `auto` are filled from these.

The service uses this module when it accepts a job, and the Trainer before it trains.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from difflib import get_close_matches
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from footplate.contract.arguments.training import TrainingArguments

Config = dict[str, Any]

AUTO = "auto"
OF_THE_MODEL = ("reduce_bucket_size", "stage3_prefetch_bucket_size", "stage3_param_persistence_threshold")
"""Sizes in `zero_optimization` that follow the width of the model if they are `auto`."""
_OURS = {
    "amp": "Apex is not supported: use bf16",
    "data_efficiency": "the Trainer reads the data: leave data_efficiency out of the config",
    "curriculum_learning": "the Trainer reads the data: leave curriculum_learning out of the config",
    "pipeline": "the Trainer does not split models into pipeline stages: leave pipeline out of the config",
    "activation_checkpointing": "it only works for models that call deepspeed.checkpointing: set the training argument "
    "activation_checkpointing instead",
    "compile": "DeepSpeed's compiler is not tested: set the training argument torch_compile instead",
    "zero_force_ds_cpu_optimizer": "torch's AdamW runs on the CPU too: leave zero_force_ds_cpu_optimizer out of the "
    "config, or write false",
}
_TRIED_IN = {
    "": (
        "train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps", "gradient_clipping",
        "bf16", "fp16", "optimizer", "scheduler", "zero_optimization", "communication_data_type",
        "wall_clock_breakdown", "steps_per_print", "zero_allow_untested_optimizer",
    ),
    "bf16": ("enabled",),
    "fp16": (
        "enabled", "auto_cast", "loss_scale", "loss_scale_window", "initial_scale_power", "hysteresis",
        "min_loss_scale", "consecutive_hysteresis",
    ),
    "optimizer": ("type", "params"),
    "optimizer.params": ("lr", "betas", "eps", "weight_decay"),
    "zero_optimization": (
        "stage", "allgather_partitions", "allgather_bucket_size", "overlap_comm", "reduce_scatter",
        "reduce_bucket_size", "contiguous_gradients", "round_robin_gradients", "sub_group_size",
        "stage3_prefetch_bucket_size", "stage3_param_persistence_threshold", "stage3_max_live_parameters",
        "stage3_max_reuse_distance", "stage3_gather_16bit_weights_on_model_save",
        "stage3_gather_fp16_weights_on_model_save", "offload_optimizer", "offload_param",
    ),
    "zero_optimization.offload_optimizer": ("device", "pin_memory", "nvme_path"),
    "zero_optimization.offload_param": ("device", "pin_memory", "nvme_path"),
}  # fmt: skip
"""The keys that are tested, by section. DeepSpeed has hundreds of keys and ignores unknown ones. Keys that are not
listed here are refused."""
_NEWER = {
    "cpu_offload": 'write "offload_optimizer": {"device": "cpu"}',
    "cpu_offload_params": 'write "offload_param": {"device": "cpu"}',
    "cpu_offload_param": 'write "offload_param": {"device": "cpu"}',
}
_SCHEDULES = {"WarmupLR": "constant_with_warmup", "WarmupDecayLR": "linear", "WarmupCosineLR": "cosine"}
"""The Trainer's schedule that is nearest to each schedule of DeepSpeed."""
_DEVICES = ("cpu", "none")
_TYPO = 0.8
"""The similarity to a known key from which an unknown key counts as misspelt."""
_ADAM = ("adam", "adamw")


class Difference(NamedTuple):
    """A value in the config that contradicts an argument."""

    path: str
    written: Any
    name: str
    value: Any

    def __str__(self) -> str:
        return f"{self.path} is {self.written}, but {self.name} is {self.value}"


def read(value: Config | str | None) -> Config:
    """Returns a copy of the configuration, or the content of the JSON file that a path names."""
    if isinstance(value, str):
        config = json.loads(Path(value).read_text(encoding="utf-8"))
        if not isinstance(config, dict):
            raise ValueError(f"deepspeed names {value}, which is not a JSON object")
        return config
    return copy.deepcopy(value or {})


def refusals(config: Config, args: TrainingArguments) -> Iterator[tuple[str, str]]:
    """Yields (path, reason) for everything in the config that is not supported."""
    for name, why in _OURS.items():
        if config.get(name):
            yield name, f"deepspeed's config has {name}, but {why}"
    yield from _never_tried(config)
    yield from _schedule(config.get("scheduler"))
    yield from _offloads(config.get("zero_optimization"))
    if args.fp16 or _enabled(config.get("fp16")) is True:
        name = "fp16" if args.fp16 else "deepspeed.fp16.enabled"
        yield "fp16", f"{name} needs a loss scale, which a checkpoint of several processes does not store: use bf16"
    zero = config.get("zero_optimization")
    if args.bf16 and not (isinstance(zero, dict) and zero.get("stage")):
        yield (
            "zero_optimization",
            "training in bf16 with ZeRO stage 0 cannot resume from a checkpoint: "
            "set stage to 1, 2 or 3, or train with DDP",
        )
    section = config.get("optimizer")
    kind = str(section.get("type", "")) if isinstance(section, dict) else ""
    if section and (kind.lower() not in _ADAM or not args.optim.startswith("adamw")):
        yield (
            "optimizer",
            f"deepspeed's config has the optimizer {kind}, but optim is {args.optim}: leave it out of the config, and "
            "set optim, or pass optimizers=",
        )


def _never_tried(config: Config) -> Iterator[tuple[str, str]]:
    for path, names in _TRIED_IN.items():
        section = _at(config, path)
        for name in islice(section, 100) if isinstance(section, dict) else ():
            value, where = section[name], f"{path}.{name[:80]}" if path else name[:80]
            if name in names or (not path and name in _OURS):
                continue
            if name in _NEWER:
                reason = f"which is an older name: {_NEWER[name]}"
            elif nearest_names := get_close_matches(name[:80], names, n=1, cutoff=_TYPO):
                reason = f"which DeepSpeed would ignore: did you mean {nearest_names[0]!r}?"
            elif value is None or value is False or _enabled(value) is False:
                continue
            else:
                reason = "which is not tested: leave it out of the config"
            yield where, f"deepspeed's config has {where!r}, {reason}"


def _at(config: Config, path: str) -> Any:
    node: Any = config
    for name in path.split(".") if path else ():
        node = node.get(name) if isinstance(node, dict) else None
    return node


def _schedule(section: Any) -> Iterator[tuple[str, str]]:
    if not section:
        return
    kind = str(section.get("type", ""))[:80] if isinstance(section, dict) else ""
    instead = f'"{_SCHEDULES[kind]}"' if kind in _SCHEDULES else "one"
    yield (
        "scheduler",
        f"deepspeed's config has the scheduler {kind}, but lr_scheduler_type makes the schedule: leave scheduler out "
        f"of the config, and set lr_scheduler_type to {instead} with warmup_steps",
    )


def _offloads(zero: Any) -> Iterator[tuple[str, str]]:
    for name in ("offload_optimizer", "offload_param"):
        section = zero.get(name) if isinstance(zero, dict) else None
        device = section.get("device", "none") if isinstance(section, dict) else "none"
        if device not in _DEVICES:
            where = f"zero_optimization.{name}.device"
            yield where, f'{where} is {str(device)[:80]!r}, which is not tested: write "cpu" or "none"'


def fill(config: Config, args: TrainingArguments, *, per_process: int, world: int) -> list[Difference]:
    """Replaces each `auto` by the value of the training argument that corresponds to it, in place.

    Returns the values in the config that contradict their argument.
    """
    config.pop("fp16", None)
    if args.bf16:
        config.setdefault("bf16", {"enabled": AUTO})
    accumulate = args.gradient_accumulation_steps
    expected_values = (
        ("optimizer.params.lr", args.learning_rate, "learning_rate"),
        ("optimizer.params.betas", [args.adam_beta1, args.adam_beta2], "adam_beta1 and adam_beta2"),
        ("optimizer.params.eps", args.adam_epsilon, "adam_epsilon"),
        ("optimizer.params.weight_decay", args.weight_decay, "weight_decay"),
        ("train_micro_batch_size_per_gpu", per_process, "per_device_train_batch_size"),
        ("gradient_accumulation_steps", accumulate, "gradient_accumulation_steps"),
        ("train_batch_size", per_process * accumulate * world, "the samples of a step over all processes"),
        ("gradient_clipping", args.max_grad_norm, "max_grad_norm"),
        ("bf16.enabled", args.bf16, "bf16"),
    )
    differ = [difference for answer in expected_values if (difference := _match(config, *answer)) is not None]
    # The Trainer makes this optimizer, an Adam, itself. Its arguments were compared with the config above.
    config.pop("optimizer", None)
    return differ


def autos(value: Any, path: str = "") -> Iterator[str]:
    """Yields the paths of all values that are `auto`."""
    if isinstance(value, dict):
        for name, item in value.items():
            yield from autos(item, f"{path}.{name}" if path else name)
    elif value == AUTO:
        yield path


def _match(config: Config, path: str, value: Any, name: str) -> Difference | None:
    *parents, key = path.split(".")
    node = _at(config, ".".join(parents))
    if not isinstance(node, dict) or key not in node:
        return None
    if node[key] == AUTO:
        node[key] = value
        return None
    return None if node[key] == value else Difference(path, node[key], name, value)


def _enabled(section: Any) -> Any:
    return section.get("enabled") if isinstance(section, dict) else None
