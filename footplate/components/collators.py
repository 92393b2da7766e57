"""Collators that a spec may name: those of the Trainer, with the job's tokenizer."""

from __future__ import annotations

from typing import Annotated, Any

from footplate.components.hf_processors import require_pad_token, require_tokenizer

Multiple = Annotated[int | None, "Round lengths up to a multiple of this number, such as 8 for tensor cores"]
Longest = Annotated[int | None, "Pad every batch to this length; null pads to the longest of the batch"]
Seed = Annotated[int | None, "The seed for masking; null uses training.seed"]


def padding(processor: Any, /, *, max_length: Longest = None, pad_to_multiple_of: Multiple = None) -> Any:
    """Pads tokens to the longest of the batch."""
    from footplate.trainer.collators import DataCollatorWithPadding

    require_pad_token(processor, "padding")
    return DataCollatorWithPadding(processor, **_padded(max_length), pad_to_multiple_of=pad_to_multiple_of)


def stack() -> Any:
    """Stacks samples of one shape and keeps every key, nested ones and texts too."""
    from footplate.trainer.collators import stack_collator

    return stack_collator


def token_classification(processor: Any, /, *, max_length: Longest = None, pad_to_multiple_of: Multiple = None) -> Any:
    """Pads tokens to the longest of the batch, and their labels with -100, which no loss counts."""
    from footplate.trainer.collators import DataCollatorForTokenClassification

    require_pad_token(processor, "token-classification")
    return DataCollatorForTokenClassification(processor, **_padded(max_length), pad_to_multiple_of=pad_to_multiple_of)


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
    from footplate.trainer.collators import DataCollatorForLanguageModeling

    require_pad_token(processor, "masked-lm")
    return DataCollatorForLanguageModeling(
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
    from footplate.components.causal_batches import CausalBatches

    require_tokenizer(processor, "causal-lm")
    return CausalBatches(processor, pad_to_multiple_of)


def seq2seq(processor: Any, model: Any, /, *, max_length: Longest = None, pad_to_multiple_of: Multiple = None) -> Any:
    """Pads tokens and labels, each to their own longest. The model makes its decoder's inputs from the labels."""
    from footplate.trainer.collators import DataCollatorForSeq2Seq

    require_pad_token(processor, "seq2seq")
    return DataCollatorForSeq2Seq(processor, model, **_padded(max_length), pad_to_multiple_of=pad_to_multiple_of)


def t5_spans(
    processor: Any,
    /,
    *,
    noise_density: Annotated[float, "Share of tokens that are masked"] = 0.15,
    mean_noise_span_length: Annotated[float, "The mean number of tokens in a masked span"] = 3.0,
    seed: Seed = None,
) -> Any:
    """Replaces spans of a text by sentinel tokens, as T5 does. The labels are the replaced spans."""
    from footplate.trainer.collators import DataCollatorForT5MLM

    require_pad_token(processor, "t5-spans")
    return DataCollatorForT5MLM(processor, noise_density, mean_noise_span_length, seed=seed)


def _padded(max_length: int | None) -> dict[str, Any]:
    return {"padding": True if max_length is None else "max_length", "max_length": max_length}
