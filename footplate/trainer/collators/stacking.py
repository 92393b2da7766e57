"""Batches without padding: samples of equal shapes are stacked, or samples become one sequence (flattening).

If a column cannot be stacked, the error names it and its shapes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import numpy
import torch
from torch import Tensor

LABELS = ("label", "label_ids")
"""The names that datasets use for the label. Models use `labels`."""


def default_data_collator(features: Sequence[Any], return_tensors: str = "pt", *, first: str = "x") -> dict[str, Any]:
    """Stacks dicts, dataclasses or tuples of tensors, arrays and numbers. `label` and `label_ids` become `labels`.

    Plain torch datasets return pairs, which become the model's argument `first` and `labels`. Strings and None are left
    out, as Hugging Face does; `stack_collator` keeps every key.
    """
    rows = [_as_mapping(feature, first) for feature in features]
    batch: dict[str, Any] = {}
    label = next((name for name in LABELS if rows[0].get(name) is not None), None)
    if label is not None:
        batch["labels"] = _labels(label, _column(rows, label))
    for name, value in rows[0].items():
        if name not in LABELS and value is not None and not isinstance(value, str):
            batch[name] = _stacked(name, _column(rows, name))
    return in_framework(batch, return_tensors)  # type: ignore[no-any-return]


@dataclass
class DefaultDataCollator:
    """`default_data_collator` as an object that stores the type of tensor to return."""

    return_tensors: str = "pt"

    def __call__(self, features: list[dict[str, Any]], return_tensors: str | None = None) -> dict[str, Any]:
        return default_data_collator(features, return_tensors or self.return_tensors)


class DataCollatorMixin:
    """The base of collators that implement `torch_call`. NumPy arrays are converted from its tensors."""

    return_tensors: str = "pt"

    def __call__(self, features: Any, return_tensors: str | None = None) -> Any:
        framework = return_tensors or self.return_tensors
        if framework == "np":
            return self.numpy_call(features)
        if framework != "pt":
            raise ValueError(f"Framework '{framework}' not recognized! Known: pt, np")
        return self.torch_call(features)

    def torch_call(self, features: Any) -> Any:
        raise NotImplementedError(f"{type(self).__name__} has no torch_call")

    def numpy_call(self, features: Any) -> Any:
        return in_framework(self.torch_call(features), "np")


def stack_collator(features: Sequence[Any]) -> Any:
    """Stacks tensors of any shape inside dicts and tuples of any depth, and keeps every key.

    Use it for point clouds, images with their names or nested targets. Values that are not numbers become lists.
    """
    return _kept("a sample", list(features))


def _kept(name: str, values: list[Any]) -> Any:
    sample = values[0]
    if isinstance(sample, Mapping):
        return {key: _kept(key, _column(values, key)) for key in sample}
    if isinstance(sample, tuple) and hasattr(sample, "_fields"):
        return type(sample)(*(_kept(f"{name}.{key}", [getattr(v, key) for v in values]) for key in sample._fields))
    if isinstance(sample, (tuple, list)) and any(isinstance(item, (Tensor, numpy.ndarray, Mapping)) for item in sample):
        return type(sample)(_kept(f"{name}[{at}]", list(item)) for at, item in enumerate(zip(*values, strict=True)))
    can_be_stacked = isinstance(sample, (Tensor, numpy.ndarray, numpy.generic, bool, int, float, tuple, list))
    return _stacked(name, values) if can_be_stacked and not _has_text(sample) else values


def _has_text(value: Any) -> bool:
    while isinstance(value, (tuple, list)) and value:
        value = value[0]
    return isinstance(value, (str, bytes)) or value is None


def _labels(name: str, values: list[Any]) -> Tensor:
    """Returns labels in the types that losses need: classes as integers, other numbers as floats."""
    if isinstance(values[0], numpy.ndarray) and values[0].ndim == 0:
        values = [value.item() for value in values]  # torch.tensor fails for a list of 0-dimensional arrays
    first_value = values[0]
    if isinstance(first_value, Tensor) and (name == "label_ids" or first_value.dim() > 0):
        return _stacked(name, values)
    first_label = first_value if name == "label" else first_value[0]
    first_label = first_label.item() if isinstance(first_label, Tensor) else first_label
    is_class = isinstance(first_label, (int, numpy.integer))
    try:
        return torch.tensor(values, dtype=torch.long if is_class else torch.float)
    except (ValueError, TypeError, RuntimeError) as error:
        raise _cannot_stack(name, values) from error


def _stacked(name: str, values: list[Any]) -> Tensor:
    first_value = values[0]
    try:
        if isinstance(first_value, Tensor):
            return torch.stack(values)
        if isinstance(first_value, numpy.ndarray):
            return torch.from_numpy(numpy.stack(values))
        return torch.tensor(values)
    except (ValueError, TypeError, RuntimeError) as error:
        raise _cannot_stack(name, values) from error


def _cannot_stack(name: str, values: list[Any]) -> ValueError:
    shapes = list(dict.fromkeys(_shape(value) for value in values))
    return ValueError(
        f"the samples' {name!r} cannot be stacked into one tensor: a batch of {len(values)} has {', '.join(shapes[:4])}"
        f"{', …' if len(shapes) > 4 else ''}. Pad them: pass a processing_class or a data_collator that pads"
    )


def _shape(value: Any) -> str:
    if isinstance(value, (Tensor, numpy.ndarray)):
        return f"{type(value).__name__.lower()} of shape {tuple(value.shape)}"
    return f"{type(value).__name__} of length {len(value)}" if isinstance(value, Sequence) else type(value).__name__


def _column(rows: Sequence[Mapping[str, Any]], name: str) -> list[Any]:
    try:
        return [row[name] for row in rows]
    except KeyError:
        number = next(number for number, row in enumerate(rows) if name not in row)
        has = ", ".join(map(str, rows[number]))
        raise ValueError(
            f"the first sample of the batch has {name!r}, but sample {number} has only: {has}. Give all samples the "
            "same keys"
        ) from None


def _as_mapping(feature: Any, first: str) -> Mapping[str, Any]:
    if isinstance(feature, Mapping):
        return feature
    if isinstance(feature, (tuple, list)) and len(feature) in (1, 2):
        return dict(zip((first, "labels"), feature, strict=False))
    if hasattr(feature, "__dict__"):
        fields: dict[str, Any] = vars(feature)
        return fields
    raise TypeError(
        f"the default collator stacks dicts, dataclasses and (input, labels) pairs, but got {type(feature).__name__}: "
        "pass a data_collator"
    )


def in_framework(batch: Any, framework: str) -> Any:
    """Returns the batch, with its tensors as NumPy arrays if `framework` is "np"."""
    if framework == "pt":
        return batch
    if framework != "np":
        raise ValueError(f"return_tensors must be one of ('pt', 'np'), {framework!r} not supported")
    return {name: value.numpy() if isinstance(value, Tensor) else value for name, value in batch.items()}


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
