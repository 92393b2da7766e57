"""Makes the batches of the collator `causal-lm`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from footplate.components.hf_processors import require_pad_token
from footplate.trainer.collators.padding import rounded_up, unfit

IGNORE = -100
LABELS = ("labels", "label")


@dataclass
class CausalBatches:
    """Turns lists of tokens into tensors. Padding is found by the attention mask, not by the pad token.

    The pad token is often also the token that ends a text. A model would otherwise never learn to end a text.
    """

    tokenizer: Any
    pad_to_multiple_of: int | None = None

    def __call__(self, samples: Sequence[Mapping[str, Any]]) -> dict[str, Tensor]:
        if "input_ids" not in samples[0] and (error := unfit(samples)):
            raise error
        tokens = [torch.as_tensor(sample["input_ids"], dtype=torch.long) for sample in samples]
        masks = [
            torch.as_tensor(sample["attention_mask"]) if "attention_mask" in sample else torch.ones_like(row)
            for sample, row in zip(samples, tokens, strict=True)
        ]
        width = rounded_up(max(len(row) for row in tokens), self.pad_to_multiple_of)
        if any(len(row) != width for row in tokens):
            require_pad_token(self.tokenizer, "causal-lm")
        pad = self.tokenizer.pad_token_id or 0
        mask = self._filled(masks, width, 0)
        name = next((label for label in LABELS if label in samples[0]), None)
        filled = self._filled(tokens, width, pad)
        if name is None:
            labels = filled.masked_fill(mask == 0, IGNORE)
        else:
            labels = self._filled([torch.as_tensor(sample[name]) for sample in samples], width, IGNORE)
        return {"input_ids": filled, "attention_mask": mask, "labels": labels}

    def _filled(self, rows: Sequence[Tensor], width: int, value: int) -> Tensor:
        result = torch.full((len(rows), width), value, dtype=torch.long)
        for line, row in zip(result, rows, strict=True):
            at = slice(0, len(row)) if self.tokenizer.padding_side == "right" else slice(width - len(row), width)
            line[at] = row
        return result
