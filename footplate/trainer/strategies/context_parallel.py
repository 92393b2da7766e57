"""The strategy of context parallelism: every sample is split over a group of processes, which compute a batch together.

Only attention combines tokens. So this is DDP over all processes, in which the processes of a group hold different
tokens of one batch. Losses are divided by the item count of the whole batch, and gradients are averaged as in DDP.

Each process computes two pieces of every sample, one from the front and one from the back. Causal attention is then
the same amount of work for all. Labels are shifted by one token before the split, so that pieces are independent.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from footplate.contract.arguments import TrainingArguments
from footplate.contract.errors import NotAvailableYet
from footplate.trainer.launcher import Place
from footplate.trainer.losses.labels import IGNORE
from footplate.trainer.losses.loss import items
from footplate.trainer.strategies.attention import SharedAttention, own_pieces
from footplate.trainer.strategies.ddp import Ddp
from footplate.trainer.strategies.single import BuildArguments

_KNOWN = {"input_ids", "labels", "shift_labels", "attention_mask", "position_ids"}


class ContextParallel(Ddp):
    def __init__(self, args: TrainingArguments, place: Place, size: int, *, build: BuildArguments = dict) -> None:
        self.context_parallel = size
        super().__init__(args, place, build=build)
        self.attention = SharedAttention(self.peers.consecutive_group(size), self.peers.rank % size, size)

    def cut(self, batch: Any) -> SequenceShard:
        return cut(batch, self.peers.rank % self.context_parallel, self.context_parallel)


@dataclass(frozen=True, slots=True)
class SequenceShard:
    """The tokens and labels of a batch that one process computes."""

    inputs: dict[str, Tensor]
    """The tokens and position ids that the model receives."""
    labels: Tensor
    """The next token of each position."""
    count: Tensor
    """The number of labels in the whole batch that count for the loss."""
    positions: Tensor
    """The positions of these tokens in the whole, padded sequence."""

    @property
    def length(self) -> int:
        """The length of each of the two pieces."""
        return len(self.positions) // 2


def cut(batch: Any, rank: int, size: int) -> SequenceShard:
    """Returns this rank's shard of a batch, padded on the right if needed. Causal attention never sees the padding."""
    _require_tokens(batch)
    tokens, labels = batch["input_ids"], batch.get("shift_labels")
    if labels is None:
        labels = functional.pad(batch["labels"], (0, 1), value=IGNORE)[:, 1:]
    rows, length = tokens.shape
    _refuse_holes(batch, labels)
    position_ids = batch.get("position_ids")
    if position_ids is not None and not bool(position_ids.eq(torch.arange(length, device=position_ids.device)).all()):
        raise NotAvailableYet(
            "the batch has position_ids that do not count up from 0, as for several samples packed in one row, and "
            "cp_size splits rows of one sequence each",
            hint="leave position_ids out, and pad samples instead of packing them",
        )
    piece_length = math.ceil(length / (2 * size))
    padding = piece_length * 2 * size - length
    positions = own_positions(rank, size, piece_length).to(tokens.device)
    # Padding gets the last position, because a model's table of positions may end where the sequence ends.
    position_ids = positions.clamp(max=length - 1).expand(rows, -1)
    return SequenceShard(
        {"input_ids": functional.pad(tokens, (0, padding))[:, positions], "position_ids": position_ids},
        functional.pad(labels, (0, padding), value=IGNORE)[:, positions],
        items(labels),
        positions,
    )


def own_positions(rank: int, size: int, length: int) -> Tensor:
    return torch.cat([torch.arange(piece * length, (piece + 1) * length) for piece in own_pieces(rank, size)])


def _require_tokens(batch: Any) -> None:
    if not isinstance(batch, Mapping) or "input_ids" not in batch or not {"labels", "shift_labels"} & set(batch):
        keys = (
            f"a batch with {', '.join(map(str, batch))}" if isinstance(batch, Mapping) else f"a {type(batch).__name__}"
        )
        raise ValueError(f"cp_size needs batches with input_ids and labels, but the collator returned {keys}")
    unknown_keys = sorted(set(batch) - _KNOWN)
    if unknown_keys:
        raise NotAvailableYet(
            f"the batch has {', '.join(unknown_keys)}, which cp_size cannot split",
            hint=f"leave {', '.join(unknown_keys)} out in the collator: cp_size can split {', '.join(sorted(_KNOWN))}",
        )


def _refuse_holes(batch: Mapping[str, Any], labels: Tensor) -> None:
    mask = batch.get("attention_mask")
    if mask is None:
        return
    if mask.dim() != 2 or bool((mask[:, 1:] > mask[:, :-1]).any()):
        raise NotAvailableYet(
            "the batch has an attention_mask in which zeros stand before ones, but with cp_size each token must "
            "attend to all tokens before it",
            hint="pad on the right (padding_side='right' in a tokenizer), and leave other masks out",
        )
    if bool((labels.ne(IGNORE) & mask.eq(0)).any()):
        raise ValueError(
            f"some labels are not {IGNORE} where attention_mask marks padding, but with cp_size the outputs at padding "
            f"differ from those of one process: set these labels to {IGNORE}"
        )
