"""DeepSpeed's configuration: what is `auto` in it follows the arguments; what contradicts them is told, both sides."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

from torch import nn

from contract.arguments import TrainingArguments

AUTO = "auto"
_OURS = {
    "scheduler": "lr_scheduler_type makes the schedule: leave scheduler out of the config",
    "amp": "Apex is not there: use bf16",
    "data_efficiency": "the Trainer reads the data: leave data_efficiency out of the config",
    "curriculum_learning": "the Trainer reads the data: leave curriculum_learning out of the config",
    "pipeline": "a pipeline is cut by the model's own code: leave pipeline out of the config",
}
_ADAM = ("adam", "adamw")


def settings(args: TrainingArguments, model: nn.Module, *, per_process: int, world: int) -> dict[str, Any]:
    """As DeepSpeed is given it: no `auto` is left, and every value that the arguments have too is theirs."""
    config = _read(args.deepspeed)
    for name, why in _OURS.items():
        if config.get(name):
            raise ValueError(f"deepspeed's config has {name}, and {why}")
    _half(config, args)
    _optimizer(config, args)
    accumulate = args.gradient_accumulation_steps
    differ: list[str] = []
    for path, value, name in (
        ("train_micro_batch_size_per_gpu", per_process, "per_device_train_batch_size"),
        ("gradient_accumulation_steps", accumulate, "gradient_accumulation_steps"),
        ("train_batch_size", per_process * accumulate * world, "the samples of a step over all processes"),
        ("gradient_clipping", args.max_grad_norm, "max_grad_norm"),
        ("bf16.enabled", args.bf16, "bf16"),
    ):
        differ += _match(config, path, value, name)
    if differ:
        raise ValueError(f"deepspeed's config and the arguments differ: {'; '.join(differ)}. Write auto in the config")
    _sizes(config, model)
    if left := list(_autos(config)):
        raise ValueError(f"deepspeed's config has auto for {', '.join(left)}, and no argument says it: give a value")
    # One backward at a time, and the Trainer says which of them is a window's last.
    config |= {"gradient_accumulation_steps": 1, "train_batch_size": per_process * world}
    config |= {"train_micro_batch_size_per_gpu": per_process, "gradient_clipping": args.max_grad_norm}
    config |= {"zero_allow_untested_optimizer": True, "zero_force_ds_cpu_optimizer": False}
    return config


def stage(config: dict[str, Any]) -> int:
    return int((config.get("zero_optimization") or {}).get("stage", 0))


def _read(value: dict[str, Any] | str | None) -> dict[str, Any]:
    if isinstance(value, str):
        found = json.loads(Path(value).read_text(encoding="utf-8"))
        if not isinstance(found, dict):
            raise ValueError(f"deepspeed names {value}, which holds no configuration")
        return found
    return copy.deepcopy(value or {})


def _half(config: dict[str, Any], args: TrainingArguments) -> None:
    fp16 = config.get("fp16") or {}
    if args.fp16 or fp16.get("enabled") is True:
        raise ValueError(
            f"{'fp16' if args.fp16 else 'deepspeed.fp16.enabled'} wants a loss scale, which a checkpoint of all "
            "processes would not hold: use bf16, which needs none"
        )
    config.pop("fp16", None)
    if args.bf16:
        config.setdefault("bf16", {"enabled": AUTO})


def _optimizer(config: dict[str, Any], args: TrainingArguments) -> None:
    """DeepSpeed's Adam is ours: it has the same arguments. Its others are its own, and are made by nobody here."""
    section = config.pop("optimizer", None)
    if not section:
        return
    kind = str(section.get("type", ""))
    if kind.lower() not in _ADAM or not args.optim.startswith("adamw"):
        raise ValueError(
            f"deepspeed's config has the optimizer {kind}, and optim is {args.optim}: leave it out of the config, and "
            "say optim, or hand in optimizers="
        )
    given = {"optimizer": section}
    differ: list[str] = []
    for path, value, name in (
        ("lr", args.learning_rate, "learning_rate"),
        ("betas", [args.adam_beta1, args.adam_beta2], "adam_beta1 and adam_beta2"),
        ("eps", args.adam_epsilon, "adam_epsilon"),
        ("weight_decay", args.weight_decay, "weight_decay"),
    ):
        differ += _match(given, f"optimizer.params.{path}", value, name)
    if differ:
        raise ValueError(f"deepspeed's config and the arguments differ: {'; '.join(differ)}. Write auto in the config")


def _match(config: dict[str, Any], path: str, value: Any, name: str) -> list[str]:
    """Fills an `auto`; else says how they differ, if they do."""
    *parents, key = path.split(".")
    node: Any = config
    for each in parents:
        node = node.get(each) if isinstance(node, dict) else None
    if not isinstance(node, dict) or key not in node:
        return []
    if node[key] == AUTO:
        node[key] = value
        return []
    return [] if node[key] == value else [f"{path} is {node[key]}, and {name} is {value}"]


def _sizes(config: dict[str, Any], model: nn.Module) -> None:
    """Sizes of buffers that are `auto` follow the width of the model."""
    zero = config.get("zero_optimization") or {}
    names = [name for name in ("reduce_bucket_size", "stage3_prefetch_bucket_size",
                               "stage3_param_persistence_threshold") if zero.get(name) == AUTO]  # fmt: skip
    if not names:
        return
    width = _width(getattr(model, "config", None))
    if width is None:
        raise ValueError(
            f"deepspeed's config has auto for {', '.join(names)}, which follow the model's hidden_size, and its config "
            "has none: give numbers"
        )
    sizes = {
        "reduce_bucket_size": width * width,
        "stage3_prefetch_bucket_size": int(0.9 * width * width),
        "stage3_param_persistence_threshold": 10 * width,
    }
    zero.update({name: sizes[name] for name in names})


def _width(config: Any) -> int | None:
    parts: tuple[Any, ...] = (config, getattr(config, "text_config", None))
    for each in parts:
        if getattr(each, "hidden_size", None):
            return int(each.hidden_size)
        if getattr(each, "hidden_sizes", None):
            return int(max(each.hidden_sizes))
    return None


def _autos(value: Any, path: str = "") -> Any:
    if isinstance(value, dict):
        for name, each in value.items():
            yield from _autos(each, f"{path}.{name}" if path else name)
    elif value == AUTO:
        yield path
