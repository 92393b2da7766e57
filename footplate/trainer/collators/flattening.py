"""Makes padding-free batches: one long sequence with positions that restart at each sample."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from footplate.trainer.collators.stacking import DefaultDataCollator, in_framework


class DataCollatorWithFlattening(DefaultDataCollator):
    """Returns input_ids, labels and position_ids of shape (1, tokens); each sample's first label is `separator_id`.

    `return_flash_attn_kwargs` adds the sample borders for FlashAttention, and `return_seq_idx` each token's sample.
    Models that count positions from their padding index, such as RoBERTa, need `position_ids_start=2`.
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
        tokens = [_long(sample["input_ids"]) for sample in features]
        labels = [_long(sample["labels"]) for sample in features] if "labels" in features[0] else tokens
        lengths = [len(sample_tokens) for sample_tokens in tokens]
        batch: dict[str, Any] = {
            "input_ids": _row(tokens),
            "labels": _row([torch.cat([torch.tensor([separator]), sample_labels[1:]]) for sample_labels in labels]),
        }
        if self.return_position_ids:
            batch["position_ids"] = _row([torch.arange(length) + self.position_ids_start for length in lengths])
        if self.return_seq_idx:
            batch["seq_idx"] = _row([torch.full((length,), at) for at, length in enumerate(lengths)]).int()
        if self.return_flash_attn_kwargs:
            borders = torch.tensor([0, *accumulate(lengths)], dtype=torch.int32)
            batch["cu_seq_lens_q"] = batch["cu_seq_lens_k"] = borders
            batch["max_length_q"] = batch["max_length_k"] = max(lengths)
        return in_framework(batch, return_tensors or self.return_tensors)  # type: ignore[no-any-return]


def _long(values: Sequence[int] | Tensor) -> Tensor:
    return torch.as_tensor(values, dtype=torch.long)


def _row(samples: list[Tensor]) -> Tensor:
    return torch.cat(samples)[None]
