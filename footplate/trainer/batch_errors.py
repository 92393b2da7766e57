"""Explains batches that a model cannot use. Runs only after an error, so it may read a row of the data."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from torch import nn

if TYPE_CHECKING:
    from footplate.trainer.trainer import Trainer


def does_not_fit(trainer: Trainer, model: nn.Module, inputs: Mapping[str, Any], error: TypeError) -> TypeError:
    """Returns an error that names what forward takes and what the batch has. Returns `error` if the batch does fit."""
    forward = getattr(trainer.accelerator.unwrap_model(model), "forward", model.forward)
    signature = inspect.signature(forward)
    try:
        signature.bind(**inputs)
    except TypeError as mismatch:
        takes = ", ".join(
            name if parameter.default is parameter.empty else f"{name} (optional)"
            for name, parameter in signature.parameters.items()
        )
        return TypeError(
            f"the batch does not fit the model: {mismatch}. forward takes {takes}; the batch has "
            f"{', '.join(inputs) or 'nothing'}, made from rows with {columns(trainer)}. Rename columns, for example by "
            "the map rename, or choose data for this model"
        )
    return error


def no_labels(trainer: Trainer, error: ValueError) -> ValueError:
    """Returns the error with the columns of the data, and the map that makes one of them the labels."""
    return ValueError(
        f"{error}. The rows have {columns(trainer)}. If one of these columns has the labels, rename it: "
        '{"use": "rename", "args": {"columns": {"THAT COLUMN": "labels"}}} in data.map'
    )


def columns(trainer: Trainer) -> str:
    """Returns the names of the columns of the training data, or of a general word if the data has no names."""
    with suppress(Exception):
        dataset: Any = trainer.train_dataset
        names = getattr(dataset, "column_names", None) or list(dataset[0])
        if names and all(isinstance(name, str) for name in names):
            return ", ".join(names)
    return "unnamed columns"
