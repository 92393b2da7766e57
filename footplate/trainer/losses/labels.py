"""Checks labels on the host, because a label out of range kills a GPU process with an assert that names nothing.

The first batch is checked before the first step, if the model's number of classes is known. After an error, the batches
of the failed step are checked.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor, nn

from footplate.contract.errors import DatasetError

IGNORE = -100
"""The label of positions that losses and metrics leave out, such as padding."""

_CLASSES = ("SequenceClassification", "ImageClassification", "AudioClassification", "VideoClassification")
_PER_PLACE = ("TokenClassification", "SemanticSegmentation")
_WORDS = ("CausalLM", "LMHeadModel", "MaskedLM", "ConditionalGeneration", "PreTraining")


def bad_label(name: str, labels: Any, classes: int, ignore: int = IGNORE) -> DatasetError | None:
    """Returns an error for the first label that is neither a class nor ignored by the loss, or None."""
    outside = _first_outside(labels, classes, ignore)
    if outside is None:
        return None
    value, at = outside
    place = f"sample {at[0]}" if len(at) == 1 else f"place {list(at)}"
    hint = f"the loss ignores labels that are {ignore}"
    if value >= 0:
        advice = f"give the model {value + 1} classes or more (num_labels or out_features in a spec's model.args)"
        hint = f"{advice}, or number the classes from 0 by the map labels; {hint}"
    text = f"{name} has {value} at {place} of the batch, and the model has the classes 0 to {classes - 1}"
    return DatasetError(text, hint=hint)


def _first_outside(numbers: Any, classes: int, ignore: int = IGNORE) -> tuple[int, tuple[int, ...]] | None:
    """Returns the first number that is not below `classes`, and its index."""
    if not isinstance(numbers, Tensor) or numbers.is_floating_point() or numbers.is_complex():
        return None
    places = (numbers.ne(ignore) & (numbers.lt(0) | numbers.ge(classes))).nonzero()
    if not len(places):
        return None
    at = tuple(int(index) for index in places[0])
    return int(numbers[at]), at


def classes_of(model: nn.Module) -> int | None:
    """Returns the model's number of classes, or None if it is unknown or the labels are not classes."""
    config, class_name = getattr(model, "config", None), type(model).__name__
    count: Any = None
    if any(name in class_name for name in _CLASSES):
        is_single_label = getattr(config, "problem_type", None) in (None, "single_label_classification")
        count = getattr(config, "num_labels", None) if is_single_label else None
        count = None if count == 1 else count
    elif any(name in class_name for name in _PER_PLACE):
        count = getattr(config, "num_labels", None)
    elif any(name in class_name for name in _WORDS):
        count = getattr(config, "vocab_size", None)
    return count if isinstance(count, int) else None


def ignored_by(model: nn.Module) -> int:
    """Returns the label that the model's loss leaves out. Segmentation models set another one in their config."""
    if "SemanticSegmentation" in type(model).__name__:
        return int(getattr(getattr(model, "config", None), "semantic_loss_ignore_index", 255))
    return IGNORE


def require_labels(batch: Mapping[str, Any], model: nn.Module, names: Sequence[str] = ()) -> None:
    """Raises DatasetError for the first label of a batch that is not a class of the model. The batch is on the host.

    `names` are the keys of the batch's labels. Without names, the key is `labels`.
    """
    classes = classes_of(model)
    if classes is not None:
        for name in names or ("labels",):
            if error := bad_label(name, batch.get(name), classes, ignored_by(model)):
                raise error


def explain(
    error: BaseException, batches: Sequence[Mapping[str, Any]], model: nn.Module, names: Sequence[str] = ()
) -> Exception | None:
    """Returns a clearer error for a failed step if one of its labels or tokens is out of range, else None.

    If the model does not name its classes, the width of its last linear layer is their number.
    """
    text = str(error)
    if "does not require grad" in text:
        return ValueError(
            "the loss does not depend on any parameter that is trained: a tensor between them is detached or computed "
            "under no_grad, or all parameters are frozen"
        )
    if not isinstance(error, IndexError) and not any(phrase in text for phrase in _RANGE_ERRORS):
        return None
    for batch in batches:
        if (misfit := _unfit_tokens(batch.get("input_ids"), model)) is not None:
            return misfit
    widths = [module.out_features for module in model.modules() if isinstance(module, nn.Linear)]
    classes = classes_of(model) or (widths[-1] if widths else None)
    if classes is None:
        return None
    for batch in batches:
        for name in names or ("labels",):
            if misfit := bad_label(name, batch.get(name), classes, ignored_by(model)):
                return misfit
    return None


_RANGE_ERRORS = ("assert", "out of bounds", "expanded size", "must match the size")


def _unfit_tokens(tokens: Any, model: nn.Module) -> DatasetError | None:
    """Returns an error for tokens that exceed the model's number of positions or its vocabulary."""
    if not isinstance(tokens, Tensor) or tokens.is_floating_point() or tokens.dim() < 2:
        return None
    places = getattr(getattr(model, "config", None), "max_position_embeddings", None)
    if isinstance(places, int) and tokens.shape[-1] > places:
        text = f"a sample has {tokens.shape[-1]} tokens, and the model has positions for {places}"
        hint = f"cut them where they are tokenized: max_length {places} or less in the map tokenize"
        return DatasetError(text, hint=hint)
    find = getattr(model, "get_input_embeddings", None)
    vectors = getattr(find() if find else None, "num_embeddings", None)
    outside = None if vectors is None else _first_outside(tokens, vectors)
    if outside is None:
        return None
    value, at = outside
    text = f"input_ids has {value} at place {list(at)}, and the model has an embedding for {vectors} tokens"
    return DatasetError(text, hint="use the tokenizer that belongs to the model, or give the model a larger vocab_size")
