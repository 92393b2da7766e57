"""What the Trainer has to know of a model before it can feed it: read from its class and signature, once."""

from __future__ import annotations

import inspect
from dataclasses import dataclass

from torch import nn

from footplate.trainer import adapters
from footplate.trainer.losses import Family, family_of, shifts_labels

_SHIFTING_LOSSES = frozenset({"ForCausalLM", "ForConditionalGeneration", "CsmForConditionalGeneration"})
"""The reference's kinds of loss in which the logits at one place are about the label at the next."""


@dataclass(frozen=True, slots=True)
class Anatomy:
    arguments: tuple[str, ...]
    """The names that `forward` takes."""
    is_open: bool
    """`forward` ends with `**kwargs`."""
    takes_labels: bool
    labels: tuple[str, ...]
    """The arguments that are labels, as their names say."""
    shifts_labels: bool
    """The logits at one place are about the label at the next."""
    counts_shifted: bool
    """So the first label of a row is not counted. The reference knows that of some of its models only, and divides by
    what it counts: so do we, or its curve would be another."""
    takes_loss_arguments: bool
    """`forward` wants to know `num_items_in_batch`, and then scales its loss for the whole window of micro-batches."""
    can_return_loss: bool
    """A loss comes without labels: `return_loss` is on by default."""
    family: Family | None
    """Which loss its logits are about, where its class name says so."""
    main_input: str
    """Whose elements are tokens."""

    @property
    def takes_anything(self) -> bool:
        """`forward(**batch)` names nothing it wants; `forward(x, **kwargs)` does, and the rest may be left out."""
        return self.is_open and not self.arguments

    @property
    def first_argument(self) -> str:
        return self.arguments[0] if self.arguments else "x"

    @classmethod
    def of(cls, model: nn.Module) -> Anatomy:
        whole = adapters.without(model)
        parameters = inspect.signature(whole.forward).parameters
        names = tuple(
            name for name, each in parameters.items() if each.kind not in (each.VAR_KEYWORD, each.VAR_POSITIONAL)
        )
        is_open = any(each.kind is each.VAR_KEYWORD for each in parameters.values())
        return cls(
            arguments=names,
            is_open=is_open,
            takes_labels="labels" in names or is_open,
            labels=tuple(_labels(type(whole).__name__, names)),
            shifts_labels=shifts_labels(whole) or _has_shifting_loss(whole),
            counts_shifted=_has_shifting_loss(whole) if hasattr(whole, "loss_type") else shifts_labels(whole),
            # The reference takes every `**kwargs` for a promise to scale. A plain module that ignores what it is
            # handed then trains on a loss that is too large by the accumulation: only who has a loss function promises.
            takes_loss_arguments=bool(
                getattr(
                    whole,
                    "accepts_loss_kwargs",
                    "num_items_in_batch" in names or (is_open and _has_loss_function(whole)),
                )
            ),
            can_return_loss="return_loss" in parameters and parameters["return_loss"].default is True,
            family=family_of(whole),
            main_input=str(getattr(whole, "main_input_name", "input_ids")),
        )


def _labels(class_name: str, names: tuple[str, ...]) -> list[str]:
    spans = ("start_positions", "end_positions") if "QuestionAnswering" in class_name else ()
    return [name for name in names if "label" in name or name in spans]


def _has_shifting_loss(model: nn.Module) -> bool:
    # An encoder-decoder is fed its labels shifted: every one of them is predicted.
    is_fed_shifted = getattr(getattr(model, "config", None), "is_encoder_decoder", False)
    return getattr(model, "loss_type", None) in _SHIFTING_LOSSES and not is_fed_shifted


def _has_loss_function(model: nn.Module) -> bool:
    return hasattr(type(model), "loss_function") or hasattr(model, "loss_function")
