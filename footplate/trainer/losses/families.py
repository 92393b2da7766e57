"""Losses that are chosen by the model's class name, such as ForCausalLM, if the model returns logits and no loss.

Each loss is a sum and a count, and its mean is Hugging Face's. Losses of boxes and masks are computed by transformers.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from torch import Tensor, nn
from torch.nn import functional

from footplate.trainer.losses.loss import Loss, classification, cross_entropy_sum, logits_of, regression, shifted


@dataclass(frozen=True, slots=True)
class Family:
    """The loss of the models whose class name contains `name`, computed from a model's outputs and inputs."""

    name: str
    make: Callable[[Any, Mapping[str, Any], Any], Loss]
    """Computes the loss from the outputs, the inputs and the model's config."""
    labels: tuple[str, ...] = ("labels",)
    """The inputs that the loss needs."""
    sums: bool = True
    """False for a loss that is a mean and has no count. Micro-batches are then averaged."""
    config: Any = None

    def has_labels(self, inputs: Mapping[str, Any]) -> bool:
        return all(inputs.get(name) is not None for name in self.labels)

    def loss(self, outputs: Any, inputs: Mapping[str, Any]) -> Loss:
        return self.make(outputs, inputs, self.config)


def _next_token(outputs: Any, inputs: Mapping[str, Any], config: Any) -> Loss:
    return classification(*shifted(logits_of(outputs), inputs["labels"]))


def _each_place(outputs: Any, inputs: Mapping[str, Any], config: Any) -> Loss:
    return classification(logits_of(outputs), inputs["labels"])


def _generated(outputs: Any, inputs: Mapping[str, Any], config: Any) -> Loss:
    """The loss of generated tokens. An encoder-decoder shifts its inputs itself, so its labels are not shifted."""
    token_loss = _each_place if getattr(config, "is_encoder_decoder", False) else _next_token
    return token_loss(outputs, inputs, config)


def _each_sample(outputs: Any, inputs: Mapping[str, Any], config: Any) -> Loss:
    logits, labels = logits_of(outputs), inputs["labels"]
    kind = getattr(config, "problem_type", None)
    if kind == "regression" or (kind is None and logits.shape[-1] == 1):
        return regression(logits, labels)
    if kind == "single_label_classification" or (kind is None and not labels.is_floating_point()):
        return classification(logits, labels)
    total = functional.binary_cross_entropy_with_logits(logits, labels.to(logits.dtype), reduction="sum")
    return Loss(total, labels.numel())


def _answers(outputs: Any, inputs: Mapping[str, Any], config: Any) -> Loss:
    """Returns the mean of the losses of an answer's start and end. Answers outside of the text are ignored."""
    losses = []
    for side in ("start", "end"):
        logits, positions = _output(outputs, f"{side}_logits"), inputs[f"{side}_positions"]
        outside = logits.size(1)
        flat = positions.squeeze(-1) if positions.dim() > 1 else positions
        losses.append(cross_entropy_sum(logits, flat.clamp(0, outside), outside))
    start, end = losses
    return Loss((start.total + end.total) / 2, (start.count + end.count) / 2)


def _each_pixel(outputs: Any, inputs: Mapping[str, Any], config: Any) -> Loss:
    """Computes the loss of each pixel, after the logits are scaled up to the labels' size."""
    labels = inputs["labels"]
    logits = functional.interpolate(logits_of(outputs), size=labels.shape[-2:], mode="bilinear", align_corners=False)
    return cross_entropy_sum(logits.float(), labels.long(), int(getattr(config, "semantic_loss_ignore_index", 255)))


def _detection(name: str, *predictions: str) -> Callable[[Any, Mapping[str, Any], Any], Loss]:
    """Returns a loss of transformers over the model's outputs `predictions`."""

    def loss(outputs: Any, inputs: Mapping[str, Any], config: Any) -> Loss:
        logits, boxes_and_masks = logits_of(outputs), [_output(outputs, prediction) for prediction in predictions]
        settings = copy.copy(config)
        settings.auxiliary_loss = False  # needs every decoder layer's outputs, which only the model has
        return Loss(_of_transformers(name)(logits, inputs["labels"], logits.device, *boxes_and_masks, settings)[0], 1)

    return loss


@functools.cache
def _of_transformers(name: str) -> Callable[..., Any]:
    """Returns a loss of transformers for boxes or masks, which matches targets to predictions with SciPy."""
    missing = [package for package in ("transformers", "scipy", "PIL") if find_spec(package) is None]
    if missing:
        raise ImportError(f"the loss of boxes and masks needs {', '.join(missing)}: pip install 'footplate[detection]'")
    return getattr(import_module("transformers.loss.loss_for_object_detection"), name)  # type: ignore[no-any-return]


def _output(outputs: Any, name: str) -> Tensor:
    output: Tensor | None = outputs.get(name) if isinstance(outputs, Mapping) else getattr(outputs, name, None)
    if output is None:
        raise ValueError(
            f"the model returned no {name}, which the loss that its class name selects needs: return {name}, or a loss"
        )
    return output


_FAMILIES = (
    Family("ForCausalLM", _next_token),
    Family("LMHeadModel", _next_token),
    Family("ForMaskedLM", _each_place),
    Family("ForTokenClassification", _each_place),
    Family("ForConditionalGeneration", _generated),
    Family("ForQuestionAnswering", _answers, ("start_positions", "end_positions")),
    Family("ForSequenceClassification", _each_sample),
    Family("ForImageClassification", _each_sample),
    Family("ForVideoClassification", _each_sample),
    Family("ForAudioClassification", _each_sample),
    Family("ForSemanticSegmentation", _each_pixel),
    Family("ForObjectDetection", _detection("ForObjectDetectionLoss", "pred_boxes"), sums=False),
    Family("ForSegmentation", _detection("ForSegmentationLoss", "pred_boxes", "pred_masks"), sums=False),
)
FAMILIES = {family.name: family for family in _FAMILIES}
"""The losses by the text in a class name that selects them."""


def family_of(model: nn.Module) -> Family | None:
    """Returns the loss that the model's `loss_type` or class name selects, or None if neither selects a loss."""
    loss_type, class_name = getattr(model, "loss_type", None), type(model).__name__
    name = (
        loss_type
        if isinstance(loss_type, str) and loss_type in FAMILIES
        else next((n for n in FAMILIES if n in class_name), None)
    )
    if name is None:
        return None
    return replace(FAMILIES[name], config=getattr(model, "config", None))
