"""Activation checkpointing: forward again in backward what would not fit into memory, layer by layer."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Iterator, Mapping
from typing import Any

from torch import nn
from torch.utils.checkpoint import checkpoint

_FORWARD = "_forward_without_checkpointing"


def checkpoint_activations(model: nn.Module, kwargs: Mapping[str, Any] | None = None) -> int:
    """Switches it on and says for how many layers; 0 where the model does it in its own way.

    Models that know how (the reference's do) are told to. Of a plain module the layers are the elements of its
    nn.ModuleList's, or of nn.Sequential's where there is none: what is repeated is what fills memory. `every_n_layers`
    of `kwargs` leaves the others alone; the rest goes to torch.utils.checkpoint.
    """
    options = dict(kwargs or {})
    own = getattr(model, "activation_checkpointing_enable", None)
    if own is not None:
        own(activation_checkpointing_kwargs=options or None)
        return 0
    older = getattr(model, "gradient_checkpointing_enable", None)
    if older is not None:
        takes_kwargs = "gradient_checkpointing_kwargs" in inspect.signature(older).parameters
        older(**({"gradient_checkpointing_kwargs": options} if options and takes_kwargs else {}))
        return 0
    every = int(options.pop("every_n_layers", 1))
    layers = list(repeated_layers(model))[:: max(1, every)]
    if not layers:
        raise ValueError(
            f"activation checkpointing found no layers in {type(model).__name__}: it looks into nn.ModuleList and "
            "nn.Sequential. Give the model an activation_checkpointing_enable method, or leave the argument out"
        )
    for layer in layers:
        _wrap(layer, {"use_reentrant": False, **options})
    return len(layers)


def keep_activations(model: nn.Module) -> None:
    """Switches it off again, where this page switched it on."""
    for module in model.modules():
        if _FORWARD in vars(module):
            module.forward = vars(module).pop(_FORWARD)


def repeated_layers(model: nn.Module) -> Iterator[nn.Module]:
    """Outermost first; a layer inside of a layer is not checkpointed again."""
    for kind in (nn.ModuleList, nn.Sequential):
        found = [each for each in _inside(model, kind) if any(True for _ in each.parameters())]
        if found:
            yield from found
            return


def _inside(module: nn.Module, kind: type[nn.Module]) -> Iterator[nn.Module]:
    for child in module.children() if not isinstance(module, kind) else ():
        yield from _inside(child, kind)
    if isinstance(module, kind):
        yield from module.children()


def _wrap(layer: nn.Module, options: dict[str, Any]) -> None:
    """On the object, so that names in the state and the layer's class stay what they are."""
    if _FORWARD in vars(layer):
        return
    forward = layer.forward

    @functools.wraps(forward)
    def again_in_backward(*args: Any, **kwargs: Any) -> Any:
        if layer.training:
            return checkpoint(forward, *args, **options, **kwargs)
        return forward(*args, **kwargs)

    vars(layer)[_FORWARD] = forward
    layer.forward = again_in_backward
