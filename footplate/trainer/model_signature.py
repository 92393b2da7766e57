"""The arguments, labels and loss of a model, read once from its class and from the signature of its `forward`."""

from __future__ import annotations

import inspect
from dataclasses import dataclass

from torch import nn

from footplate.trainer import adapters
from footplate.trainer.losses.families import Family, family_of
from footplate.trainer.losses.loss import shifts_labels

_SHIFTING_LOSSES = frozenset({"ForCausalLM", "ForConditionalGeneration", "CsmForConditionalGeneration"})
"""Hugging Face's types of loss for models whose logits at one position predict the next token."""


@dataclass(frozen=True, slots=True)
class ModelSignature:
    arguments: tuple[str, ...]
    """The argument names of `forward`."""
    is_open: bool
    """True if `forward` ends with `**kwargs`."""
    takes_labels: bool
    labels: tuple[str, ...]
    """The names of those arguments that are labels."""
    shifts_labels: bool
    """True if the logits at one position predict the label at the next."""
    counts_shifted: bool
    """True if the first label of a row, which no logits predict, is not counted. Hugging Face leaves it out for some
    models only. The Trainer counts in the same way, so that loss curves are equal."""
    takes_loss_arguments: bool
    """True if `forward` takes `num_items_in_batch`, and then scales its loss for the whole accumulation window."""
    can_return_loss: bool
    """True if the model returns a loss without labels, because its `return_loss` is True by default."""
    family: Family | None
    """The loss that the class name implies, or None."""
    main_input: str
    """The input whose elements are counted as tokens."""

    @classmethod
    def of(cls, model: nn.Module) -> ModelSignature:
        base = adapters.base_model(model)
        parameters = inspect.signature(base.forward).parameters
        names = tuple(
            name
            for name, parameter in parameters.items()
            if parameter.kind not in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL)
        )
        spans = ("start_positions", "end_positions") if "QuestionAnswering" in type(base).__name__ else ()
        is_open = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
        return cls(
            arguments=names,
            is_open=is_open,
            takes_labels="labels" in names or is_open,
            labels=tuple(name for name in names if "label" in name or name in spans),
            shifts_labels=shifts_labels(base) or _has_shifting_loss(base),
            counts_shifted=_has_shifting_loss(base) if hasattr(base, "loss_type") else shifts_labels(base),
            # Hugging Face takes every `**kwargs` as support for scaling. A plain module that ignores the number would
            # then train on a loss that is too large. So only a model with a loss function counts as supporting it.
            takes_loss_arguments=bool(
                getattr(
                    base,
                    "accepts_loss_kwargs",
                    "num_items_in_batch" in names
                    or (is_open and (hasattr(type(base), "loss_function") or hasattr(base, "loss_function"))),
                )
            ),
            can_return_loss="return_loss" in parameters and parameters["return_loss"].default is True,
            family=family_of(base),
            main_input=str(getattr(base, "main_input_name", "input_ids")),
        )


def _has_shifting_loss(model: nn.Module) -> bool:
    # An encoder-decoder shifts its inputs, so it predicts every label.
    shifts_inputs = getattr(getattr(model, "config", None), "is_encoder_decoder", False)
    return getattr(model, "loss_type", None) in _SHIFTING_LOSSES and not shifts_inputs
