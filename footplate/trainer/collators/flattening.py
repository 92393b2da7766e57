"""Padding-free: a batch is one long sequence, and positions say where each sample begins."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from footplate.trainer.collators.stacking import DefaultDataCollator, in_framework


class DataCollatorWithFlattening(DefaultDataCollator):
    """Returns input_ids, labels and position_ids of shape (1, tokens); each sample's first label is `separator_id`.

    `return_flash_attn_kwargs` adds the borders that FlashAttention wants, `return_seq_idx` each token's sample. Models
    that count positions from their padding index on (RoBERTa's kind) want `position_ids_start=2`.
    """

    def __init__(
        self,
        *args: Any,
        return_position_ids: bool = True,
        separator_id: int = -100,
        return_flash_attn_kwargs: bool = False,
        return_seq_idx: bool = False,
        position_ids_start: int = 0,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self.return_position_ids = return_position_ids
        self.separator_id = separator_id
        self.return_flash_attn_kwargs = return_flash_attn_kwargs
        self.return_seq_idx = return_seq_idx
        self.position_ids_start = position_ids_start

    def __call__(
        self, features: Any, return_tensors: str | None = None, separator_id: int | None = None
    ) -> dict[str, Any]:
        separator = self.separator_id if separator_id is None else separator_id
        tokens = [_long(each["input_ids"]) for each in features]
        labels = [_long(each["labels"]) for each in features] if "labels" in features[0] else tokens
        lengths = [len(each) for each in tokens]
        batch: dict[str, Any] = {
            "input_ids": _row(tokens),
            "labels": _row([torch.cat([torch.tensor([separator]), each[1:]]) for each in labels]),
        }
        if self.return_position_ids:
            batch["position_ids"] = _row([torch.arange(each) + self.position_ids_start for each in lengths])
        if self.return_seq_idx:
            batch["seq_idx"] = _row([torch.full((each,), at) for at, each in enumerate(lengths)]).int()
        if self.return_flash_attn_kwargs:
            borders = torch.tensor([0, *accumulate(lengths)], dtype=torch.int32)
            batch["cu_seq_lens_q"] = batch["cu_seq_lens_k"] = borders
            batch["max_length_q"] = batch["max_length_k"] = max(lengths)
        return in_framework(batch, return_tensors or self.return_tensors)  # type: ignore[no-any-return]


def _long(values: Sequence[int] | Tensor) -> Tensor:
    return torch.as_tensor(values, dtype=torch.long)


def _row(parts: list[Tensor]) -> Tensor:
    return torch.cat(parts)[None]
