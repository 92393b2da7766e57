"""Explains why a model failed on a batch: the shapes and columns of the batch, and the change that would help."""

from __future__ import annotations

import inspect
import traceback
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from footplate.trainer.losses.labels import explain as explain_labels

if TYPE_CHECKING:
    from footplate.trainer.trainer import Trainer


def does_not_fit(trainer: Trainer, model: nn.Module, inputs: Mapping[str, Any], error: TypeError) -> TypeError:
    """Returns an error that lists forward's arguments and the batch's keys, or `error` itself if these agree."""
    forward = getattr(trainer.accelerator.unwrap_model(model), "forward", model.forward)
    signature = inspect.signature(forward)
    try:
        signature.bind(**inputs)
    except TypeError as mismatch:
        parameters = ", ".join(
            name if parameter.default is parameter.empty else f"{name} (optional)"
            for name, parameter in signature.parameters.items()
        )
        return TypeError(
            f"the batch does not fit the model: {mismatch}. forward takes {parameters}; the batch has "
            f"{', '.join(inputs) or 'nothing'}, made from rows with {columns(trainer)}. Rename columns, for example by "
            "the map rename, or choose data for this model"
        )
    return error


def explained(trainer: Trainer, batches: Sequence[Any], error: Exception) -> Exception | None:
    """Returns a clearer error for a failed step if a label or token id is out of range, else None.

    If None is returned and the shapes or dtypes did not match, `error` gets a note with both and what to change.
    """
    mappings = [batch for batch in batches if isinstance(batch, Mapping)]
    reason = explain_labels(error, mappings, trainer.model, trainer.label_names)
    if reason is None and mappings and is_misfit(error):
        error.add_note(_shape_hint(trainer.model, mappings[0], error))
    return reason


_DTYPES = ("must have the same dtype", "expected scalar type", "to have the same dtype")
_LAYERS = ("shapes cannot be multiplied", "size mismatch", "normalized_shape", "expected input", "invalid for input")
_LOSSES = ("must match the size", "Target size", "target size", "shape mismatch", "Expected input batch_size")
_MISFITS = (*_DTYPES, *_LAYERS, *_LOSSES)
"""Texts in torch's errors about shapes and types of tensors."""


def is_misfit(error: BaseException) -> bool:
    """Returns True for an error of torch about shapes or types of tensors."""
    return isinstance(error, RuntimeError | ValueError) and any(text in str(error) for text in _MISFITS)


def _shape_hint(model: nn.Module, batch: Mapping[str, Any], error: Exception) -> str:
    text, facts = str(error), [f"the batch has {shapes_of(batch)}"]
    is_of_loss = any(phrase in text for phrase in _LOSSES)
    if (place := _failed_module(model, error)) is not None and not is_of_loss:
        name, module, shape = place
        facts.append(f"{name} is {type(module).__name__}({module.extra_repr()}) and got {shape}")
    if is_of_loss:
        advice = (
            "Labels and outputs need shapes that fit: change the number of outputs in model.args (num_labels, "
            "out_features), or rename the right column of the labels by the map rename"
        )
        labels, classes = batch.get("labels"), getattr(getattr(model, "config", None), "num_labels", 1)
        if isinstance(labels, Tensor) and labels.is_floating_point() and labels.dim() == 1 and classes > 1:
            advice = f"Labels of {classes} classes are whole numbers. The map labels makes them from names. {advice}"
    elif any(phrase in text for phrase in _DTYPES):
        advice = "Give the column numbers with a decimal point, or leave it out with the map drop"
    else:
        advice = (
            "Change the size in model.args (such as in_features), or choose the columns of the rows by the maps "
            "keep, drop and rename"
        )
    return f"{'; '.join(facts)}. {advice}"


def _failed_module(model: nn.Module, error: Exception) -> tuple[str, nn.Module, str] | None:
    """Returns the innermost module in the error's traceback: its name, the module, and the shape of its input."""
    names = {id(module): name for name, module in model.named_modules() if name}
    place = None
    for frame, _ in traceback.walk_tb(error.__traceback__):
        module, tensor = frame.f_locals.get("self"), frame.f_locals.get("input")
        if isinstance(module, nn.Module) and id(module) in names and isinstance(tensor, Tensor):
            place = names[id(module)], module, f"{tuple(tensor.shape)} {tensor.dtype}"
    return place


def shapes_of(batch: Mapping[str, Any]) -> str:
    """Returns the names of a batch's tensors, with shapes and types."""
    tensors = {name: value for name, value in batch.items() if isinstance(value, Tensor)}
    return ", ".join(f"{name} {tuple(tensor.shape)} {tensor.dtype}" for name, tensor in tensors.items())


def columns(trainer: Trainer) -> str:
    """Returns the column names of the training data, or the text "unnamed columns"."""
    with suppress(Exception):
        dataset: Any = trainer.train_dataset
        names = getattr(dataset, "column_names", None) or list(dataset[0])
        if names and all(isinstance(name, str) for name in names):
            return ", ".join(names)
    return "unnamed columns"
