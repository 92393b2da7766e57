"""Parameters as lists, so that one call moves many: a step of a small model is otherwise mostly Python."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import Tensor


def with_gradients(group: dict[str, Any], optimizer: str) -> Iterator[tuple[list[Tensor], list[Tensor]]]:
    """(parameters, their gradients), one pair per device and kind of number."""
    found: dict[Any, tuple[list[Tensor], list[Tensor]]] = {}
    for each in group["params"]:
        if each.grad is None:
            continue
        if each.grad.is_sparse:
            raise RuntimeError(f"{optimizer} does not support sparse gradients: make the embedding with sparse=False")
        parameters, gradients = found.setdefault((each.device, each.dtype), ([], []))
        parameters.append(each)
        gradients.append(each.grad)
    yield from found.values()
