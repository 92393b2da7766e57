"""Permutation language modelling, XLNet's: spans are hidden, and each token sees what a drawn order allows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from footplate.trainer.collators.language_modelling import IGNORE
from footplate.trainer.collators.padding import stack_or_pad
from footplate.trainer.collators.stacking import DataCollatorMixin


@dataclass
class DataCollatorForPermutationLanguageModeling(DataCollatorMixin):
    """Returns input_ids, perm_mask, target_mapping and labels; lengths must be even, since half is reused as memory."""

    tokenizer: Any
    plm_probability: float = 1 / 6
    max_span_length: int = 5
    return_tensors: str = "pt"

    def torch_call(self, examples: list[Any]) -> dict[str, Any]:
        rows = [each["input_ids"] if isinstance(each, Mapping) else each for each in examples]
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
        perm_mask = torch.stack([_order(hidden[each], functional[each]) for each in range(samples)])
        target_mapping = torch.eye(length).repeat(samples, 1, 1)
        return inputs.long(), perm_mask, target_mapping, labels.long()

    def _functional(self, labels: Tensor) -> Tensor:
        """Separators, padding and the like: never hidden."""
        special = torch.tensor(
            [self.tokenizer.get_special_tokens_mask(each, already_has_special_tokens=True) for each in labels.tolist()],
            dtype=torch.bool,
        )
        return special if self.tokenizer.pad_token is None else special | labels.eq(self.tokenizer.pad_token_id)

    def _spans(self, length: int) -> Tensor:
        """Spans of 1 to `max_span_length` tokens, each somewhere in a context that keeps the share of hidden tokens."""
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
    """perm_mask of one sample: 1 where the row's token may not see the column's.

    Half the sequence may be memory that is reused, so the two halves are put into one order and do not cross over.
    """
    length = len(hidden)
    order = torch.arange(length).reshape(-1, length // 2).transpose(0, 1)
    order = order[torch.randperm(length // 2)].transpose(0, 1).flatten()
    # Everybody sees what is not hidden, and it sees nothing that is.
    order.masked_fill_(~hidden & ~functional, -1)
    return ((order.reshape(length, 1) <= order.reshape(1, length)) & hidden).float()
