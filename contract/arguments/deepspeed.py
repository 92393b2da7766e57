"""DeepSpeed's configuration beside the arguments: `auto` follows them, what contradicts them is told with both sides.

Read where a job is accepted, and by who trains. Its engine steps; everything else is the Trainer's.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from contract.arguments.training import TrainingArguments
from contract.errors import did_you_mean

Config = dict[str, Any]

AUTO = "auto"
OF_THE_MODEL = ("reduce_bucket_size", "stage3_prefetch_bucket_size", "stage3_param_persistence_threshold")
"""In `zero_optimization`: sizes that are `auto` follow the width of the model."""
_OURS = {
    "scheduler": "lr_scheduler_type makes the schedule: leave scheduler out of the config",
    "amp": "Apex is not there: use bf16",
    "data_efficiency": "the Trainer reads the data: leave data_efficiency out of the config",
    "curriculum_learning": "the Trainer reads the data: leave curriculum_learning out of the config",
    "pipeline": "a pipeline is cut by the model's own code: leave pipeline out of the config",
}
_COMMON = (
    "train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps", "gradient_clipping", "bf16",
    "fp16", "optimizer", "zero_optimization", "activation_checkpointing", "communication_data_type",
    "wall_clock_breakdown", "steps_per_print",
)  # fmt: skip
"""DeepSpeed passes over what it does not know. What is nearly one of these was meant to be."""
_ADAM = ("adam", "adamw")


class Difference(NamedTuple):
    """The config says this, and the arguments say that."""

    path: str
    said: Any
    name: str
    value: Any

    def __str__(self) -> str:
        return f"{self.path} is {self.said}, and {self.name} is {self.value}"


def read(value: Config | str | None) -> Config:
    """A copy, to be filled."""
    if isinstance(value, str):
        found = json.loads(Path(value).read_text(encoding="utf-8"))
        if not isinstance(found, dict):
            raise ValueError(f"deepspeed names {value}, which holds no configuration")
        return found
    return copy.deepcopy(value or {})


def refusals(config: Config, args: TrainingArguments) -> Iterator[tuple[str, str]]:
    """What is not done here: where it stands, and why not."""
    for name, why in _OURS.items():
        if config.get(name):
            yield name, f"deepspeed's config has {name}, and {why}"
    for name in islice(config, 100):
        if name not in _COMMON and (hint := did_you_mean(name[:80], _COMMON)):
            yield name, f"deepspeed's config has {name[:80]!r}, which DeepSpeed would pass over: {hint}"
    if args.fp16 or _enabled(config.get("fp16")) is True:
        said = "fp16" if args.fp16 else "deepspeed.fp16.enabled"
        yield (
            "fp16",
            f"{said} wants a loss scale, which a checkpoint of all processes would not hold: use bf16, which needs "
            "none",
        )
    section = config.get("optimizer")
    kind = str(section.get("type", "")) if isinstance(section, dict) else ""
    if section and (kind.lower() not in _ADAM or not args.optim.startswith("adamw")):
        yield (
            "optimizer",
            f"deepspeed's config has the optimizer {kind}, and optim is {args.optim}: leave it out of the config, and "
            "say optim, or hand in optimizers=",
        )


def fill(config: Config, args: TrainingArguments, *, per_process: int, world: int) -> list[Difference]:
    """In place, every `auto` that an argument answers. Where both say something, and not the same, that is told."""
    config.pop("fp16", None)
    if args.bf16:
        config.setdefault("bf16", {"enabled": AUTO})
    accumulate = args.gradient_accumulation_steps
    asked = (
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
    differ = [difference for each in asked if (difference := _match(config, *each)) is not None]
    # DeepSpeed's Adam is ours: it has the same arguments.
    config.pop("optimizer", None)
    return differ


def autos(value: Any, path: str = "") -> Iterator[str]:
    """Where `auto` stands."""
    if isinstance(value, dict):
        for name, each in value.items():
            yield from autos(each, f"{path}.{name}" if path else name)
    elif value == AUTO:
        yield path


def _match(config: Config, path: str, value: Any, name: str) -> Difference | None:
    *parents, key = path.split(".")
    node: Any = config
    for each in parents:
        node = node.get(each) if isinstance(node, dict) else None
    if not isinstance(node, dict) or key not in node:
        return None
    if node[key] == AUTO:
        node[key] = value
        return None
    return None if node[key] == value else Difference(path, node[key], name, value)


def _enabled(section: Any) -> Any:
    return section.get("enabled") if isinstance(section, dict) else None
