"""Pads samples to the longest of the batch. The processor pads its own inputs, and this module pads labels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy
import torch
from torch import Tensor

from footplate.contract.errors import DatasetError
from footplate.trainer.collators.stacking import LABELS, DataCollatorMixin


def pad(processor: Any, features: Any, **options: Any) -> Any:
    """Returns the result of the processor's `pad`, without the warning that advises to call the tokenizer."""
    notices = getattr(processor, "deprecation_warnings", None)
    if notices is None:
        return _padded(processor, features, options)
    before = notices.get("Asking-to-pad-a-fast-tokenizer", False)
    notices["Asking-to-pad-a-fast-tokenizer"] = True
    try:
        return _padded(processor, features, options)
    finally:
        notices["Asking-to-pad-a-fast-tokenizer"] = before


def _padded(processor: Any, features: Any, options: dict[str, Any]) -> Any:
    try:
        return processor.pad(features, **options)
    except (KeyError, TypeError, ValueError) as error:
        # A tokenizer's error mentions its options, even if the samples are the problem.
        reason = unfit(features, getattr(processor, "model_input_names", ("input_ids",))[0])
        if reason is None:
            raise
        raise reason from error


def unfit(features: Any, needed: str = "input_ids") -> DatasetError | None:
    """Returns an error if the samples lack the column `needed` or hold texts, which cannot form a batch, else None."""
    first_sample = features[0] if isinstance(features, Sequence) and features else None
    if not isinstance(first_sample, Mapping):
        return None
    if needed not in first_sample:
        names = ", ".join(map(str, first_sample)) or "nothing"
        return DatasetError(
            f"the samples have {names}, but not {needed}: tokenize them first",
            hint='in a job, list {"use": "tokenize", "args": {"column": …}} under data.map',
        )
    texts = next(
        ((name, value) for sample in features for name, value in sample.items() if isinstance(value, str)), None
    )
    if texts is None:
        return None
    name, value = texts
    return DatasetError(
        f"{name} holds texts such as {value[:40]!r}, but a batch holds numbers: turn them into numbers, or leave "
        "the column out",
        hint='in a job, {"use": "labels"} under data.map numbers the class names, and {"use": "drop"} drops a column',
    )


def stack_or_pad(examples: Sequence[Any], tokenizer: Any, pad_to_multiple_of: int | None = None) -> Tensor:
    """Returns token lists as one tensor. Shorter ones get the pad token on the tokenizer's padding side."""
    rows = [row if isinstance(row, Tensor) else torch.tensor(row, dtype=torch.long) for row in examples]
    longest = max(len(row) for row in rows)
    width = rounded_up(longest, pad_to_multiple_of)
    if all(len(row) == width for row in rows):
        return torch.stack(rows)
    if tokenizer.pad_token is None:
        raise ValueError(
            "You are attempting to pad samples but the tokenizer you are using"
            f" ({type(tokenizer).__name__}) does not have a pad token: set tokenizer.pad_token"
        )
    return pad_rows(rows, width, tokenizer.pad_token_id, tokenizer.padding_side)


