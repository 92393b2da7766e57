"""Writes a test set's predictions: a line of JSON for each sample, or tensors if a sample has many numbers."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy
from safetensors.numpy import save_file

from footplate.contract.events import json_safe
from footplate.trainer.metrics.third_party import decoded

LINES = "predictions.jsonl"
TENSORS = "predictions.safetensors"
MANY_NUMBERS = 1000
"""The most numbers of a sample that is written as JSON, because text is ten times as large as a tensor."""


def write(folder: Path, predictions: Any, labels: Any) -> Path:
    """Writes predictions and labels as lines of JSON, or as tensors if samples are large. Returns the file's path."""
    arrays = {**arrays_of("prediction", predictions), **arrays_of("label", labels)}
    if max((array[0].size for array in arrays.values() if len(array)), default=0) > MANY_NUMBERS:
        save_file({name: numpy.ascontiguousarray(array) for name, array in arrays.items()}, folder / TENSORS)
        return folder / TENSORS
    with (folder / LINES).open("w", encoding="utf-8") as file:
        for row in _rows(arrays):
            file.write(json.dumps(json_safe(row)) + "\n")
    return folder / LINES


def as_texts(tokens: Any, processor: Any) -> Any:
    """Returns tokens as texts, without padding and special tokens. Without a tokenizer, returns the tokens."""
    if tokens is None or not callable(getattr(processor, "batch_decode", None)):
        return tokens
    return numpy.array(decoded(tokens, processor))


def arrays_of(name: str, value: Any) -> dict[str, Any]:
    """Returns the arrays in a model's output by name. There are several if the model returns more than logits."""
    if value is None:
        return {}
    if isinstance(value, (list, tuple)):
        value = dict(enumerate(value))
    if not isinstance(value, Mapping):
        return {name: numpy.atleast_1d(value)}
    arrays: dict[str, Any] = {}
    for part, part_value in value.items():
        arrays |= arrays_of(f"{name}.{part}", part_value)
    return arrays


def _rows(arrays: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yields a row for each sample. Arrays that have no value for each sample are left out."""
    samples = max((len(array) for array in arrays.values()), default=0)
    columns = {name: array for name, array in arrays.items() if len(array) == samples}
    for index in range(samples):
        yield {name: column[index].tolist() for name, column in columns.items()}
