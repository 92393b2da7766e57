"""T5's span corruption: spans of the text are replaced by sentinel tokens, and the labels hold the spans."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from footplate.trainer.collators.language_modelling import generator_here
from footplate.trainer.collators.stacking import DataCollatorMixin
from footplate.trainer.losses.labels import IGNORE


def compute_input_and_target_lengths(
    inputs_length: int, noise_density: float, mean_noise_span_length: float
) -> tuple[int, int]:
    """Returns the text length for which the corrupted input has `inputs_length` tokens, and the labels' length."""
    tokens = inputs_length
    while _corrupted_lengths(tokens + 1, noise_density, mean_noise_span_length)[0] <= inputs_length:
        tokens += 1
    inputs, targets = _corrupted_lengths(tokens, noise_density, mean_noise_span_length)
    # With half of the tokens as noise, an even split keeps inputs and targets equally long.
    if noise_density == 0.5 and targets > inputs:
        return tokens - 1, targets - 1
    return tokens, targets


def _corrupted_lengths(tokens: int, density: float, mean_span: float) -> tuple[int, int]:
    noise = round(tokens * density)
    spans = round(noise / mean_span)
    return tokens - noise + spans + 1, noise + spans + 1


@dataclass
class DataCollatorForT5MLM(DataCollatorMixin):
    """Masks `noise_density` of each text, in spans of `mean_noise_span_length` tokens on average.

    Inputs have one sentinel for every span. Labels alternate sentinels and spans, and both end with the end token.
    Texts may differ in length: inputs are padded with the pad token and get an attention mask, labels with -100. The
    model makes its decoder inputs from the labels. If `input_length` and `target_length` are given, every batch must
    have these lengths (see `compute_input_and_target_lengths`).
    """

    tokenizer: Any
    noise_density: float = 0.15
    mean_noise_span_length: float = 3.0
    input_length: int | None = None
    target_length: int | None = None
    pad_token_id: int | None = None
    decoder_start_token_id: int | None = None
    return_tensors: str = "pt"
    seed: int | None = None

    def __post_init__(self) -> None:
        if not 0 < self.noise_density < 1:
            raise ValueError(f"noise_density must lie between 0 and 1. It is {self.noise_density}")
        if self.mean_noise_span_length < 1:
            raise ValueError(f"mean_noise_span_length must be 1 or more. It is {self.mean_noise_span_length}")
        self.generator: torch.Generator | None = None

    def torch_call(self, examples: list[Any]) -> dict[str, Tensor]:
        if self.seed is not None and self.generator is None:
            self.create_rng()
        texts = [
            torch.as_tensor(example["input_ids"] if isinstance(example, Mapping) else example) for example in examples
        ]
        pairs = [self._corrupted(text.long()) for text in texts]
        inputs = pad_sequence([tokens for tokens, _ in pairs], batch_first=True, padding_value=self._pad)
        labels = pad_sequence([tokens for _, tokens in pairs], batch_first=True, padding_value=IGNORE)
        for name, tensor in (("input_length", inputs), ("target_length", labels)):
            required_length = getattr(self, name)
            if required_length is not None and tensor.shape[1] != required_length:
                raise ValueError(
                    f"{name} is {required_length}, but this batch has length {tensor.shape[1]}: cut the texts to the "
                    "length that compute_input_and_target_lengths returns"
                )
        lengths = torch.tensor([len(tokens) for tokens, _ in pairs])
        batch = {
            "input_ids": inputs,
            "attention_mask": (torch.arange(inputs.shape[1]) < lengths[:, None]).long(),
            "labels": labels,
        }
        if self.decoder_start_token_id is not None:
            shifted = labels.roll(1, dims=1)
            shifted[:, 0] = self.decoder_start_token_id
            batch["decoder_input_ids"] = shifted.masked_fill_(shifted == IGNORE, self._pad)
        return batch

    def create_rng(self) -> None:
        """Makes the collator's generator. The seed includes the loading process's number, so that masks differ."""
        self.generator = generator_here(self.seed or 0)

    @property
    def _pad(self) -> int:
        return int(self.tokenizer.pad_token_id if self.pad_token_id is None else self.pad_token_id)

    def _corrupted(self, text: Tensor) -> tuple[Tensor, Tensor]:
        eos = self.tokenizer.eos_token_id
        if eos is not None and len(text) and int(text[-1]) == eos:
            text = text[:-1]
        if len(text) < 2:
            raise ValueError(
                f"a text of {len(text)} tokens is too short to mask: leave out texts of less than 2 tokens"
            )
        noise = self.random_spans_noise_mask(len(text))
        end = torch.tensor([] if eos is None else [eos], dtype=torch.long)
        return torch.cat([self._with_sentinels(text, noise), end]), torch.cat([self._with_sentinels(text, ~noise), end])

    def random_spans_noise_mask(self, length: int) -> Tensor:
        """Returns the mask of hidden tokens: spans that never touch each other, and never start the text."""
        noise = min(max(round(length * self.noise_density), 1), length - 1)
        spans = max(round(noise / self.mean_noise_span_length), 1)
        spans = min(spans, noise, length - noise)
        lengths = torch.stack([self._split(length - noise, spans), self._split(noise, spans)], dim=1).flatten()
        return torch.arange(2 * spans).remainder(2).bool().repeat_interleave(lengths)

    def _split(self, total: int, number: int) -> Tensor:
        """Returns `number` random integers of at least 1 whose sum is `total`. Every split is equally likely."""
        cuts = torch.randperm(total - 1, generator=self.generator)[: number - 1].sort().values + 1
        edges = torch.cat([torch.tensor([0]), cuts, torch.tensor([total])])
        return edges.diff()

    def _with_sentinels(self, text: Tensor, hidden: Tensor) -> Tensor:
        """Replaces each hidden span by one sentinel, numbered in order."""
        starts = hidden & ~torch.cat([torch.tensor([False]), hidden[:-1]])
        numbers = (starts.long().cumsum(0) - 1).tolist()
        tokens = [
            self._sentinel(number) if start else int(token)
            for token, start, is_hidden, number in zip(text, starts.tolist(), hidden.tolist(), numbers, strict=True)
            if start or not is_hidden
        ]
        return torch.tensor(tokens, dtype=torch.long)

    def _sentinel(self, number: int) -> int:
        token_id = self.tokenizer.convert_tokens_to_ids(f"<extra_id_{number}>")
        unknown_id = getattr(self.tokenizer, "unk_token_id", None)
        if token_id is None or token_id == unknown_id:
            raise ValueError(
                f"this tokenizer has no sentinel <extra_id_{number}>: use a T5 tokenizer, shorter texts, or a lower "
                "noise_density"
            )
        return int(token_id)