def rounded_up(length: int, multiple: int | None) -> int:
    return length if multiple is None else -(-length // multiple) * multiple


def pad_rows(rows: Sequence[Any], width: int, value: int, side: str) -> Tensor:
    """Returns the rows as one tensor, in which `value` fills each row to `width` on the right or left `side`."""
    tensors = [torch.as_tensor(row, dtype=torch.long) for row in rows]
    result = torch.full((len(tensors), width, *tensors[0].shape[1:]), value)
    for padded_row, row in zip(result, tensors, strict=True):
        padded_row[slice(0, len(row)) if side == "right" else slice(width - len(row), width)] = row
    return result


def _padded_by(collator: Any, features: Any, framework: str) -> Any:
    """Pads the samples with the collator's processor and options."""
    options = {name: getattr(collator, name) for name in ("padding", "max_length", "pad_to_multiple_of")}
    return pad(collator.tokenizer, features, **options, return_tensors=framework)


@dataclass
class DataCollatorWithPadding:
    """Pads inputs to the longest of the batch, and renames `label` and `label_ids` to `labels`."""

    tokenizer: Any
    padding: Any = True
    max_length: int | None = None
    pad_to_multiple_of: int | None = None
    return_tensors: str = "pt"

    def __call__(self, features: list[dict[str, Any]]) -> Any:
        batch = _padded_by(self, features, self.return_tensors)
        for name in LABELS:
            if name in batch:
                batch["labels"] = batch[name]
                del batch[name]
        return batch


@dataclass
class DataCollatorForTokenClassification(DataCollatorMixin):
    """Pads inputs to the longest of the batch, and their labels with `label_pad_token_id`, which the loss ignores."""

    tokenizer: Any
    padding: Any = True
    max_length: int | None = None
    pad_to_multiple_of: int | None = None
    label_pad_token_id: int = -100
    return_tensors: str = "pt"

    def torch_call(self, features: Any) -> Any:
        name, labels, samples = _without_labels(features)
        batch = _padded_by(self, samples, "pt")
        if labels is not None:
            width = batch["input_ids"].shape[1]
            too_long = next((len(sample_labels) for sample_labels in labels if len(sample_labels) > width), None)
            if too_long is not None:
                raise ValueError(
                    f"a sample has {too_long} {name}, but the samples of its batch have {width} tokens after padding: "
                    "give each sample one label for each token"
                )
            batch[name] = pad_rows(labels, width, self.label_pad_token_id, self.tokenizer.padding_side)
        return batch


@dataclass
class DataCollatorForMultipleChoice(DataCollatorMixin):
    """Pads all choices of all samples together to the shape (samples, choices, length)."""

    tokenizer: Any
    padding: Any = True
    max_length: int | None = None
    pad_to_multiple_of: int | None = None
    return_tensors: str = "pt"

    def torch_call(self, examples: list[dict[str, Any]]) -> dict[str, Any]:
        _, labels, samples = _without_labels(examples)
        counts = {len(sample["input_ids"]) for sample in samples}
        if len(counts) > 1:
            raise ValueError(
                f"the samples of a batch have different numbers of choices, {', '.join(map(str, sorted(counts)))}: "
                "all samples need the same number"
            )
        choices = counts.pop()
        flat = [{name: value[at] for name, value in sample.items()} for sample in samples for at in range(choices)]
        padded = _padded_by(self, flat, "pt")
        batch = {name: value.view(len(examples), choices, -1) for name, value in padded.items()}
        if labels is not None:
            batch["labels"] = torch.tensor(labels, dtype=torch.int64)
        return batch


@dataclass
class DataCollatorForSeq2Seq:
    """Pads inputs and labels separately to their longest. A model, if given, makes decoder inputs from the labels."""

    tokenizer: Any
    model: Any | None = None
    padding: Any = True
    max_length: int | None = None
    pad_to_multiple_of: int | None = None
    label_pad_token_id: int = -100
    return_tensors: str = "pt"

    def __call__(self, features: Any, return_tensors: str | None = None) -> Any:
        framework = return_tensors or self.return_tensors
        _, labels, samples = _without_labels(features)
        batch = _padded_by(self, samples, framework)
        if labels is None:
            batch["labels"] = None
            return batch
        padded = pad_rows(labels, self._width(labels), self.label_pad_token_id, self.tokenizer.padding_side)
        batch["labels"] = padded if framework == "pt" else padded.numpy()
        shift = getattr(self.model, "prepare_decoder_input_ids_from_labels", None)
        if shift is not None:
            batch["decoder_input_ids"] = shift(labels=batch["labels"])
        return batch

    def _width(self, labels: list[Any]) -> int:
        longest = max(len(sample_labels) for sample_labels in labels)
        # The padding strategy may be an enum of Hugging Face's, whose value is the string.
        strategy = getattr(self.padding, "value", self.padding)
        if strategy in (False, "do_not_pad"):
            if any(len(sample_labels) != longest for sample_labels in labels):
                raise ValueError("labels of different lengths need padding to form a tensor: set padding=True")
            return longest
        if strategy == "max_length" and self.max_length is not None:
            longest = max(longest, self.max_length)
        return rounded_up(longest, self.pad_to_multiple_of)


def _without_labels(features: Sequence[Mapping[str, Any]]) -> tuple[str, list[Any] | None, list[dict[str, Any]]]:
    """Returns the labels' name, the labels or None, and the samples without them, because processors pad no labels."""
    name = "label" if "label" in features[0] else "labels"
    labels = [feature[name] for feature in features] if name in features[0] else None
    if labels is not None and all(value is None for value in labels):
        labels = None
    samples = [{key: value for key, value in feature.items() if key != name} for feature in features]
    if labels is not None and isinstance(labels[0], numpy.ndarray):
        labels = [torch.from_numpy(value) for value in labels]
    return name, labels, samples
