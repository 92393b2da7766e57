"""Tests that streaming metrics equal their formulas over all samples and need little memory."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torchmetrics
from torch import Tensor
from torchmetrics.text import BLEUScore

from footplate.contract.errors import UnknownComponent
from footplate.trainer.metrics.choose import METRICS, make_metric
from footplate.trainer.metrics.counting import Auroc, Sums

CLASSES, SAMPLES = 4, 301


def random_logits(classes: int = CLASSES, seed: int = 0, length: int | None = None) -> tuple[Tensor, Tensor]:
    """Returns random logits that correlate with the labels. Some labels are ignored."""
    generator = torch.Generator().manual_seed(seed)
    shape = (SAMPLES,) if length is None else (SAMPLES, length)
    labels = torch.randint(classes, shape, generator=generator)
    logits = torch.randn(*shape, classes, generator=generator)
    logits += 0.8 * torch.nn.functional.one_hot(labels, classes)
    labels[torch.rand(shape, generator=generator) < 0.1] = -100
    return logits, labels


def streamed(name: str, logits: Tensor, labels: Tensor, size: int = 32) -> float:
    metric = make_metric(name)
    for at in range(0, len(labels), size):
        metric.update(logits[at : at + size], labels[at : at + size])
    (value,) = metric.compute().values()
    return value


# Formulas in plain Python, over pairs of (predicted class, true class)


def pairs(logits: Tensor, labels: Tensor) -> list[tuple[int, int]]:
    flat = zip(logits.argmax(-1).flatten().tolist(), labels.flatten().tolist(), strict=True)
    return [(predicted, true) for predicted, true in flat if true != -100]


def of_class(kind: str, pairs: list[tuple[int, int]], which: set[int]) -> float:
    hits = sum(predicted == true for predicted, true in pairs if predicted in which)
    predicted, true = sum(item in which for item, _ in pairs), sum(item in which for _, item in pairs)
    below = {"precision": predicted, "recall": true, "f1": (predicted + true) / 2}[kind]
    return hits / below if below else 0.0


def averaged(kind: str, average: str, pairs: list[tuple[int, int]]) -> float:
    occur = sorted({entry for pair in pairs for entry in pair})
    if average == "binary":
        return of_class(kind, pairs, {1})
    if average == "micro":
        return sum(predicted == true for predicted, true in pairs) / len(pairs)
    item = [of_class(kind, pairs, {which}) for which in occur]
    weights = [sum(true == which for _, true in pairs) if average == "weighted" else 1 for which in occur]
    return sum(value * weight for value, weight in zip(item, weights, strict=True)) / sum(weights)


def matthews(pairs: list[tuple[int, int]]) -> float:
    """Returns the correlation by Pearson's formula over one-hot vectors."""
    classes = range(CLASSES)
    total = len(pairs)
    predicted = [sum(item == which for item, _ in pairs) for which in classes]
    true = [sum(item == which for _, item in pairs) for which in classes]
    right = sum(first == second for first, second in pairs)
    above = right * total - sum(first * second for first, second in zip(predicted, true, strict=True))
    below = math.sqrt(total**2 - sum(count**2 for count in predicted)) * math.sqrt(
        total**2 - sum(item**2 for item in true)
    )
    return above / below if below else 0.0


@pytest.mark.parametrize("length", [None, 3])
@pytest.mark.parametrize("average", ["macro", "micro", "weighted", "binary"])
@pytest.mark.parametrize("kind", ["precision", "recall", "f1"])
def test_precision_recall_and_f1_equal_their_formulas(kind: str, average: str, length: int | None) -> None:
    logits, labels = random_logits(length=length)
    logits[..., 3] -= 100  # never predicted
    expected = averaged(kind, average, pairs(logits, labels))

    assert streamed(f"{kind}_{average}", logits, labels) == pytest.approx(expected)
    if average == "macro":
        assert streamed(kind, logits, labels) == pytest.approx(expected)


