"""Activation checkpointing saves memory: layers compute forward again in backward instead of storing activations."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Iterator, Mapping
from typing import Any

from torch import nn
from torch.utils.checkpoint import checkpoint

_FORWARD = "_forward_without_checkpointing"


def checkpoint_activations(model: nn.Module, kwargs: Mapping[str, Any] | None = None) -> int:
    """Switches activation checkpointing on. Returns the number of layers, or 0 if the model has its own method.

    In a model without a method, the layers are the elements of its nn.ModuleList, or else of its nn.Sequential. With
    `every_n_layers` in `kwargs`, only every n-th layer is checkpointed. Other keys go to torch.utils.checkpoint.
    """
    options = dict(kwargs or {})
    enable = getattr(model, "activation_checkpointing_enable", None)
    if enable is not None:
        enable(activation_checkpointing_kwargs=options or None)
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
            "nn.Sequential. Give the model an activation_checkpointing_enable method, or leave out "
            "activation_checkpointing"
        )
    for layer in layers:
        _wrap(layer, {"use_reentrant": False, **options})
    return len(layers)


def uncheckpoint_activations(model: nn.Module) -> None:
    """Switches activation checkpointing off in the layers that `checkpoint_activations` has changed."""
    for module in model.modules():
        if _FORWARD in vars(module):
            module.forward = vars(module).pop(_FORWARD)


def repeated_layers(model: nn.Module) -> Iterator[nn.Module]:
    """Yields the elements of the model's outermost nn.ModuleLists or, if there is none, of its nn.Sequentials."""
    for kind in (nn.ModuleList, nn.Sequential):
        layers = [layer for layer in _inside(model, kind) if any(True for _ in layer.parameters())]
        if layers:
            yield from layers
            return


def _inside(module: nn.Module, kind: type[nn.Module]) -> Iterator[nn.Module]:
    for child in module.children() if not isinstance(module, kind) else ():
        yield from _inside(child, kind)
    if isinstance(module, kind):
        yield from module.children()


def _wrap(layer: nn.Module, options: dict[str, Any]) -> None:
    """Makes the layer's `forward` run under torch's `checkpoint` in training.

    The attribute `forward` is replaced, because a wrapper module would change the names in the state dict.
    """
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
