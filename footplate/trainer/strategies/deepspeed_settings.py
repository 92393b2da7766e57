"""Builds the configuration for DeepSpeed's engine. Values that are `auto` come from the arguments and the model."""

from __future__ import annotations

from typing import Any

from torch import nn

from footplate.contract.arguments import TrainingArguments
from footplate.contract.arguments import deepspeed as deepspeed_arguments


def settings(args: TrainingArguments, model: nn.Module, *, per_process: int, world: int) -> dict[str, Any]:
    """Returns the engine's configuration, with values in place of `auto`.

    Raises ValueError if the configuration and the training arguments contradict each other.
    """
    config = deepspeed_arguments.read(args.deepspeed)
    for _, why in deepspeed_arguments.refusals(config, args):
        raise ValueError(why)
    if conflicts := deepspeed_arguments.fill(config, args, per_process=per_process, world=world):
        differences = "; ".join(map(str, conflicts))
        raise ValueError(f"deepspeed's config and the arguments differ: {differences}. Write auto in the config")
    _sizes(config, model)
    if unset := list(deepspeed_arguments.autos(config)):
        raise ValueError(f"deepspeed's config has auto for {', '.join(unset)}, and no argument sets it: give a value")
    # The engine sees one backward at a time, because the Trainer decides which one ends an accumulation window.
    config |= {"gradient_accumulation_steps": 1, "train_batch_size": per_process * world}
    config |= {"train_micro_batch_size_per_gpu": per_process, "gradient_clipping": args.max_grad_norm}
    config |= {"zero_allow_untested_optimizer": True, "zero_force_ds_cpu_optimizer": False}
    return config


def stage(config: dict[str, Any]) -> int:
    return int((config.get("zero_optimization") or {}).get("stage", 0))


def _sizes(config: dict[str, Any], model: nn.Module) -> None:
    """Sets buffer sizes that are `auto` from the model's hidden size."""
    zero = config.get("zero_optimization") or {}
    names = [name for name in deepspeed_arguments.OF_THE_MODEL if zero.get(name) == deepspeed_arguments.AUTO]
    if not names:
        return
    width = _width(getattr(model, "config", None))
    if width is None:
        raise ValueError(
            f"deepspeed's config has auto for {', '.join(names)}, whose values depend on the model's hidden_size, but "
            "the model's config has no hidden_size: write numbers instead of auto"
        )
    sizes = {
        "reduce_bucket_size": width * width,
        "stage3_prefetch_bucket_size": int(0.9 * width * width),
        "stage3_param_persistence_threshold": 10 * width,
    }
    zero.update({name: sizes[name] for name in names})


def _width(config: Any) -> int | None:
    configs: tuple[Any, ...] = (config, getattr(config, "text_config", None))
    for section in configs:
        if getattr(section, "hidden_size", None):
            return int(section.hidden_size)
        if getattr(section, "hidden_sizes", None):
            return int(max(section.hidden_sizes))
    return None