def test_accuracy_and_correlation_equal_their_formulas() -> None:
    logits, labels = random_logits(length=2)
    class_pairs = pairs(logits, labels)

    assert streamed("accuracy", logits, labels) == pytest.approx(
        sum(first == second for first, second in class_pairs) / len(class_pairs)
    )
    assert streamed("mcc", logits, labels) == pytest.approx(matthews(class_pairs))
    assert streamed("mcc", torch.eye(2)[[0, 0]], torch.tensor([0, 1])) == 0.0


def area(scores: list[float], positive: list[bool]) -> float:
    """Returns the area under the curve by comparing every positive with every negative."""
    high = [score for score, is_one in zip(scores, positive, strict=True) if is_one]
    low = [score for score, is_one in zip(scores, positive, strict=True) if not is_one]
    return sum((score > two) + (score == two) / 2 for score in high for two in low) / (len(high) * len(low))


def test_the_auroc_of_two_classes_equals_its_formula() -> None:
    logits, labels = random_logits(classes=2)
    counted = labels != -100
    scores, positive = (logits[:, 1] - logits[:, 0])[counted].tolist(), labels[counted].bool().tolist()

    assert streamed("auroc", logits, labels) == pytest.approx(area(scores, positive), abs=1e-4)
    single = (logits[:, 1:] - logits[:, :1], labels)
    assert streamed("auroc", *single) == streamed("auroc", logits, labels)


def test_the_auroc_of_many_classes_is_the_mean_of_the_one_vs_rest_aurocs() -> None:
    logits, labels = random_logits()
    counted = labels != -100
    chances = logits.double().softmax(-1)[counted]
    item = [area(chances[:, k].tolist(), labels[counted].eq(k).tolist()) for k in range(CLASSES)]

    assert streamed("auroc", logits, labels) == pytest.approx(sum(item) / CLASSES, abs=1e-3)


def test_the_auroc_counts_ties_as_half_and_handles_scores_of_any_size() -> None:
    tied = torch.tensor([[0.0], [0.0], [-0.0], [0.0]])
    assert streamed("auroc", tied, torch.tensor([0, 1, 1, 0])) == 0.5
    scores = torch.tensor([-1e30, -1.0, -1e-30, 1e-30, 1.0, 1e30])[:, None]
    assert streamed("auroc", scores, torch.tensor([0, 0, 0, 1, 1, 1])) == 1.0
    assert streamed("auroc", scores, torch.tensor([1, 1, 1, 0, 0, 0])) == 0.0
    sure = torch.tensor([[50.0, 0, 0], [60, 0, 0], [0, 50, 0], [0, 60, 0]])
    assert streamed("auroc", sure, torch.tensor([0, 0, 1, 1])) == 1.0
    assert math.isnan(streamed("auroc", tied, torch.tensor([1, 1, 1, 1])))


def test_multi_label_metrics_are_computed_class_by_class() -> None:
    logits, _ = random_logits()
    labels = (logits + torch.randn(logits.shape, generator=torch.Generator().manual_seed(3))).gt(0).float()
    predicted, true = logits.gt(0), labels.bool()
    item = [
        2 * float((predicted & true)[:, k].sum()) / float(predicted[:, k].sum() + true[:, k].sum())
        for k in range(CLASSES)
    ]
    areas = [area(logits[:, k].tolist(), true[:, k].tolist()) for k in range(CLASSES)]

    assert streamed("accuracy", logits, labels) == pytest.approx(float(predicted.eq(true).float().mean()))
    assert streamed("f1", logits, labels) == pytest.approx(sum(item) / CLASSES)
    assert streamed("auroc", logits, labels) == pytest.approx(sum(areas) / CLASSES, abs=1e-3)


@pytest.mark.parametrize(
    ("name", "formula"),
    [
        ("mse", lambda off: off.square().mean()),
        ("mae", lambda off: off.abs().mean()),
        ("rmse", lambda off: off.square().mean().sqrt()),
    ],
)
def test_mse_mae_and_rmse_equal_their_formulas(name: str, formula: Callable[[Tensor], Tensor]) -> None:
    predicted, labels = torch.randn(SAMPLES, 1), torch.randn(SAMPLES)
    assert streamed(name, predicted, labels) == pytest.approx(float(formula(predicted[:, 0] - labels)), rel=1e-5)
    with pytest.raises(ValueError, match=r"logits have the shape \(4, 3\), labels \(4,\)"):
        streamed(name, torch.zeros(4, 3), torch.zeros(4))


