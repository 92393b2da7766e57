"""AcceleratorConfig: the settings for data and accumulation that the Trainer passes to Accelerate."""

from __future__ import annotations

import copy
import json
import logging
import os
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

log = logging.getLogger("footplate.trainer")


@dataclass
class AcceleratorConfig:
    split_batches: bool = False
    """True divides a loader's batch among the processes, instead of giving each process a batch."""
    dispatch_batches: bool | None = None
    """True lets only the main process read data. It is refused, because each process reads its own shard."""
    even_batches: bool = True
    """True fills up an epoch's last batch with the epoch's first samples, so that all processes have equal shares."""
    use_seedable_sampler: bool = True
    """True makes the order depend on the seed only. False draws it from torch's global generator."""
    non_blocking: bool = False
    """True copies every batch without waiting. Batches in pinned memory are always copied without waiting."""
    gradient_accumulation_kwargs: dict[str, Any] | None = None
    """Options of accumulation: `num_steps` means the same as `gradient_accumulation_steps`. With `sync_each_batch`,
    gradients are exchanged in every micro-batch."""
    use_configured_state: bool = False
    """True uses the PartialState that the script has made before, instead of a new one."""

    @classmethod
    def of(cls, value: Any) -> AcceleratorConfig:
        """Makes a config from a dict or the path of a JSON file, or returns an existing one."""
        if value is None or isinstance(value, cls):
            return value or cls()
        if isinstance(value, (str, os.PathLike)):
            return cls.from_json_file(value)
        return cls._checked(value, "accelerator_config")

    @classmethod
    def from_json_file(cls, json_file: Any) -> AcceleratorConfig:
        values = json.loads(Path(json_file).read_text(encoding="utf-8"))
        return cls._checked(values, f"The config file at {json_file}")

    @classmethod
    def _checked(cls, values: dict[str, Any], source: str) -> AcceleratorConfig:
        names = [field.name for field in fields(cls)]
        if unknown_keys := sorted(set(values) - set(names)):
            raise ValueError(f"{source} had unknown keys ({unknown_keys}). Known: {', '.join(names)}")
        return cls(**values)

    def refuse_unsupported(self, processes: int) -> None:
        """Raises ValueError for settings that this Trainer cannot follow, and warns of those that change nothing."""
        from accelerate.state import PartialState

        if self.dispatch_batches and processes > 1:
            raise ValueError(
                f"accelerator_config has dispatch_batches: true, which is not supported with {processes} processes, "
                "because each process reads its own share of the data: leave dispatch_batches out"
            )
        for name, value in (self.gradient_accumulation_kwargs or {}).items():
            if name not in _ACCUMULATION:
                raise ValueError(f"gradient_accumulation_kwargs has no {name}. Known: {', '.join(_ACCUMULATION)}")
            if name in _ALWAYS and not value:
                log.warning(
                    "gradient_accumulation_kwargs has %s: false, which changes nothing: %s", name, _ALWAYS[name]
                )

        if self.use_configured_state and not PartialState._shared_state:
            raise ValueError(
                "accelerator_config has use_configured_state: true, but no PartialState exists: make an "
                "Accelerator or a PartialState before the Trainer, or leave it out"
            )

    def accumulates(self, accumulation_steps: int) -> int:
        """Returns the number of micro-batches per step: this config's `num_steps`, or else the argument's value."""
        steps: int = (self.gradient_accumulation_kwargs or {}).get("num_steps") or accumulation_steps
        if accumulation_steps not in (1, steps):
            raise ValueError(
                f"The `AcceleratorConfig`'s `num_steps` is set but gradient_accumulation_steps is {accumulation_steps} "
                f"and num_steps {steps}: keep one of the two"
            )
        return steps

    def of_loaders(self) -> dict[str, Any]:
        """Returns the settings that belong to Accelerate's DataLoaderConfiguration, which has the same names."""
        return {name: value for name, value in vars(self).items() if name not in _NOT_OF_LOADERS}

    def to_dict(self) -> dict[str, Any]:
        return copy.deepcopy(self.__dict__)

    def pop(self, key: str, default: Any = None) -> Any:
        return self.__dict__.pop(key, default)


_ALWAYS = {
    "adjust_scheduler": "the schedule here moves once with every step of the optimizer",
    "sync_with_dataloader": "a step here ends with the epoch's last batch",
}
_NOT_OF_LOADERS = ("gradient_accumulation_kwargs", "use_configured_state")
_ACCUMULATION = ("num_steps", "sync_each_batch", *_ALWAYS)
