"""XLNet's permutation language modelling: spans are masked, and a random order decides which tokens each one sees."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from footplate.trainer.collators.padding import stack_or_pad
from footplate.trainer.collators.stacking import DataCollatorMixin
from footplate.trainer.losses.labels import IGNORE


@dataclass
class DataCollatorForPermutationLanguageModeling(DataCollatorMixin):
    """Returns input_ids, perm_mask, target_mapping and labels.

    Lengths must be even, because half of a sequence may be memory that XLNet reuses.
    """

    tokenizer: Any
    plm_probability: float = 1 / 6
    max_span_length: int = 5
    return_tensors: str = "pt"

    def torch_call(self, examples: list[Any]) -> dict[str, Any]:
        rows = [example["input_ids"] if isinstance(example, Mapping) else example for example in examples]
        inputs, perm_mask, target_mapping, labels = self.torch_mask_tokens(stack_or_pad(rows, self.tokenizer))
        return {"input_ids": inputs, "perm_mask": perm_mask, "target_mapping": target_mapping, "labels": labels}

    def torch_mask_tokens(self, inputs: Any) -> tuple[Any, Any, Any, Any]:
        if self.tokenizer.mask_token is None:
            raise ValueError(
                "This tokenizer does not have a mask token which is necessary for permutation language modeling."
                " Please add a mask token if you want to use this tokenizer."
            )
        samples, length = inputs.shape
        if length % 2 != 0:
            raise ValueError(
                f"This collator requires that sequence lengths be even to create a leakage-free perm_mask. It is "
                f"{length}: pad or cut to an even one"
            )
        labels = inputs.clone()
        functional = self._functional(labels)
        hidden = torch.stack([self._spans(length) for _ in range(samples)]) & ~functional
        inputs[hidden] = self.tokenizer.mask_token_id
        labels[~hidden] = IGNORE
        perm_mask = torch.stack([_order(hidden[sample], functional[sample]) for sample in range(samples)])
        target_mapping = torch.eye(length).repeat(samples, 1, 1)
        return inputs.long(), perm_mask, target_mapping, labels.long()

    def _functional(self, labels: Tensor) -> Tensor:
        """Returns the special tokens, such as separators and padding, which are never masked."""
        special = torch.tensor(
            [self.tokenizer.get_special_tokens_mask(row, already_has_special_tokens=True) for row in labels.tolist()],
            dtype=torch.bool,
        )
        return special if self.tokenizer.pad_token is None else special | labels.eq(self.tokenizer.pad_token_id)

    def _spans(self, length: int) -> Tensor:
        """Draws spans of 1 to `max_span_length` tokens to mask, one in each stretch of the text.

        A stretch is as long as its span divided by `plm_probability`, so that this share of all tokens is masked.
        """
        hidden = torch.zeros(length, dtype=torch.bool)
        at = 0
        while at < length:
            span = int(torch.randint(1, self.max_span_length + 1, (1,)))
            context = int(span / self.plm_probability)
            start = at + int(torch.randint(context - span + 1, (1,)))
            hidden[start : start + span] = True
            at += context
        return hidden


def _order(hidden: Tensor, functional: Tensor) -> Tensor:
    """Returns the perm_mask of one sample: 1 where the row's token must not see the column's token.

    Half of the sequence may be reused memory, so both halves have the same random order.
    """
    length = len(hidden)
    order = torch.arange(length).reshape(-1, length // 2).transpose(0, 1)
    order = order[torch.randperm(length // 2)].transpose(0, 1).flatten()
    # Tokens that are not masked are visible to all, and see no masked token.
    order.masked_fill_(~hidden & ~functional, -1)
    return ((order.reshape(length, 1) <= order.reshape(1, length)) & hidden).float()