def test_perplexity_equals_its_formula() -> None:
    logits, labels = random_logits(length=3)
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())

    assert streamed("perplexity", logits, labels) == pytest.approx(math.exp(float(loss)), rel=1e-5)


@pytest.mark.parametrize("name", sorted(METRICS))
def test_a_metric_without_samples_is_nan_and_its_memory_does_not_grow(name: str) -> None:
    metric = make_metric(name)
    assert math.isnan(next(iter(metric.compute().values())))
    regression = name in ("mse", "mae", "rmse")
    sizes = []
    for seed in (0, 1, 2):
        logits, labels = random_logits(classes=3, seed=seed)
        metric.update(*((logits, logits + 1) if regression else (logits, labels)))
        assert isinstance(metric, Sums)
        sizes.append(sum(item.numel() for item in metric.sums.values()))
    assert sizes[0] == sizes[1] == sizes[2]
    assert all(isinstance(value, float) for value in metric.compute().values())


def test_the_memory_of_auroc_is_bounded_for_many_classes() -> None:
    metric = Auroc()
    metric.update(torch.randn(8, 5000), torch.randint(5000, (8,)))

    assert sum(item.numel() * item.element_size() for item in metric.sums.values()) <= 64 * 2**20
    assert math.isfinite(metric.compute()["auroc"])


@pytest.mark.parametrize("name", ["accuracy", "f1", "mcc", "auroc", "perplexity"])
def test_metric_sums_of_all_processes_add_up_to_the_metric_of_the_whole(name: str) -> None:
    logits, labels = random_logits(classes=2)
    whole, halves = make_metric(name), [make_metric(name), make_metric(name)]
    whole.update(logits, labels)
    for half, at in zip(halves, (slice(0, 100), slice(100, None)), strict=True):
        half.update(logits[at], labels[at])
    first, second = halves
    assert isinstance(first, Sums)
    assert isinstance(second, Sums)
    first.join(lambda mine: [mine, second.sums, {}])  # the third process had no samples

    assert first.compute() == {name: pytest.approx(whole.compute()[name])}


@pytest.mark.parametrize(
    ("name", "ours"),
    [
        ("Accuracy", "accuracy"),
        ("F1Score", "f1_micro"),
        ("AUROC", "auroc"),
        ("MatthewsCorrCoef", "mcc"),
    ],
)
def test_metrics_of_torchmetrics_are_loaded_by_name_and_agree_with_ours(name: str, ours: str) -> None:
    logits, labels = random_logits(length=2)

    theirs = streamed(f"torchmetrics/{name}", logits, labels)

    options: dict[str, float] = {"abs": 1e-3} if name == "AUROC" else {"rel": 1e-4}
    expected = pytest.approx(streamed(ours, logits, labels), **options)
    assert theirs == (pytest.approx(streamed("accuracy", logits, labels), abs=0.1) if name == "Accuracy" else expected)


def test_torchmetrics_work_for_regression_for_tokens_and_as_objects() -> None:
    assert streamed("torchmetrics/MeanSquaredError", torch.ones(5, 1), torch.zeros(5)) == 1.0
    logits, labels = random_logits(length=3)
    assert streamed("torchmetrics/Perplexity", logits, labels) == pytest.approx(
        streamed("perplexity", logits, labels), rel=1e-4
    )
    own = make_metric(lambda: torchmetrics.classification.MulticlassRecall(3, average="none", ignore_index=-100))
    own.update(*random_logits(classes=3))
    assert list(own.compute()) == ["multiclass_recall_0", "multiclass_recall_1", "multiclass_recall_2"]
    several = make_metric("torchmetrics/Accuracy")
    several.update(torch.tensor([[1.0, -1.0]]), torch.tensor([[1.0, 1.0]]))
    assert several.compute() == {"accuracy": 0.5}
    assert math.isnan(make_metric("torchmetrics/F1Score").compute()["f1_score"])


def test_an_unknown_torchmetric_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(UnknownComponent) as error:
        make_metric("torchmetrics/F1score")
    assert error.value.hint == "did you mean 'F1Score'?"


