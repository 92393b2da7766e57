"""Tests collators by name: the Trainer's collators with the job's tokenizer, and our own for causal models."""

from __future__ import annotations

from typing import Any

import pytest

from footplate.components import collators
from footplate.contract.errors import NotBuildable


def test_labels_ignore_padding_but_keep_the_end_token(tokenizer: Any) -> None:
    """The padding token is the same as the end token here."""
    tokenizer.eos_token = tokenizer.pad_token = "[SEP]"
    end = tokenizer.eos_token_id

    batch = collators.causal_lm(tokenizer)([{"input_ids": [7, 8, 9, end]}, {"input_ids": [7, end]}])

    assert batch["labels"].tolist() == [[7, 8, 9, end], [7, end, -100, -100]]
    assert batch["attention_mask"].tolist() == [[1, 1, 1, 1], [1, 1, 0, 0]]


def test_labels_in_the_samples_are_kept(tokenizer: Any) -> None:
    tokenizer.padding_side = "left"

    batch = collators.causal_lm(tokenizer, pad_to_multiple_of=4)(
        [{"input_ids": [7, 8, 9], "labels": [-100, 8, 9]}, {"input_ids": [7], "labels": [7]}]
    )

    assert batch["labels"].tolist() == [[-100, -100, 8, 9], [-100, -100, -100, 7]]
    assert batch["input_ids"].tolist()[1] == [tokenizer.pad_token_id] * 3 + [7]


def test_a_tokenizer_without_a_pad_token_is_refused_with_the_argument_to_set(tokenizer: Any) -> None:
    tokenizer.pad_token, tokenizer.eos_token = None, "[SEP]"

    for factory in (collators.padding, collators.masked_lm, collators.token_classification, collators.t5_spans):
        with pytest.raises(NotBuildable, match="has no pad token") as error:
            factory(tokenizer)
        assert '"pad_token": "[SEP]"' in str(error.value.hint)
    causal = collators.causal_lm(tokenizer)
    assert causal([{"input_ids": [7, 8]}, {"input_ids": [8, 9]}])["input_ids"].shape == (2, 2)
    with pytest.raises(NotBuildable, match="causal-lm pads"):
        causal([{"input_ids": [7, 8]}, {"input_ids": [9]}])


def test_a_collator_that_needs_a_tokenizer_is_refused_without_one() -> None:
    with pytest.raises(NotBuildable, match="padding needs a tokenizer, and the job has none"):
        collators.padding(None)


def test_max_length_pads_every_batch_to_the_same_length(tokenizer: Any) -> None:
    batch = collators.padding(tokenizer, max_length=8)([{"input_ids": [7, 8], "label": 1}])

    assert batch["input_ids"].shape == (1, 8)
    assert batch["labels"].tolist() == [1]


def test_whole_word_masking_hides_all_pieces_of_a_word(tokenizer: Any) -> None:
    collate = collators.masked_lm(tokenizer, whole_words=True, mlm_probability=0.5, seed=1)
    row = tokenizer("dulll the dulll is dulll")

    batch = collate([{"input_ids": row["input_ids"]}])

    hidden = (batch["labels"][0] != -100).tolist()
    words = row.word_ids()
    assert any(hidden)
    assert all(len({h for h, w in zip(hidden, words, strict=True) if w == word}) == 1 for word in range(5))
