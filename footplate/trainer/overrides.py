"""Detects which of the Trainer's methods a subclass, or a single object, overrides. No other module detects that.

A shortcut is a faster code path that does not call some methods of the Trainer. `left_out_by` marks these methods where
they are defined. A shortcut is used only if none of its methods is overridden.

Hugging Face's Trainer has methods that ours does not have. An override of such a method would never be called, and the
run would silently differ. So a class that overrides one of these methods is refused when the class is defined.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from enum import Enum, auto
from types import MappingProxyType
from typing import Any, TypeVar

from footplate.contract.errors import NotAvailableYet

Method = TypeVar("Method", bound=Callable[..., Any])


class Shortcut(Enum):
    TRAINING_STEP = auto()
    """The loop computes forward and backward of a micro-batch itself, and does not call `training_step`."""
    PREDICTION_STEP = auto()
    """An evaluation computes the forward of a batch itself, and does not call `prediction_step`."""
    PLAIN_SAVE = auto()
    """A checkpoint is written from a copy of the weights, without `save_model` and the other methods of saving."""
    COUNT_IN_ALL_PROCESSES = auto()
    """The labels of a step are counted and added up over all processes, without `get_batch_samples`."""
    KNOWN_METRICS = auto()
    """The names of an evaluation's metrics are known before training, because no method can add others."""


def left_out_by(*shortcuts: Shortcut) -> Callable[[Method], Method]:
    """Returns a decorator for a method of the Trainer that these shortcuts do not call."""

    def mark(method: Method) -> Method:
        method._left_out_by = frozenset(shortcuts)  # type: ignore[attr-defined]
        return method

    return mark


def methods_of(facade: type) -> Mapping[str, Any]:
    """Returns the Trainer class's methods and properties at the time when its module is imported.

    If a script assigns to the class later, that counts as an override.
    """
    methods = inspect.getmembers_static(
        facade, lambda item: callable(item) or isinstance(item, staticmethod | property)
    )
    return MappingProxyType({name: method for name, method in methods if not name.startswith("__")})


class Overrides:
    """The methods of one Trainer object that its class or the object itself overrides.

    Each check looks at the class again, because a script may patch a method after the object was made.
    """

    def __init__(self, trainer: object, methods: Mapping[str, Any]) -> None:
        self._trainer, self._methods = trainer, methods

    def __contains__(self, name: str) -> bool:
        """Returns True if the class or the object overrides the method of this name."""
        if name not in self._methods:
            raise KeyError(f"the Trainer has no method {name}")
        in_class = inspect.getattr_static(type(self._trainer), name)
        return in_class is not self._methods[name] or name in vars(self._trainer)

    def allow(self, shortcut: Shortcut) -> bool:
        return not self.against(shortcut)

    def against(self, shortcut: Shortcut) -> list[str]:
        """Returns the names of the overridden methods that the shortcut would not call."""
        return [
            name
            for name, method in self._methods.items()
            if shortcut in getattr(method, "_left_out_by", ()) and name in self
        ]


_LOOP = "training_step, get_batch_samples or a callback: the loop itself is in footplate/trainer/loop.py"
_FILES = "_save_checkpoint, _save and _load_from_checkpoint, or a callback with state"
_STRATEGY = "the arguments of the strategy: it wraps the model"

NEVER_CALLED = {
    "_tune_save_checkpoint": "search with optuna: Ray Tune is not supported",
    "_init_training_state": _LOOP,
    "_prepare_for_training": "create_optimizer, create_scheduler and create_accelerator_and_postprocess",
    "_run_epoch": _LOOP,
    "_finalize_training": "a callback's on_train_end",
    "_maybe_log_save_evaluate": "log, evaluate, _save_checkpoint, or a callback that sets the control",
    "_update_auto_batch_size": _LOOP,
    "_track_num_input_tokens": "include_num_input_tokens_seen, or a callback",
    "_clip_grad_norm": "a callback's on_pre_optimizer_step, with max_grad_norm=0",
    "_get_grad_norm": "a callback's on_pre_optimizer_step",
    "_mixed_mesh_grad_norm": _STRATEGY,
    "_has_mixed_mesh_grads": _STRATEGY,
    "_wrap_model": _STRATEGY,
    "_prepare_context_parallel_inputs": _STRATEGY,
    "_defer_fsdp_gradient_reduction": _STRATEGY,
    "_sync_replicated_trainable_parameters": _STRATEGY,
    "_move_model_to_device": _STRATEGY,
    "_save_rng_state": _FILES,
    "_save_optimizer_and_scheduler": _FILES,
    "_save_scaler": _FILES,
    "_load_rng_state": _FILES,
    "_load_scaler": _FILES,
    "_issue_warnings_after_load": _FILES,
}
"""Private methods of Hugging Face's Trainer that ours does not have, each with what to use instead."""


def refuse_overrides(subclass: type) -> None:
    """Raises NotAvailableYet if a subclass overrides a method that the Trainer never calls, or defines `_footplate`."""
    for kind in subclass.__mro__:
        if kind.__module__.startswith("footplate.trainer."):
            continue
        for name, instead in NEVER_CALLED.items():
            if name in vars(kind):
                raise NotAvailableYet(
                    f"{kind.__name__} overrides {name}, which this Trainer never calls", hint=f"instead: {instead}"
                )
        if "_footplate" in vars(kind):
            raise NotAvailableYet(
                f"{kind.__name__} defines a name that this Trainer uses for its own state: _footplate",
                hint="give it another name",
            )