def test_without_torchmetrics_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torchmetrics", None)
    with pytest.raises(ImportError, match=r"torchmetrics/F1Score.*'footplate\[metrics\]'"):
        make_metric("torchmetrics/F1Score")


def test_a_metric_with_add_batch_receives_predicted_classes_and_counted_labels() -> None:
    class Exact:
        def __init__(self) -> None:
            self.pairs: list[tuple[Any, Any]] = []

        def add_batch(self, *, predictions: Any, references: Any) -> None:
            self.pairs += zip(predictions, references, strict=True)

        def compute(self) -> dict[str, float]:
            return {"exact": sum(first == second for first, second in self.pairs) / len(self.pairs)}

    logits, labels = random_logits()
    metric = make_metric(Exact)
    metric.update(logits, labels)

    assert metric.compute()["exact"] == pytest.approx(streamed("accuracy", logits, labels))


@pytest.mark.parametrize("name", ["accuracy", "precision", "recall", "f1", "f1_binary", "mcc"])
def test_one_logit_per_sample_and_two_logits_have_the_same_metrics(name: str) -> None:
    logits, labels = torch.tensor([2.0, -1.0, 0.5, -3.0, 1.0]), torch.tensor([1, 1, 0, 0, 1])
    two_logits = torch.stack([torch.zeros_like(logits), logits], dim=-1)

    assert streamed(name, logits, labels.float()) == streamed(name, two_logits, labels)


def test_the_correlation_of_several_labels_counts_each_label_as_a_sample() -> None:
    logits, labels = torch.tensor([[2.0, 1.0], [1.0, -1.0], [3.0, 2.0]]), torch.tensor([[1, 0], [0, 0], [1, 1]])

    assert streamed("mcc", logits, labels.float()) == streamed("mcc", logits.flatten(), labels.flatten().float())


# Texts


class Words:
    """Decodes a token to a word; 0 is padding."""

    pad_token_id = 0

    def batch_decode(self, tokens: list[list[int]], skip_special_tokens: bool) -> list[str]:
        assert skip_special_tokens
        return [" ".join(f"w{item}" for item in row if item) for row in tokens]


SAID = torch.tensor([[1, 2, 3, 4, 5, 0], [6, 7, 8, 9, 1, 2]])
WANTED = torch.tensor([[1, 2, 3, 4, 9, -100], [6, 7, 8, 9, 1, 2]])


@pytest.mark.parametrize("name", ["bleu", "sacrebleu", "rouge", "chrf"])
def test_text_metrics_decode_and_compare_batch_by_batch(name: str) -> None:
    whole, in_batches = make_metric(name, Words()), make_metric(name, Words())
    whole.update(SAID, WANTED)
    for generated, expected in zip(SAID, WANTED, strict=True):
        in_batches.update(generated[None], expected[None])

    metrics = whole.compute()

    assert in_batches.compute() == pytest.approx(metrics)
    assert set(metrics) >= ({"rouge1", "rouge2", "rougeL"} if name == "rouge" else {name})
    assert all(0.3 < value < 1.0 for value in metrics.values())


def test_bleu_equals_that_of_torchmetrics() -> None:
    metric = make_metric("bleu", Words())
    metric.update(SAID, WANTED)

    theirs = BLEUScore()(["w1 w2 w3 w4 w5", "w6 w7 w8 w9 w1 w2"], [["w1 w2 w3 w4 w9"], ["w6 w7 w8 w9 w1 w2"]])
    assert metric.compute()["bleu"] == pytest.approx(float(theirs))


def test_a_text_metric_is_refused_without_a_tokenizer_or_generation(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match=r"bleu.*processing_class"):
        make_metric("bleu")
    with pytest.raises(ValueError, match=r"Seq2SeqTrainer.*predict_with_generate"):
        make_metric("rouge", Words()).update(torch.zeros(2, 3, 9), WANTED)
    monkeypatch.setitem(sys.modules, "torchmetrics.text", None)
    with pytest.raises(ImportError, match=r"'footplate\[metrics\]'"):
        make_metric("chrf", Words())
