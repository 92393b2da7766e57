"""Hugging Face's loss functions by name, and the loss that a model's class name implies.

Each loss exists twice. A function with Hugging Face's name returns a mean, or with `num_items_in_batch` a share of an
accumulation window; models call it. A `Family` returns a sum and a count, which the Trainer uses if a model returns
logits and no loss.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor, nn
from torch.nn import functional

from footplate.trainer.losses.detection import ForObjectDetectionLoss, ForSegmentationLoss
from footplate.trainer.losses.labels import IGNORE
from footplate.trainer.losses.loss import Loss, classification, cross_entropy_sum, logits_of, regression, shifted


def fixed_cross_entropy(
    source: Tensor,
    target: Tensor,
    num_items_in_batch: Tensor | int | None = None,
    ignore_index: int = IGNORE,
    **kwargs: Any,
) -> Tensor:
    """Returns the mean, or the sum divided by `num_items_in_batch`."""
    if num_items_in_batch is None:
        return functional.cross_entropy(source, target, ignore_index=ignore_index)
    total = functional.cross_entropy(source, target, ignore_index=ignore_index, reduction="sum")
    if isinstance(num_items_in_batch, Tensor):
        num_items_in_batch = num_items_in_batch.to(total.device)
    return total / num_items_in_batch


def ForCausalLMLoss(
    logits: Tensor,
    labels: Tensor,
    vocab_size: int,
    num_items_in_batch: Tensor | int | None = None,
    ignore_index: int = IGNORE,
    shift_labels: Tensor | None = None,
    **kwargs: Any,
) -> Tensor:
    """Each position predicts the next token. `shift_labels` are labels that are already shifted."""
    if shift_labels is None:
        shift_labels = functional.pad(labels, (0, 1), value=ignore_index)[..., 1:].contiguous()
    target = shift_labels.view(-1).to(logits.device)
    return fixed_cross_entropy(logits.float().view(-1, vocab_size), target, num_items_in_batch, ignore_index)


def ForMaskedLMLoss(
    logits: Tensor,
    labels: Tensor,
    vocab_size: int,
    num_items_in_batch: Tensor | int | None = None,
    ignore_index: int = IGNORE,
    **kwargs: Any,
) -> Tensor:
    """Each position predicts its own token."""
    target = labels.view(-1).to(logits.device)
    return fixed_cross_entropy(logits.float().view(-1, vocab_size), target, num_items_in_batch, ignore_index)


def ForSequenceClassificationLoss(labels: Tensor, pooled_logits: Tensor, config: Any, **kwargs: Any) -> Tensor:
    """Regression, single-label or multi-label classification, as the config or else the labels' dtype says."""
    if config.problem_type is None:
        config.problem_type = problem_type(labels, config.num_labels)
    labels = labels.to(pooled_logits.device)
    if config.problem_type == "regression":
        is_single = config.num_labels == 1
        return functional.mse_loss(
            pooled_logits.squeeze() if is_single else pooled_logits, labels.squeeze() if is_single else labels
        )
    if config.problem_type == "single_label_classification":
        return fixed_cross_entropy(pooled_logits.view(-1, config.num_labels), labels.view(-1), **kwargs)
    if config.problem_type == "multi_label_classification":
        return functional.binary_cross_entropy_with_logits(pooled_logits, labels)
    raise RuntimeError(f"Invalid problem type: {config.problem_type}. Known: {', '.join(PROBLEM_TYPES)}")


PROBLEM_TYPES = ("regression", "single_label_classification", "multi_label_classification")


def problem_type(labels: Tensor, classes: int) -> str:
    if classes == 1:
        return "regression"
    return "multi_label_classification" if labels.is_floating_point() else "single_label_classification"


def ForQuestionAnsweringLoss(
    start_logits: Tensor, end_logits: Tensor, start_positions: Tensor, end_positions: Tensor, **kwargs: Any
) -> Tensor | None:
    """Averages the losses of the answers' start and end positions. Positions outside of the text do not count."""
    if start_positions is None or end_positions is None:
        return None
    outside = start_logits.size(1)
    start = fixed_cross_entropy(start_logits, _inside(start_positions, outside), ignore_index=outside, **kwargs)
    end = fixed_cross_entropy(end_logits, _inside(end_positions, outside), ignore_index=outside, **kwargs)
    return (start + end) / 2


def _inside(positions: Tensor, outside: int) -> Tensor:
    flat = positions.squeeze(-1) if positions.dim() > 1 else positions
    return flat.clamp(0, outside)


def ForTokenClassification(logits: Tensor, labels: Tensor, config: Any, **kwargs: Any) -> Tensor:
    """Token classification predicts a class for each token."""
    target = labels.view(-1).to(logits.device)
    return fixed_cross_entropy(logits.view(-1, config.num_labels).float(), target, **kwargs)


def ForSemanticSegmentationLoss(
    logits: Tensor,
    labels: Tensor,
    ignore_index: int = 255,
    num_items_in_batch: Tensor | int | None = None,
    auxiliary_logits: Tensor | None = None,
    auxiliary_loss_weight: float = 0.4,
    **kwargs: Any,
) -> Tensor:
    """Predicts a class for each pixel, after the logits are scaled up to the labels' size."""
    loss = fixed_cross_entropy(_at_size(logits, labels), labels, num_items_in_batch, ignore_index)
    if auxiliary_logits is not None:
        auxiliary = fixed_cross_entropy(_at_size(auxiliary_logits, labels), labels, num_items_in_batch, ignore_index)
        loss = loss + auxiliary_loss_weight * auxiliary
    return loss


