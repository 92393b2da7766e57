"""Describes errors of the user's own code: the place in the user's files, the traceback from there on, and a hint."""

from __future__ import annotations

import traceback
from collections.abc import Iterator, Mapping
from itertools import islice
from types import FrameType
from typing import Any

from torch import Tensor, nn

from footplate.contract.errors import FootplateError
from footplate.contract.events import Failure
from footplate.runtime import own_code
from footplate.trainer.batch_errors import is_misfit, shapes_of

MESSAGE_CHARS = 2000
MOST_TENSORS = 8


def described(error: BaseException, failure: Failure) -> Failure:
    """Adds the place in the bundle, a hint and a traceback to the failure, if code of the bundle led to the error."""
    if isinstance(error, FootplateError) or not list(_users_frames(error)):
        return failure
    hint = failure.hint or _hint(error)
    return failure.model_copy(
        update={
            "message": own_code.placed(error, failure.message)[:MESSAGE_CHARS],
            "hint": hint,
            # The hint is often also the last note of the exception. It is removed, because the failure has it already.
            "traceback": own_code.trace_of(error).removesuffix(f"{hint}\n"),
        }
    )


def _users_frames(error: BaseException) -> Iterator[FrameType]:
    return (frame for frame, _ in traceback.walk_tb(error.__traceback__) if own_code.is_own(frame.f_code.co_filename))


def _hint(error: BaseException) -> str | None:
    if isinstance(error, ModuleNotFoundError):
        return own_code.missing_module(error)
    if not is_misfit(error) or "state_dict" in str(error):
        return None
    facts = list(_shapes(error))
    return "; ".join(facts) + ". Change the size of the layer, or the shape of what it gets" if facts else None


def _shapes(error: BaseException) -> Iterator[str]:
    """Yields the shapes of the tensors in the user's deepest function, and the innermost layer with its input."""
    *_, users = _users_frames(error)
    if tensors := dict(islice(_tensors(users.f_locals), MOST_TENSORS)):
        name = users.f_code.co_name
        yield f"{'the script' if name == '<module>' else name} has {shapes_of(tensors)}"
    for frame, _ in reversed(list(traceback.walk_tb(error.__traceback__))):
        layer, layer_input = frame.f_locals.get("self"), frame.f_locals.get("input")
        if isinstance(layer, nn.Module) and isinstance(layer_input, Tensor):
            yield f"{type(layer).__name__}({layer.extra_repr()}) got {tuple(layer_input.shape)} {layer_input.dtype}"
            return


def _tensors(variables: Mapping[str, Any]) -> Iterator[tuple[str, Tensor]]:
    """Yields the tensors among a function's variables, and those of its dicts, such as a batch."""
    for name, value in list(variables.items()):
        if isinstance(value, Tensor):
            yield name, value
        elif isinstance(value, dict) and not name.startswith("__"):
            yield from ((f"{name}[{key!r}]", entry) for key, entry in value.items() if isinstance(entry, Tensor))
