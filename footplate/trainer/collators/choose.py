"""Chooses the collator if none is given, and checks the batch of any collator."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from footplate.trainer.collators.padding import DataCollatorWithPadding
from footplate.trainer.collators.stacking import default_data_collator
from footplate.trainer.strategies.device_copy import tensors_in


def choose_collator(processing_class: Any = None, *, first: str = "x") -> Callable[[Any], Any]:
    """Returns a padding collator if the processor can pad samples, else a stacking one.

    `first` is the name under which the first item of an (input, labels) pair reaches the model.
    """
    if pads_samples(processing_class):
        return DataCollatorWithPadding(processing_class)
    return partial(default_data_collator, first=first)


def pads_samples(processor: Any) -> bool:
    """Returns True for tokenizers and feature extractors. An image processor's `pad` adds borders instead."""
    pad = getattr(processor, "pad", None)
    if not callable(pad):
        return False
    try:
        parameters = inspect.signature(pad).parameters
    except (TypeError, ValueError):
        return False
    takes_any = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
    return {"padding", "return_tensors"} <= parameters.keys() or (takes_any and hasattr(processor, "padding_side"))


def require_batch(batch: Any, collator: Any) -> None:
    """Raises TypeError, which names the collator, if a model cannot be called with the batch."""
    name = getattr(collator, "__qualname__", type(collator).__qualname__)
    if not isinstance(batch, Mapping):
        raise TypeError(
            f"the collator {name} returned {_kind(batch)}, and a model needs named arguments: return a dict such as "
            '{"input_ids": …, "labels": …}'
        )
    if not batch:
        raise TypeError(f"the collator {name} returned an empty dict: there is nothing to call the model with")
    wrong_keys = [key for key in batch if not isinstance(key, str)]
    if wrong_keys:
        raise TypeError(f"the collator {name} returned the key {wrong_keys[0]!r}, but argument names must be strings")
    if not tensors_in(batch):
        kinds = ", ".join(f"{key}: {_kind(value)}" for key, value in batch.items())
        raise TypeError(f"the collator {name} returned no tensor at all, only {kinds}: convert with torch.tensor")


def _kind(value: Any) -> str:
    if isinstance(value, (list, tuple)) and value:
        return f"{type(value).__name__} of {type(value[0]).__name__}"
    return "None" if value is None else type(value).__name__
