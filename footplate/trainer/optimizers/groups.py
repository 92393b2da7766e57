"""Splits parameters into two groups, with and without weight decay, and makes an optimizer over them."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

_NO_DECAY = (r"bias", r"layernorm", r"rmsnorm", r"(?:^|\.)norm(?:$|\.)", r"_norm(?:$|\.)")


def rate_of(optimizer: Optimizer) -> Any:
    """Returns the first group's learning rate. A tensor is copied, because schedules change it in place."""
    rate = optimizer.param_groups[0]["lr"]
    return rate.clone() if isinstance(rate, Tensor) else rate


def decay_parameter_names(model: nn.Module) -> list[str]:
    """Returns the names of parameters that decay: weights, but not biases and norms."""
    return get_parameter_names(model, [nn.LayerNorm], _NO_DECAY)


def get_parameter_names(
    model: nn.Module,
    forbidden_layer_types: Sequence[type[nn.Module]],
    forbidden_layer_names: Iterable[str] | None = None,
) -> list[str]:
    """Returns the names of parameters outside of the forbidden layers. A pattern is searched in the lower-case name."""
    kinds = tuple(forbidden_layer_types)
    patterns = [re.compile(pattern) for pattern in forbidden_layer_names or ()]
    forbidden = {name for name, module in model.named_modules() if name and isinstance(module, kinds)}
    return [
        name
        for name, _ in _all_parameters(model)
        if not any(name.startswith(f"{layer}.") for layer in forbidden)
        and not any(pattern.search(name.lower()) for pattern in patterns)
    ]


def _all_parameters(model: nn.Module, prefix: str = "") -> Iterable[tuple[str, nn.Parameter | None]]:
    """Yields all parameters, innermost first. A tied weight appears under each of its names."""
    for name, child in model.named_children():
        yield from _all_parameters(child, f"{prefix}{name}.")
    for name, value in model._parameters.items():
        yield f"{prefix}{name}", value


def parameter_groups(model: nn.Module, decay: Collection[str], weight_decay: float) -> list[dict[str, Any]]:
    names = set(decay)
    trainable = [(name, value) for name, value in model.named_parameters() if value.requires_grad]
    return [
        {"params": [value for name, value in trainable if name in names], "weight_decay": weight_decay},
        {"params": [value for name, value in trainable if name not in names], "weight_decay": 0.0},
    ]


def with_gradients(group: dict[str, Any], optimizer: str) -> Iterator[tuple[list[Tensor], list[Tensor]]]:
    """Yields parameters and their gradients as lists for torch's foreach operations, one pair per device and dtype."""
    lists: dict[Any, tuple[list[Tensor], list[Tensor]]] = {}
    for parameter in group["params"]:
        if parameter.grad is None:
            continue
        if parameter.grad.is_sparse:
            raise RuntimeError(f"{optimizer} does not support sparse gradients: make the embedding with sparse=False")
        parameters, gradients = lists.setdefault((parameter.device, parameter.dtype), ([], []))
        parameters.append(parameter)
        gradients.append(parameter.grad)
    yield from lists.values()


def make_optimizer(
    optimizer_class: type[Optimizer] | Callable[[], Callable[..., Any]],
    kwargs: dict[str, Any],
    model: nn.Module,
    decay: Collection[str],
    weight_decay: float,
) -> Any:
    """Makes an optimizer from its class with parameter groups, or from a factory that receives the model.

    `params`, `model` or `optimizer_dict` in `kwargs` replaces the groups, because some classes need the model itself.
    """
    if is_optimizer_factory(optimizer_class):
        return optimizer_class()(model, **kwargs)  # type: ignore[call-arg,operator]
    kwargs = dict(kwargs)
    default_groups = parameter_groups(model, decay, weight_decay)
    groups: Any = default_groups
    for name in ("params", "model", "optimizer_dict"):
        groups = kwargs.pop(name, groups)
    if groups is default_groups and not any(group["params"] for group in default_groups):
        raise ValueError(
            f"no parameter of the model, a {type(model).__name__}, requires a gradient, so that nothing would be "
            "trained: unfreeze parameters with requires_grad_(), or add an adapter to the model"
        )
    optimizer = optimizer_class(groups, **kwargs)  # type: ignore[call-arg]
    if kwargs.get("optim_bits") == 8 and "bitsandbytes" in optimizer_class.__module__:
        _keep_embedding_state_in_32_bits(model)
    return optimizer


def is_optimizer_factory(optimizer_cls_or_factory: Any) -> bool:
    """Returns True for anything but an optimizer's class, such as a function that makes several optimizers."""
    is_class = isinstance(optimizer_cls_or_factory, type)
    return not (is_class and issubclass(optimizer_cls_or_factory, Optimizer))


def _keep_embedding_state_in_32_bits(model: nn.Module) -> None:
    """Makes an 8-bit optimizer keep its state of embeddings in 32 bits.

    Most gradients of an embedding are zero and the rest are large, which 8 bits represent badly.
    """
    import bitsandbytes  # type: ignore[import-not-found,unused-ignore]

    manager = bitsandbytes.optim.GlobalOptimManager.get_instance()
    for module in model.modules():
        if isinstance(module, nn.Embedding):
            manager.register_module_override(module, "weight", {"optim_bits": 32})
