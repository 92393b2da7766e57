"""Masked, causal and permutation language modelling. Random draws have Hugging Face's order, for the same batches."""

from __future__ import annotations

import multiprocessing
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from footplate.trainer.collators.padding import pad, pad_rows, stack_or_pad
from footplate.trainer.collators.stacking import DataCollatorMixin
from footplate.trainer.losses.labels import IGNORE


@dataclass
class DataCollatorForLanguageModeling(DataCollatorMixin):
    """Masks tokens and labels them (`mlm=True`), or uses the inputs as labels (`mlm=False`).

    `mlm_probability` of the tokens are selected. Of these, `mask_replace_prob` become the mask token,
    `random_replace_prob` become a random token, and the rest stay. `whole_word_mask` selects all tokens of a word. With
    `seed`, each loading process draws from its own generator; without it, from the global one.
    """

    tokenizer: Any
    mlm: bool = True
    whole_word_mask: bool = False
    mlm_probability: float | None = 0.15
    mask_replace_prob: float = 0.8
    random_replace_prob: float = 0.1
    pad_to_multiple_of: int | None = None
    return_tensors: str = "pt"
    seed: int | None = None

    def __post_init__(self) -> None:
        for name in ("mlm_probability", "mask_replace_prob", "random_replace_prob"):
            value = getattr(self, name)
            if (value is None and self.mlm) or (value is not None and not 0 <= value <= 1):
                raise ValueError(f"{name} should be between 0 and 1. It is {value}")
        if self.mask_replace_prob + self.random_replace_prob > 1:
            raise ValueError(
                "The sum of mask_replace_prob and random_replace_prob should not exceed 1: "
                f"{self.mask_replace_prob} + {self.random_replace_prob}"
            )
        if self.mlm and self.tokenizer.mask_token is None:
            raise ValueError(
                "This tokenizer does not have a mask token which is necessary for masked language modeling. "
                "You should pass `mlm=False` to train on causal language modeling instead."
            )
        if self.whole_word_mask and not self.mlm:
            raise ValueError("Whole word masking can only be used with mlm=True.")
        if self.whole_word_mask and self.mask_replace_prob < 1:
            warnings.warn(
                "Random token replacement is not supported with whole word masking. Setting mask_replace_prob to 1.",
                stacklevel=3,
            )
            self.mask_replace_prob, self.random_replace_prob = 1.0, 0.0
        self.generator: torch.Generator | None = None

    def torch_call(self, examples: Any) -> Any:
        if self.seed is not None and self.generator is None:
            self.create_rng()
        offsets = None
        if isinstance(examples[0], Mapping):
            rows = [
                {name: value for name, value in example.items() if name != "offset_mapping"} for example in examples
            ]
            batch = pad(self.tokenizer, rows, return_tensors="pt", pad_to_multiple_of=self.pad_to_multiple_of)
            if self.whole_word_mask and "offset_mapping" in examples[0]:
                mappings = [example["offset_mapping"] for example in examples]
                # Tokenizers do not pad offsets.
                offsets = pad_rows(mappings, batch["input_ids"].shape[1], 0, self.tokenizer.padding_side)
        else:
            batch = {"input_ids": stack_or_pad(examples, self.tokenizer, self.pad_to_multiple_of)}
        special = batch.pop("special_tokens_mask", None)
        if self.mlm:
            batch["input_ids"], batch["labels"] = self.torch_mask_tokens(
                batch["input_ids"], special_tokens_mask=special, offset_mapping=offsets
            )
        else:
            labels = batch["input_ids"].clone()
            if self.tokenizer.pad_token_id is not None:
                labels[labels == self.tokenizer.pad_token_id] = IGNORE
            batch["labels"] = labels
        return batch

    def create_rng(self) -> None:
        """Makes the collator's random generator. Each loading process has a different seed, so that masks differ."""
        self.generator = generator_here(self.seed or 0)

    def torch_mask_tokens(
        self, inputs: Any, special_tokens_mask: Any | None = None, offset_mapping: Any | None = None
    ) -> tuple[Any, Any]:
        labels = inputs.clone()
        chances = torch.full(labels.shape, float(self.mlm_probability or 0.0))
        special = self._special(labels, special_tokens_mask)
        if self.whole_word_mask:
            spans = None if offset_mapping is None else torch.as_tensor(offset_mapping)
            begins = ~self._continues(labels) if spans is None else _begins_apart(spans, special)
            words, starts = _numbered(special, begins)
            hidden = torch.bernoulli(chances.masked_fill_(~starts, 0.0), generator=self.generator).bool()
            hidden = _all_of_a_word(words, hidden)
        else:
            hidden = torch.bernoulli(chances.masked_fill_(special, 0.0), generator=self.generator).bool()
        labels[~hidden] = IGNORE
        replaced = self._drawn(labels, self.mask_replace_prob) & hidden
        inputs[replaced] = self.tokenizer.convert_tokens_to_ids(self.tokenizer.mask_token)
        if self.mask_replace_prob == 1 or self.random_replace_prob == 0:
            return inputs, labels
        share = self.random_replace_prob / (1 - self.mask_replace_prob)
        random_places = self._drawn(labels, share) & hidden & ~replaced
        words_of_chance = torch.randint(len(self.tokenizer), labels.shape, dtype=torch.long, generator=self.generator)
        inputs[random_places] = words_of_chance[random_places]
        return inputs, labels

    def _drawn(self, like: Tensor, share: float) -> Tensor:
        return torch.bernoulli(torch.full(like.shape, float(share)), generator=self.generator).bool()

    def _special(self, labels: Tensor, mask: Any) -> Tensor:
        if mask is None:
            mask = [
                self.tokenizer.get_special_tokens_mask(tokens, already_has_special_tokens=True)
                for tokens in labels.tolist()
            ]
        return torch.as_tensor(mask, dtype=torch.bool)

    @staticmethod
    def _calc_word_ids_and_prob_mask(offsets: Any, special_tokens_mask: Any) -> tuple[Any, Any]:
        """Returns each token's word number, with -1 for special tokens, and which tokens must not be drawn.

        Only the first token of a word may be drawn. The helper has Hugging Face's name and works on arrays.
        """
        special = torch.as_tensor(special_tokens_mask).bool()
        words, starts = _numbered(special, _begins_apart(torch.as_tensor(offsets), special))
        return words.numpy(), (~starts).numpy()

    @staticmethod
    def _whole_word_mask(word_ids: Any, mask: Any) -> Any:
        """Masks all tokens of each word that has a masked token. The name and the arrays are Hugging Face's."""
        return _all_of_a_word(torch.as_tensor(word_ids), torch.as_tensor(mask)).numpy()

    def _continues(self, labels: Tensor) -> Tensor:
        tokens = [self.tokenizer.convert_ids_to_tokens(row) for row in labels.tolist()]
        continues = torch.tensor([[str(token).startswith("##") for token in row] for row in tokens])
        vocabulary: Any = getattr(self.tokenizer, "get_vocab", dict)()
        if not bool(continues.any()) and not any(str(token).startswith("##") for token in vocabulary):
            raise ValueError(
                "whole words cannot be recognised: tokenize with return_offsets_mapping=True and keep the column "
                "(remove_unused_columns=False)"
            )
        return continues


