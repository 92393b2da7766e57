"""A batch of long samples, cut into what each process of a group computes: two pieces, one from the front and one from
the back, so that causal attention is as much work for each.

Labels are moved one place ahead before the cut, so that no piece needs to know how the next one begins.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from footplate.contract.errors import NotAvailableYet
from footplate.trainer.losses import IGNORE, items

_KNOWN = {"input_ids", "labels", "shift_labels", "attention_mask", "position_ids"}


@dataclass(frozen=True, slots=True)
class Piece:
    inputs: dict[str, Tensor]
    """Tokens and their places, as a model takes them."""
    labels: Tensor
    """Of each place, what comes after it."""
    count: Tensor
    """How many labels of the whole batch count."""
    places: Tensor
    """Where in the whole sequence, filled up, these tokens are."""

    @property
    def length(self) -> int:
        """Of each of the two."""
        return len(self.places) // 2


def cut(batch: Any, rank: int, size: int) -> Piece:
    """Filled up on the right to a length that all can share: what is causal never looks there."""
    labels = _labels_ahead(_of_tokens(batch))
    tokens = batch["input_ids"]
    rows, length = tokens.shape
    _refuse_holes(batch, labels)
    _refuse_other_places(batch, length)
    each = math.ceil(length / (2 * size))
    missing = each * 2 * size - length
    places = own_places(rank, size, each).to(tokens.device)
    # A table of places may end where the sequence does.
    position_ids = places.clamp(max=length - 1).expand(rows, -1)
    return Piece(
        {"input_ids": functional.pad(tokens, (0, missing))[:, places], "position_ids": position_ids},
        functional.pad(labels, (0, missing), value=IGNORE)[:, places],
        items(labels),
        places,
    )


def own_places(rank: int, size: int, each: int) -> Tensor:
    front, back = (torch.arange(at * each, (at + 1) * each) for at in own_pieces(rank, size))
    return torch.cat([front, back])


def own_pieces(rank: int, size: int) -> tuple[int, int]:
    """Of 2 * size: the later a piece is, the more there is to attend to."""
    return rank, 2 * size - 1 - rank


def _of_tokens(batch: Any) -> Mapping[str, Any]:
    if not isinstance(batch, Mapping) or "input_ids" not in batch or not {"labels", "shift_labels"} & set(batch):
        raise ValueError("cp_size cuts batches that have input_ids and labels, and this one has not both")
    others = sorted(set(batch) - _KNOWN)
    if others:
        raise NotAvailableYet(
            f"the batch has {', '.join(others)}, and cp_size does not know how to cut that",
            hint=f"leave it out in the collator: cut are {', '.join(sorted(_KNOWN))}",
        )
    return batch


def _labels_ahead(batch: Mapping[str, Any]) -> Tensor:
    found = batch.get("shift_labels")
    return functional.pad(batch["labels"], (0, 1), value=IGNORE)[:, 1:] if found is None else found


def _refuse_holes(batch: Mapping[str, Any], labels: Tensor) -> None:
    mask = batch.get("attention_mask")
    if mask is None:
        return
    if mask.dim() != 2 or bool((mask[:, 1:] > mask[:, :-1]).any()):
        raise NotAvailableYet(
            "the batch has an attention_mask with holes, or that begins with padding, and cp_size cuts sequences of "
            "which each place sees all before it",
            hint="pad on the right, padding_side='right' in a tokenizer, and leave other masks out",
        )
    if bool((labels.ne(IGNORE) & mask.eq(0)).any()):
        raise ValueError(
            "labels count where attention_mask says padding, and with cp_size padding is computed in a way of its own: "
            f"make them {IGNORE} there"
        )


def _refuse_other_places(batch: Mapping[str, Any], length: int) -> None:
    found = batch.get("position_ids")
    if found is not None and not torch.equal(found, torch.arange(length, device=found.device).expand_as(found)):
        raise NotAvailableYet(
            "the batch has position_ids that do not count from 0 on, as of several samples in one row, and cp_size "
            "cuts rows that are one sequence each",
            hint="leave position_ids out, and pad samples instead of packing them",
        )