def _at_size(logits: Tensor, labels: Tensor) -> Tensor:
    return functional.interpolate(logits, size=labels.shape[-2:], mode="bilinear", align_corners=False)


LOSS_MAPPING: dict[str, Callable[..., Any]] = {
    "ForSemanticSegmentation": ForSemanticSegmentationLoss,
    "ForCausalLM": ForCausalLMLoss,
    "ForMaskedLM": ForMaskedLMLoss,
    "ForQuestionAnswering": ForQuestionAnsweringLoss,
    "ForSequenceClassification": ForSequenceClassificationLoss,
    "ForImageClassification": ForSequenceClassificationLoss,
    "ForVideoClassification": ForSequenceClassificationLoss,
    "ForAudioClassification": ForSequenceClassificationLoss,
    "ForTokenClassification": ForTokenClassification,
    "ForSegmentation": ForSegmentationLoss,
    "ForObjectDetection": ForObjectDetectionLoss,
    "ForConditionalGeneration": ForCausalLMLoss,
}
"""The functions as models call them. Hugging Face's other losses belong to one architecture, which brings its own."""


@dataclass(frozen=True, slots=True)
class Family:
    """A loss computed from a model's outputs and inputs, for models that return none."""

    name: str
    make: Callable[[Any, Mapping[str, Any], Any], Loss]
    """Computes the loss from the outputs, the inputs and the model's config."""
    labels: tuple[str, ...] = ("labels",)
    """The inputs that the loss needs."""
    sums: bool = True
    """False for a loss that is a mean and has no count. Micro-batches are then averaged."""
    ignore: int = IGNORE
    """The label that does not count."""
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
    """Chooses the loss. An encoder-decoder shifts its own inputs, so each label is predicted at its position."""
    made = _each_place if getattr(config, "is_encoder_decoder", False) else _next_token
    return made(outputs, inputs, config)


def _each_sample(outputs: Any, inputs: Mapping[str, Any], config: Any) -> Loss:
    logits, labels = logits_of(outputs), inputs["labels"]
    kind = getattr(config, "problem_type", None) or problem_type(labels, logits.shape[-1])
    if kind == "regression":
        return regression(logits, labels)
    if kind == "single_label_classification":
        return classification(logits, labels)
    total = functional.binary_cross_entropy_with_logits(logits, labels.to(logits.dtype), reduction="sum")
    return Loss(total, labels.numel())


def _answers(outputs: Any, inputs: Mapping[str, Any], config: Any) -> Loss:
    """Returns the mean of the start and end losses, counted over answers inside of the text."""
    start, end = (_borders(outputs, inputs, side) for side in ("start", "end"))
    return Loss((start.total + end.total) / 2, (start.count + end.count) / 2)


def _borders(outputs: Any, inputs: Mapping[str, Any], side: str) -> Loss:
    logits = _output(outputs, f"{side}_logits")
    outside = logits.size(1)
    return cross_entropy_sum(logits, _inside(inputs[f"{side}_positions"], outside), outside)


def _each_pixel(outputs: Any, inputs: Mapping[str, Any], config: Any) -> Loss:
    labels = inputs["labels"]
    return cross_entropy_sum(_at_size(logits_of(outputs), labels).float(), labels.long(), _ignored_pixels(config))


def _objects(outputs: Any, inputs: Mapping[str, Any], config: Any) -> Loss:
    logits, boxes = logits_of(outputs), _output(outputs, "pred_boxes")
    return Loss(ForObjectDetectionLoss(logits, inputs["labels"], logits.device, boxes, config)[0], 1)


def _segments(outputs: Any, inputs: Mapping[str, Any], config: Any) -> Loss:
    logits, boxes, masks = logits_of(outputs), _output(outputs, "pred_boxes"), _output(outputs, "pred_masks")
    return Loss(ForSegmentationLoss(logits, inputs["labels"], logits.device, boxes, masks, config)[0], 1)


def _output(outputs: Any, name: str) -> Tensor:
    output: Tensor | None = outputs.get(name) if isinstance(outputs, Mapping) else getattr(outputs, name, None)
    if output is None:
        raise ValueError(f"the model returned no {name}, from which the loss of its class name is computed")
    return output


def _ignored_pixels(config: Any) -> int:
    return int(getattr(config, "semantic_loss_ignore_index", 255))


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
    Family("ForObjectDetection", _objects, sums=False),
    Family("ForSegmentation", _segments, sums=False),
)
FAMILIES = {family.name: family for family in _FAMILIES}
"""The losses by the part of a class name that selects them."""


def family_of(model: nn.Module) -> Family | None:
    """Returns the loss that the model's `loss_type` or class name selects. None means: choose by the labels."""
    loss_type, class_name = getattr(model, "loss_type", None), type(model).__name__
    name = (
        loss_type
        if isinstance(loss_type, str) and loss_type in FAMILIES
        else next((n for n in FAMILIES if n in class_name), None)
    )
    if name is None:
        return None
    config = getattr(model, "config", None)
    ignore = _ignored_pixels(config) if name == "ForSemanticSegmentation" else IGNORE
    return replace(FAMILIES[name], config=config, ignore=ignore)
