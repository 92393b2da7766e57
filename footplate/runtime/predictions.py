"""A test set's predictions as files: a line of JSON for each sample, or tensors where a sample has many numbers."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy
from safetensors.numpy import save_file

from footplate.contract.events import json_safe

LINES = "predictions.jsonl"
TENSORS = "predictions.safetensors"
MANY_NUMBERS = 1000
"""A sample that has more is for programs, and as text ten times as large."""


def write(folder: Path, predictions: Any, labels: Any) -> Path:
    """`predictions.jsonl` with {"prediction", "label"} for each sample, or `predictions.safetensors`; which one."""
    arrays = {**_arrays("prediction", predictions), **_arrays("label", labels)}
    if max((each[0].size for each in arrays.values() if len(each)), default=0) > MANY_NUMBERS:
        save_file({name: numpy.ascontiguousarray(each) for name, each in arrays.items()}, folder / TENSORS)
        return folder / TENSORS
    with (folder / LINES).open("w", encoding="utf-8") as file:
        for row in _rows(arrays):
            file.write(json.dumps(json_safe(row)) + "\n")
    return folder / LINES


def as_texts(tokens: Any, processor: Any) -> Any:
    """What they say, where there is who reads them; what stands in for nothing is left out."""
    if tokens is None or not callable(getattr(processor, "batch_decode", None)):
        return tokens
    pad = getattr(processor, "pad_token_id", None) or 0
    texts = processor.batch_decode(numpy.where(tokens < 0, pad, tokens).tolist(), skip_special_tokens=True)
    return numpy.array([each.strip() for each in texts])


def _arrays(name: str, value: Any) -> dict[str, Any]:
    """By name, what may be one array or several: a model may return more than logits."""
    if value is None:
        return {}
    if isinstance(value, Mapping):
        return {key: each for part, one in value.items() for key, each in _arrays(f"{name}.{part}", one).items()}
    if isinstance(value, (list, tuple)):
        return {key: each for at, one in enumerate(value) for key, each in _arrays(f"{name}.{at}", one).items()}
    return {name: numpy.atleast_1d(value)}


def _rows(arrays: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """As many as there are samples; what does not belong to samples, such as one number for all, is in none."""
    samples = max((len(each) for each in arrays.values()), default=0)
    of_samples = {name: each for name, each in arrays.items() if len(each) == samples}
    for at in range(samples):
        yield {name: each[at].tolist() for name, each in of_samples.items()}
