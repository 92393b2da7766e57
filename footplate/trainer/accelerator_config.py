"""AcceleratorConfig: what the Accelerator under the Trainer is told about data and accumulation."""

from __future__ import annotations

import copy
import json
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any


@dataclass
class AcceleratorConfig:
    split_batches: bool = False
    """A loader's batch is shared among the processes, instead of each having one of its own."""
    dispatch_batches: bool | None = None
    """The main process alone reads, and sends to the others: declined, each reads its own share."""
    even_batches: bool = True
    """Samples from the beginning fill the last batch up, so that all processes have as much."""
    use_seedable_sampler: bool = True
    """Shuffling follows the seed alone; False is declined."""
    non_blocking: bool = False
    """Batches go to the device without waiting; from pinned memory they always do."""
    gradient_accumulation_kwargs: dict[str, Any] | None = None
    """`num_steps` is `gradient_accumulation_steps`; with `sync_each_batch` gradients meet in every micro-batch."""
    use_configured_state: bool = False
    """Takes a PartialState that the script made, instead of a fresh one: declined."""

    @classmethod
    def of(cls, value: Any) -> AcceleratorConfig:
        """From a dict, the path of a JSON file, or one that is there already."""
        if value is None or isinstance(value, cls):
            return value or cls()
        if isinstance(value, str):
            return cls.from_json_file(value)
        known = [field.name for field in fields(cls)]
        odd = sorted(set(value) - set(known))
        if odd:
            raise ValueError(f"accelerator_config has no {', '.join(odd)}. Known: {', '.join(known)}")
        return cls(**value)

    def refuse_what_is_not_done(self, processes: int) -> None:
        """Before the first step: what would be read and not followed."""
        if not self.use_seedable_sampler:
            raise ValueError(
                "accelerator_config says use_seedable_sampler: false, and shuffling follows the seed alone here: "
                "leave it out, or override _get_train_sampler"
            )
        if self.use_configured_state:
            raise ValueError(
                "accelerator_config says use_configured_state: true, and every Trainer makes a state of its own from "
                "its arguments: leave it out"
            )
        if self.dispatch_batches and processes > 1:
            raise ValueError(
                f"accelerator_config says dispatch_batches: true, and each of the {processes} processes reads its own "
                "share here: leave it out; iterable data is read by every process, which keeps its part"
            )

        for name, value in (self.gradient_accumulation_kwargs or {}).items():
            if name not in _ACCUMULATION:
                raise ValueError(f"gradient_accumulation_kwargs has no {name}. Known: {', '.join(_ACCUMULATION)}")
            if name in _ALWAYS and not value:
                raise ValueError(f"gradient_accumulation_kwargs says {name}: false, and {_ALWAYS[name]}: leave it out")

    def accumulates(self, said: int) -> int:
        """Over so many micro-batches; `said` is what the arguments say."""
        steps: int = (self.gradient_accumulation_kwargs or {}).get("num_steps") or said
        if said not in (1, steps):
            raise ValueError(
                f"accelerator_config says num_steps: {steps}, and gradient_accumulation_steps is {said}: keep one"
            )
        return steps

    @classmethod
    def from_json_file(cls, json_file: Any) -> AcceleratorConfig:
        values = json.loads(Path(json_file).read_text(encoding="utf-8"))
        known = [field.name for field in fields(cls)]
        odd = sorted(set(values) - set(known))
        if odd:
            raise ValueError(f"The config file at {json_file} had unknown keys ({odd}). Known: {', '.join(known)}")
        return cls(**values)

    def to_dict(self) -> dict[str, Any]:
        return copy.deepcopy(self.__dict__)

    def pop(self, key: str, default: Any = None) -> Any:
        return self.__dict__.pop(key, default)


_ALWAYS = {
    "adjust_scheduler": "the schedule here moves once with every step of the optimizer",
    "sync_with_dataloader": "a step here ends with the epoch's last batch",
}
_ACCUMULATION = ("num_steps", "sync_each_batch", *_ALWAYS)