@dataclass
class DataCollatorForWholeWordMask(DataCollatorForLanguageModeling):
    """Masks whole words, which are recognised by token offsets or by BERT's `##`. Older scripts import this name."""

    whole_word_mask: bool = True
    mask_replace_prob: float = 1.0
    random_replace_prob: float = 0.0


def generator_here(seed: int) -> torch.Generator:
    """Returns a generator seeded by `seed` plus the loading process's number, so that processes draw differently."""
    worker = torch.utils.data.get_worker_info()
    if worker is None and multiprocessing.current_process().name != "MainProcess":
        raise ValueError(
            "a collator with `seed` works only in the main process and in the loading processes of torch's DataLoader, "
            "because other processes would all draw the same numbers: leave `seed` out"
        )
    return torch.Generator().manual_seed(seed + (worker.id if worker is not None else 0))


def _begins_apart(spans: Tensor, special: Tensor) -> Tensor:
    """Marks each token that does not start where the previous token ends, or that follows a special token."""
    previous_end = spans[:, :, 1].roll(1, dims=1)
    previous_end[:, 0] = -1
    after_special = special.roll(1, dims=1)
    after_special[:, 0] = False
    return (spans[:, :, 0] != previous_end) | after_special


def _numbered(special: Tensor, begins: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the word number of each token, with -1 for special tokens, and which tokens start a word."""
    starts = begins & ~special
    words = starts.long().cumsum(dim=1)
    words[special] = -1
    return words, starts


def _all_of_a_word(words: Tensor, hidden: Tensor) -> Tensor:
    """Marks all tokens of each word that has a token in `hidden`."""
    word_numbers = words.clamp(min=0)
    per_word = torch.zeros(len(words), int(word_numbers.max()) + 1, dtype=torch.bool)
    per_word.scatter_reduce_(1, word_numbers, hidden & words.ge(0), reduce="amax")
    return per_word.gather(1, word_numbers) & words.ge(0)


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
