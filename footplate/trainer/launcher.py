"""Which process this is, of how many: as its launcher says in the environment (torchrun, accelerate, DeepSpeed's)."""

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
    """As `accelerate launch --cpu` says it, where there may be GPUs."""
    return environment.get("ACCELERATE_USE_CPU", "").lower() in ("1", "true", "yes", "y", "t", "on")


def launched_precision(environment: Mapping[str, str] = os.environ) -> str:
    """What `accelerate launch --mixed_precision` says, or `accelerate config` for it. Arguments that say one win."""
    said = environment.get(PRECISION, "no").lower()
    if said not in _PRECISIONS:
        raise ValueError(f"{PRECISION} is {said!r}: there are {', '.join(_PRECISIONS)}")
    return said


@dataclass(frozen=True, slots=True)
class Place:
    rank: int = 0
    world: int = 1
    local_rank: int = 0
    """Which one of this machine's."""
    is_launched: bool = False
    """By something that started several, or could have."""

    @property
    def gpu(self) -> torch.device:
        """Of its number, as Accelerate counts: a launcher may have left each process to see its own only."""
        import torch

        return torch.device("cuda", self.local_rank % torch.cuda.device_count())

    @classmethod
    def here(cls, local_rank: int = -1, environment: Mapping[str, str] = os.environ) -> Place:
        """One process by itself, where no launcher says otherwise. `local_rank` is for old ones, which say it there."""
        local = int(environment.get("LOCAL_RANK", local_rank))
        if local < 0:
            return cls()
        missing = [name for name in _NAMES if name not in environment]
        if missing:
            raise ValueError(
                f"a launcher has said that this is process {local} of its machine (LOCAL_RANK or local_rank), and not "
                f"{', '.join(missing)}: start the script with torchrun, or unset LOCAL_RANK to train in one process"
            )
        return cls(int(environment["RANK"]), int(environment["WORLD_SIZE"]), local, is_launched=True)
