"""Labels that no class answers to. A GPU meets them with an assert that kills the process and names nothing.

So they are looked at on the host: in the first batch, before the first step, where the model says how many classes it
has; in the batches at hand, after something broke.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from footplate.contract.errors import DatasetError

IGNORE = -100
"""A label that does not count."""

_CLASSES = ("SequenceClassification", "ImageClassification", "AudioClassification", "VideoClassification")
_PER_PLACE = ("TokenClassification", "SemanticSegmentation")
_WORDS = ("CausalLM", "LMHeadModel", "MaskedLM", "ConditionalGeneration", "PreTraining")


@dataclass(frozen=True, slots=True)
class BadLabel:
    """One label out of range, and where it stands."""

    name: str
    value: int
    at: tuple[int, ...]
    classes: int
    ignore: int

    @classmethod
    def find(cls, name: str, labels: Any, classes: int, ignore: int = IGNORE) -> BadLabel | None:
        if not isinstance(labels, Tensor) or labels.is_floating_point() or labels.is_complex():
            return None
        bad = labels.ne(ignore) & (labels.lt(0) | labels.ge(classes))
        places = bad.nonzero()
        if not len(places):
            return None
        at = tuple(int(each) for each in places[0])
        return cls(name, int(labels[at]), at, classes, ignore)

    @classmethod
    def refuse(cls, name: str, labels: Any, classes: int, ignore: int = IGNORE) -> None:
        found = cls.find(name, labels, classes, ignore)
        if found is not None:
            raise DatasetError(str(found), hint=found.hint)

    def __str__(self) -> str:
        place = f"sample {self.at[0]}" if len(self.at) == 1 else f"place {list(self.at)}"
        return (
            f"{self.name} has {self.value} at {place} of the batch, and the model knows the classes 0 to "
            f"{self.classes - 1}: {self.hint}"
        )

    @property
    def hint(self) -> str:
        if self.value < 0:
            return f"what shall not count is {self.ignore}"
        more = f"give the model {self.value + 1} classes or more"
        return f"{more}, or correct the data; what shall not count is {self.ignore}"


def classes_of(model: nn.Module) -> int | None:
    """How many classes the model says it has; None where it does not, or where its labels are no classes."""
    config, kind = getattr(model, "config", None), type(model).__name__
    count: Any = None
    if any(each in kind for each in _CLASSES):
        whole = getattr(config, "problem_type", None) in (None, "single_label_classification")
        count = getattr(config, "num_labels", None) if whole else None
        count = None if count == 1 else count
    elif any(each in kind for each in _PER_PLACE):
        count = getattr(config, "num_labels", None)
    elif any(each in kind for each in _WORDS):
        count = getattr(config, "vocab_size", None)
    return count if isinstance(count, int) else None


def ignored_by(model: nn.Module) -> int:
    """The label that does not count: segmentation has another than everybody else."""
    if "SemanticSegmentation" in type(model).__name__:
        return int(getattr(getattr(model, "config", None), "semantic_loss_ignore_index", 255))
    return IGNORE


def require_labels(batch: Mapping[str, Any], model: nn.Module, names: Iterable[str] = ("labels",)) -> None:
    """For a batch on the host: DatasetError with the first label out of range."""
    classes = classes_of(model)
    if classes is not None:
        for name in names:
            BadLabel.refuse(name, batch.get(name), classes, ignored_by(model))


def explain(
    error: BaseException, batches: Iterable[Mapping[str, Any]], model: nn.Module, names: Iterable[str] = ("labels",)
) -> Exception | None:
    """Why a step broke, if a label or a token out of range in these host batches can be why; raise it from the error.

    A module that says nothing about its classes is taken to have as many as its last linear layer has outputs.
    """
    text = str(error)
    if "does not require grad" in text:
        return ValueError(
            "the loss does not depend on any parameter that is trained: something between them is detached, under "
            "no_grad, or frozen"
        )
    if not isinstance(error, IndexError) and not any(each in text for each in _OF_RANGES):
        return None
    for batch in batches:
        if (told := _unfit_tokens(batch.get("input_ids"), model)) is not None:
            return told
    classes = classes_of(model) or _outputs_of_the_last_layer(model)
    if classes is None:
        return None
    for batch in batches:
        for name in names:
            found = BadLabel.find(name, batch.get(name), classes, ignored_by(model))
            if found is not None:
                return DatasetError(str(found), hint=found.hint)
    return None


_OF_RANGES = ("assert", "out of bounds", "expanded size", "must match the size")


def _unfit_tokens(tokens: Any, model: nn.Module) -> DatasetError | None:
    """Longer than the model has places for, or of a larger vocabulary than its own."""
    if not isinstance(tokens, Tensor) or tokens.is_floating_point() or tokens.dim() < 2:
        return None
    places = getattr(getattr(model, "config", None), "max_position_embeddings", None)
    if isinstance(places, int) and tokens.shape[-1] > places:
        text = f"a sample has {tokens.shape[-1]} tokens, and the model has places for {places}"
        return DatasetError(text, hint=f"cut them where they are tokenized: max_length {places} or less")
    find = getattr(model, "get_input_embeddings", None)
    vectors = getattr(find() if find else None, "num_embeddings", None)
    bad = None if vectors is None else BadLabel.find("input_ids", tokens, vectors)
    if bad is None:
        return None
    text = f"input_ids has {bad.value} at place {list(bad.at)}, and the model has a vector for {vectors} tokens"
    return DatasetError(text, hint="use the tokenizer that belongs to the model, or give the model a larger vocab_size")


def _outputs_of_the_last_layer(model: nn.Module) -> int | None:
    widths = [module.out_features for module in model.modules() if isinstance(module, nn.Linear)]
    return widths[-1] if widths else None
