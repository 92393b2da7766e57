"""The strategy of context parallelism: every sample is split over a group of processes, which compute a batch together.

Only attention combines tokens. So this is DDP over all processes, in which the processes of a group hold different
tokens of one batch. Losses are divided by the item count of the whole batch, and gradients are averaged as in DDP.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from footplate.contract.arguments import TrainingArguments
from footplate.contract.errors import NotAvailableYet
from footplate.trainer.launcher import Place
from footplate.trainer.precision import precision_of
from footplate.trainer.strategies import attention
from footplate.trainer.strategies.ddp import Ddp
from footplate.trainer.strategies.same_batch import require_same_batch
from footplate.trainer.strategies.sequence_split import SequenceShard, cut
from footplate.trainer.strategies.single import BuildArguments


class ContextParallel(Ddp):
    def __init__(self, args: TrainingArguments, place: Place, size: int, *, build: BuildArguments = dict) -> None:
        if precision_of(args) == "fp8":
            raise NotAvailableYet("fp8 is not available with cp_size", hint="use bf16, or train in fp8 with DDP")
        self.context_parallel = size
        super().__init__(args, place, build=build)
        self.attention = attention.SharedAttention(self.peers.consecutive_group(size), self.peers.rank % size, size)

    def epoch(self, epoch: Iterator[Any], loader: Any) -> Iterator[Any]:
        return require_same_batch(super().epoch(epoch, loader), self.peers, self.context_parallel)

    def cut(self, batch: Any) -> SequenceShard:
        return cut(batch, self.peers.rank % self.context_parallel, self.context_parallel)
