"""Collects parameters in lists for torch's foreach operations, which are faster than a loop in Python."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import Tensor


def with_gradients(group: dict[str, Any], optimizer: str) -> Iterator[tuple[list[Tensor], list[Tensor]]]:
    """Yields lists of parameters and of their gradients, one pair per device and dtype."""
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
