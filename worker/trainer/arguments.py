"""TrainingArguments with what needs torch. The fields, their meaning and their checks are the contract's."""

from __future__ import annotations

import dataclasses
import logging
from typing import TYPE_CHECKING

from pydantic.dataclasses import dataclass

from contract import arguments as contract_arguments
from contract.arguments.groups import CONFIG

if TYPE_CHECKING:
    import torch


@dataclass(config=CONFIG)
class TrainingArguments(contract_arguments.TrainingArguments):
    """What a script hands to the Trainer."""

    @classmethod
    def of(cls, args: contract_arguments.TrainingArguments) -> TrainingArguments:
        """The same values, whichever side made them. The very object, where it is ours already: callbacks mutate it."""
        if isinstance(args, cls):
            return args
        return cls(**{field.name: getattr(args, field.name) for field in dataclasses.fields(args)})

    @property
    def device(self) -> torch.device:
        import torch

        return torch.device("cuda" if torch.cuda.is_available() and not self.use_cpu else "cpu")

    @property
    def n_gpu(self) -> int:
        return int(self.device.type == "cuda")

    @property
    def world_size(self) -> int:
        return 1

    @property
    def process_index(self) -> int:
        return 0

    @property
    def local_process_index(self) -> int:
        return 0

    @property
    def should_save(self) -> bool:
        """Whether this process writes files."""
        return self.process_index == 0

    @property
    def should_log(self) -> bool:
        return self.local_process_index == 0

    def get_process_log_level(self) -> int | None:
        """What the logger says at least on this process; None leaves it as it is."""
        name = self.log_level if self.should_log else self.log_level_replica
        levels = logging.getLevelNamesMapping()
        return None if name == "passive" else levels["DEBUG" if name == "detail" else name.upper()]

    @property
    def train_batch_size(self) -> int:
        return self.per_device_train_batch_size * max(1, self.n_gpu)

    @property
    def eval_batch_size(self) -> int:
        return self.per_device_eval_batch_size * max(1, self.n_gpu)
