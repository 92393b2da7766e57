"""Which collator, when none is given; and what any collator's batch must look like."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from torch import Tensor

from footplate.trainer.collators.padding import DataCollatorWithPadding
from footplate.trainer.collators.stacking import default_data_collator


def choose_collator(processing_class: Any = None, *, first: str = "x") -> Callable[[Any], Any]:
    """Padding where the processor pads samples; stacking otherwise. `first` names what a pair's first half is."""
    if pads_samples(processing_class):
        return DataCollatorWithPadding(processing_class)
    return partial(default_data_collator, first=first)


def pads_samples(processor: Any) -> bool:
    """Tokenizers and feature extractors do. An image processor's `pad` is about borders and takes no `padding`."""
    pad = getattr(processor, "pad", None)
    if not callable(pad):
        return False
    try:
        takes = inspect.signature(pad).parameters
    except (TypeError, ValueError):
        return False
    anything = any(each.kind is each.VAR_KEYWORD for each in takes.values())
    return {"padding", "return_tensors"} <= takes.keys() or (anything and hasattr(processor, "padding_side"))


def require_batch(batch: Any, collator: Any) -> Mapping[str, Any]:
    """The batch, if a model can be called with it; else who made it and what it is."""
    name = getattr(collator, "__qualname__", type(collator).__qualname__)
    if not isinstance(batch, Mapping):
        raise TypeError(
            f"the collator {name} returned {_kind(batch)}, and a model is called with names: return a dict such as "
            '{"input_ids": …, "labels": …}'
        )
    if not batch:
        raise TypeError(f"the collator {name} returned an empty dict: there is nothing to call the model with")
    odd = [key for key in batch if not isinstance(key, str)]
    if odd:
        raise TypeError(f"the collator {name} returned the key {odd[0]!r}, and names of arguments are strings")
    if not any(_holds_a_tensor(value) for value in batch.values()):
        kinds = ", ".join(f"{key}: {_kind(value)}" for key, value in batch.items())
        raise TypeError(f"the collator {name} returned no tensor at all, only {kinds}: convert with torch.tensor")
    return batch


def _holds_a_tensor(value: Any) -> bool:
    if isinstance(value, Mapping):
        return any(_holds_a_tensor(each) for each in value.values())
    if isinstance(value, (list, tuple)):
        return any(_holds_a_tensor(each) for each in value)
    return isinstance(value, Tensor)


def _kind(value: Any) -> str:
    if isinstance(value, (list, tuple)) and value:
        return f"{type(value).__name__} of {type(value[0]).__name__}"
    return "None" if value is None else type(value).__name__
