"""The losses that a class name stands for: `…ForTokenClassification` and its like, by the reference's names.

Each is there twice. The functions with the reference's names return a mean, or with `num_items_in_batch` a share of a
window, as models call them. A `Family` returns a sum and a count of a model's outputs and inputs: what the Trainer
takes where a model returns logits and no loss.
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
    """The mean, or the share of a window in which so many count."""
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
    """Each place predicts the next token. `shift_labels` are labels that somebody shifted already."""
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
    """Each place predicts its own token."""
    target = labels.view(-1).to(logits.device)
    return fixed_cross_entropy(logits.float().view(-1, vocab_size), target, num_items_in_batch, ignore_index)


def ForSequenceClassificationLoss(labels: Tensor, pooled_logits: Tensor, config: Any, **kwargs: Any) -> Tensor:
    """Regression, one class of many or several at once, as the config says or the labels' kind does."""
    if config.problem_type is None:
        config.problem_type = problem_type(labels, config.num_labels)
    labels = labels.to(pooled_logits.device)
    if config.problem_type == "regression":
        one = config.num_labels == 1
        return functional.mse_loss(
            pooled_logits.squeeze() if one else pooled_logits, labels.squeeze() if one else labels
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
    """The mean of where answers begin and where they end; what lies outside of the text does not count."""
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
    """A class for each token."""
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
    """A class for each pixel: logits are drawn up to the labels' size."""
    loss = fixed_cross_entropy(_at_size(logits, labels), labels, num_items_in_batch, ignore_index)
    if auxiliary_logits is not None:
        aside = fixed_cross_entropy(_at_size(auxiliary_logits, labels), labels, num_items_in_batch, ignore_index)
        loss = loss + auxiliary_loss_weight * aside
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
"""As models call them. The reference's further ones are about one architecture each, which brings its own."""


@dataclass(frozen=True, slots=True)
class Family:
    """The loss of a model's outputs and inputs, where the model made none."""

    name: str
    make: Callable[[Any, Mapping[str, Any], Any], Loss]
    """Of outputs, inputs and the model's config."""
    labels: tuple[str, ...] = ("labels",)
    """Which inputs it needs."""
    sums: bool = True
    """False: it is a mean that nobody can take apart, and micro-batches are averaged."""
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
    """An encoder-decoder is fed its labels shifted: every one of them is predicted where it stands."""
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
    """Beginnings and ends are one sum over as many as there are answers inside of the text."""
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
    found: Tensor | None = outputs.get(name) if isinstance(outputs, Mapping) else getattr(outputs, name, None)
    if found is None:
        raise ValueError(f"the model returned no {name}, which the loss that its class name asks for is made of")
    return found


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
"""By what stands in a class name."""


def family_of(model: nn.Module) -> Family | None:
    """What the model's `loss_type` or its class name says; None leaves it to the labels' kind and shape."""
    said, kind = getattr(model, "loss_type", None), type(model).__name__
    name = said if isinstance(said, str) and said in FAMILIES else next((n for n in FAMILIES if n in kind), None)
    if name is None:
        return None
    config = getattr(model, "config", None)
    ignore = _ignored_pixels(config) if name == "ForSemanticSegmentation" else IGNORE
    return replace(FAMILIES[name], config=config, ignore=ignore)
