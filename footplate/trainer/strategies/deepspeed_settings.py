"""DeepSpeed's configuration as its engine is given it: what is `auto` in it follows the arguments and the model."""

from __future__ import annotations

from typing import Any

from torch import nn

from footplate.contract.arguments import TrainingArguments
from footplate.contract.arguments import deepspeed as told
from footplate.contract.arguments.deepspeed import OF_THE_MODEL

AUTO = told.AUTO


def settings(args: TrainingArguments, model: nn.Module, *, per_process: int, world: int) -> dict[str, Any]:
    """As DeepSpeed is given it: no `auto` is left, and every value that the arguments have too is theirs."""
    config = told.read(args.deepspeed)
    for _, why in told.refusals(config, args):
        raise ValueError(why)
    if differ := told.fill(config, args, per_process=per_process, world=world):
        differences = "; ".join(map(str, differ))
        raise ValueError(f"deepspeed's config and the arguments differ: {differences}. Write auto in the config")
    _sizes(config, model)
    if left := list(told.autos(config)):
        raise ValueError(f"deepspeed's config has auto for {', '.join(left)}, and no argument says it: give a value")
    # One backward at a time, and the Trainer says which of them is a window's last.
    config |= {"gradient_accumulation_steps": 1, "train_batch_size": per_process * world}
    config |= {"train_micro_batch_size_per_gpu": per_process, "gradient_clipping": args.max_grad_norm}
    config |= {"zero_allow_untested_optimizer": True, "zero_force_ds_cpu_optimizer": False}
    return config


def stage(config: dict[str, Any]) -> int:
    return int((config.get("zero_optimization") or {}).get("stage", 0))


def _sizes(config: dict[str, Any], model: nn.Module) -> None:
    """Sizes of buffers that are `auto` follow the width of the model."""
    zero = config.get("zero_optimization") or {}
    names = [name for name in OF_THE_MODEL if zero.get(name) == AUTO]
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
