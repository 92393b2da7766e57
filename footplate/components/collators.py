"""Collators that a spec may name: the Trainer's collators, with the job's tokenizer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from torch import Tensor

from footplate.components.hf_processors import require_pad_token, require_tokenizer
from footplate.trainer import collators
from footplate.trainer.collators.padding import pad_rows, rounded_up, unfit
from footplate.trainer.losses.labels import IGNORE

LABELS = ("labels", "label")

Multiple = Annotated[int | None, "Round lengths up to a multiple of this number, such as 8 for tensor cores"]
Longest = Annotated[int | None, "Pad every batch to this length; null pads to the longest of the batch"]
Seed = Annotated[int | None, "The seed for masking; null uses training.seed"]


def padding(processor: Any, /, *, max_length: Longest = None, pad_to_multiple_of: Multiple = None) -> Any:
    """Pads tokens to the longest of the batch."""
    require_pad_token(processor, "padding")
    return collators.DataCollatorWithPadding(processor, **_padded(max_length), pad_to_multiple_of=pad_to_multiple_of)


def stack() -> Any:
    """Stacks samples of equal shape, and keeps every key of a sample, also nested keys and texts."""
    return collators.stack_collator


def token_classification(processor: Any, /, *, max_length: Longest = None, pad_to_multiple_of: Multiple = None) -> Any:
    """Pads tokens to the longest of the batch, and their labels with -100, which losses leave out."""
    require_pad_token(processor, "token-classification")
    return collators.DataCollatorForTokenClassification(
        processor, **_padded(max_length), pad_to_multiple_of=pad_to_multiple_of
    )


def masked_lm(
    processor: Any,
    /,
    *,
    mlm_probability: Annotated[float, "Share of tokens that are masked"] = 0.15,
    mask_replace_prob: Annotated[float, "Share of the masked tokens that become the mask token"] = 0.8,
    random_replace_prob: Annotated[float, "Share of the masked tokens that become a random token"] = 0.1,
    whole_words: Annotated[bool, "Mask all tokens of a word together"] = False,
    pad_to_multiple_of: Multiple = None,
    seed: Seed = None,
) -> Any:
    """Masks tokens for a masked language model. The labels are the masked tokens."""
    require_pad_token(processor, "masked-lm")
    return collators.DataCollatorForLanguageModeling(
        processor,
        whole_word_mask=whole_words,
        mlm_probability=mlm_probability,
        mask_replace_prob=1.0 if whole_words else mask_replace_prob,
        random_replace_prob=0.0 if whole_words else random_replace_prob,
        pad_to_multiple_of=pad_to_multiple_of,
        seed=seed,
    )


def causal_lm(processor: Any, /, *, pad_to_multiple_of: Multiple = None) -> Any:
    """Pads tokens, which are also the labels unless samples have labels. Padding is left out of the loss."""
    require_tokenizer(processor, "causal-lm")
    return CausalBatches(processor, pad_to_multiple_of)


def seq2seq(processor: Any, model: Any, /, *, max_length: Longest = None, pad_to_multiple_of: Multiple = None) -> Any:
    """Pads tokens to the longest text of the batch, and labels to the longest labels.

    The model makes its decoder's inputs from the labels.
    """
    require_pad_token(processor, "seq2seq")
    return collators.DataCollatorForSeq2Seq(
        processor, model, **_padded(max_length), pad_to_multiple_of=pad_to_multiple_of
    )


def t5_spans(
    processor: Any,
    /,
    *,
    noise_density: Annotated[float, "Share of tokens that are masked"] = 0.15,
    mean_noise_span_length: Annotated[float, "The mean number of tokens in a masked span"] = 3.0,
    seed: Seed = None,
) -> Any:
    """Replaces spans of a text by sentinel tokens, as T5 does. The labels are the replaced spans."""
    require_pad_token(processor, "t5-spans")
    return collators.DataCollatorForT5MLM(processor, noise_density, mean_noise_span_length, seed=seed)


def _padded(max_length: int | None) -> dict[str, Any]:
    return {"padding": True if max_length is None else "max_length", "max_length": max_length}


@dataclass
class CausalBatches:
    """Makes batches for causal language models. Labels are -100 where the attention mask is 0.

    The mask is used because the pad token is often also the token that ends a text, which the model must learn.
    """

    tokenizer: Any
    pad_to_multiple_of: int | None = None

    def __call__(self, samples: Sequence[Mapping[str, Any]]) -> dict[str, Tensor]:
        if "input_ids" not in samples[0] and (error := unfit(samples)):
            raise error
        tokens = [sample["input_ids"] for sample in samples]
        masks = [sample.get("attention_mask", [1] * len(sample["input_ids"])) for sample in samples]
        width = rounded_up(max(len(row) for row in tokens), self.pad_to_multiple_of)
        if any(len(row) != width for row in tokens):
            require_pad_token(self.tokenizer, "causal-lm")
        side = self.tokenizer.padding_side
        mask = pad_rows(masks, width, 0, side)
        inputs = pad_rows(tokens, width, self.tokenizer.pad_token_id or 0, side)
        name = next((label for label in LABELS if label in samples[0]), None)
        if name is None:
            labels = inputs.masked_fill(mask == 0, IGNORE)
        else:
            labels = pad_rows([sample[name] for sample in samples], width, IGNORE, side)
        return {"input_ids": inputs, "attention_mask": mask, "labels": labels}
