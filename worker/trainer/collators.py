"""Samples to a batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch


def default_data_collator(features: Sequence[Any], *, first: str = "x") -> dict[str, Any]:
    """Stacks dicts, dataclasses or tuples of tensors, arrays and numbers. `label` and `label_ids` become `labels`.

    A pair, which is what plain torch datasets give, becomes the model's first argument and `labels`.
    """
    rows = [_as_mapping(feature, first) for feature in features]
    batch: dict[str, Any] = {}
    for name, value in rows[0].items():
        if value is None or isinstance(value, str):
            continue
        target = "labels" if name in ("label", "label_ids") else name
        batch[target] = _stack([row[name] for row in rows])
    return batch


def _stack(values: list[Any]) -> torch.Tensor:
    first = values[0]
    if isinstance(first, torch.Tensor):
        return torch.stack(values)
    if hasattr(first, "__array__"):
        import numpy

        return torch.from_numpy(numpy.stack(values))
    return torch.tensor(values)


def _as_mapping(feature: Any, first: str) -> Mapping[str, Any]:
    if isinstance(feature, Mapping):
        return feature
    if isinstance(feature, (tuple, list)) and len(feature) in (1, 2):
        return dict(zip((first, "labels"), feature, strict=False))
    if hasattr(feature, "__dict__"):
        fields: dict[str, Any] = vars(feature)
        return fields
    raise TypeError(
        f"the default collator stacks dicts, dataclasses and (input, labels) pairs, and got {type(feature).__name__}: "
        "hand in a data_collator"
    )
