"""The rank of this process, as its launcher sets it in the environment (torchrun, accelerate, DeepSpeed)."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

PRECISION = "ACCELERATE_MIXED_PRECISION"
_PRECISIONS = ("no", "bf16", "fp16", "fp8")
_NAMES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


def launched_on_cpu(environment: Mapping[str, str] = os.environ) -> bool:
    """Returns True if `accelerate launch --cpu` started this process, even if there are GPUs."""
    return environment.get("ACCELERATE_USE_CPU", "").lower() in ("1", "true", "yes", "y", "t", "on")


def launched_precision(environment: Mapping[str, str] = os.environ) -> str:
    """Returns the precision of `accelerate launch --mixed_precision` or `accelerate config`. Arguments override it."""
    precision = environment.get(PRECISION, "no").lower()
    if precision not in _PRECISIONS:
        raise ValueError(f"{PRECISION} is {precision!r}: use one of {', '.join(_PRECISIONS)}")
    return precision


@dataclass(frozen=True, slots=True)
class Place:
    """This process among the processes of a distributed run. Without a launcher, there is one process."""

    rank: int = 0
    world: int = 1
    local_rank: int = 0
    """The number of this process on its machine."""
    is_launched: bool = False
    """True if a launcher started this process, alone or with others."""

    @property
    def gpu(self) -> torch.device:
        """The GPU with this process's number on its machine, modulo the GPUs that the process sees."""
        import torch

        return torch.device("cuda", self.local_rank % torch.cuda.device_count())

    @classmethod
    def here(cls, local_rank: int = -1, environment: Mapping[str, str] = os.environ) -> Place:
        """Reads the rank and the number of processes from the environment.

        Old launchers pass `local_rank` instead of LOCAL_RANK.
        """
        local = int(environment.get("LOCAL_RANK", local_rank))
        if local < 0:
            return cls()
        missing = [name for name in _NAMES if name not in environment]
        if missing:
            raise ValueError(
                f"a launcher has set LOCAL_RANK or local_rank to {local}, but not "
                f"{', '.join(missing)}: start the script with torchrun, or unset LOCAL_RANK to train in one process"
            )
        return cls(int(environment["RANK"]), int(environment["WORLD_SIZE"]), local, is_launched=True)
