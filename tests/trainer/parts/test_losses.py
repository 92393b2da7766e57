"""Losses by name equal those of transformers. As sums and counts they do not depend on how a batch was cut."""

from __future__ import annotations

import itertools
import re
import sys
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers.loss import loss_utils as theirs
from transformers.trainer_pt_utils import LabelSmoother as TheirSmoother
from transformers.utils import is_scipy_available

from footplate.contract.errors import DatasetError
from footplate.trainer.losses import families
from footplate.trainer.losses.labels import explain, require_labels
from footplate.trainer.losses.loss import classification, loss_and_how
from footplate.trainer.losses.smoothing import LabelSmoother

SAMPLES, LENGTH, CLASSES = 6, 5, 4
DETECTION = "transformers.loss.loss_for_object_detection"


def noise(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def labels_of(*shape: int, classes: int = CLASSES, ignore: int = -100) -> Tensor:
    result = torch.randint(classes, shape, generator=torch.Generator().manual_seed(1))
    result.view(-1)[::3] = ignore
    return result


def config(**values: Any) -> Any:
    return SimpleNamespace(**{"num_labels": CLASSES, "problem_type": None, **values})


def a_model(name: str, **values: Any) -> nn.Module:
    model: nn.Module = type(name, (nn.Module,), {})()
    model.config = config(**values)  # type: ignore[assignment]
    return model


FAMILIES: list[tuple[str, dict[str, Any], Callable[[], tuple[Any, dict[str, Tensor]]], Callable[..., Tensor]]] = [
    (
        "TinyForCausalLM",
        {},
        lambda: (noise(SAMPLES, LENGTH, CLASSES), {"labels": labels_of(SAMPLES, LENGTH)}),
        lambda out, batch: theirs.ForCausalLMLoss(out, batch["labels"], CLASSES),
    ),
    (
        "GPT2LMHeadModel",
        {},
        lambda: (noise(SAMPLES, LENGTH, CLASSES), {"labels": labels_of(SAMPLES, LENGTH)}),
        lambda out, batch: theirs.ForCausalLMLoss(out, batch["labels"], CLASSES),
    ),
    (
        "TinyForMaskedLM",
        {},
        lambda: (noise(SAMPLES, LENGTH, CLASSES), {"labels": labels_of(SAMPLES, LENGTH)}),
        lambda out, batch: theirs.ForMaskedLMLoss(out, batch["labels"], CLASSES),
    ),
    (
        "T5ForConditionalGeneration",
        {"is_encoder_decoder": True},
        lambda: (noise(SAMPLES, LENGTH, CLASSES), {"labels": labels_of(SAMPLES, LENGTH)}),
        lambda out, batch: theirs.ForMaskedLMLoss(out, batch["labels"], CLASSES),
    ),
    (
        "TinyForTokenClassification",
        {},
        lambda: (noise(SAMPLES, LENGTH, CLASSES), {"labels": labels_of(SAMPLES, LENGTH)}),
        lambda out, batch: theirs.ForTokenClassification(out, batch["labels"], config()),
    ),
    (
        "TinyForSequenceClassification",
        {"num_labels": 1},
        lambda: (noise(SAMPLES, 1), {"labels": noise(SAMPLES, seed=2)}),
        lambda out, batch: theirs.ForSequenceClassificationLoss(batch["labels"], out, config(num_labels=1)),
    ),
    (
        "TinyForImageClassification",
        {},
        lambda: (noise(SAMPLES, CLASSES), {"labels": labels_of(SAMPLES)}),
        lambda out, batch: theirs.ForSequenceClassificationLoss(batch["labels"], out, config()),
    ),
    (
        "TinyForAudioClassification",
        {},
        lambda: (noise(SAMPLES, CLASSES), {"labels": noise(SAMPLES, CLASSES, seed=2).gt(0).float()}),
        lambda out, batch: theirs.ForSequenceClassificationLoss(batch["labels"], out, config()),
    ),
    (
        "TinyForQuestionAnswering",
        {},
        lambda: (
            {"start_logits": noise(SAMPLES, LENGTH), "end_logits": noise(SAMPLES, LENGTH, seed=3)},
            {"start_positions": torch.tensor([0, 2, 4, 9, 9, 3]), "end_positions": torch.tensor([1, 3, 9, 4, 9, 3])},
        ),
        lambda out, batch: theirs.ForQuestionAnsweringLoss(**out, **batch),
    ),
    (
        "TinyForSemanticSegmentation",
        {"semantic_loss_ignore_index": 254},
        lambda: (noise(SAMPLES, CLASSES, 3, 3), {"labels": labels_of(SAMPLES, 7, 5, ignore=254)}),
        lambda out, batch: theirs.ForSemanticSegmentationLoss(out, batch["labels"], ignore_index=254),
    ),
]


@pytest.mark.parametrize(("name", "values", "make_outputs", "expected"), FAMILIES)
def test_the_loss_follows_from_the_class_name_of_the_model(
    name: str, values: dict[str, Any], make_outputs: Any, expected: Any
) -> None:
    outputs, batch = make_outputs()
    family = families.family_of(a_model(name, **values))
    assert family is not None

    loss, scaled = loss_and_how(outputs, batch.get("labels"), None, family=family, inputs=batch)

    assert not scaled
    assert torch.allclose(loss, expected(outputs, batch))


@pytest.mark.parametrize(("name", "values", "make_outputs", "expected"), FAMILIES)
def test_the_loss_does_not_depend_on_how_a_batch_is_split(
    name: str, values: dict[str, Any], make_outputs: Any, expected: Any
) -> None:
    outputs, batch = make_outputs()
    family = families.family_of(a_model(name, **values))
    assert family is not None

    def piece(value: Any, at: slice) -> Any:
        return {k: v[at] for k, v in value.items()} if isinstance(value, dict) else value[at]

    whole = family.loss(outputs, batch)
    for cut in ([1, 5], [2, 4], [1, 1, 1, 1, 1, 1]):
        edges = [0, *itertools.accumulate(cut)]
        parts = [slice(a, b) for a, b in itertools.pairwise(edges)]
        shares = [
            loss_and_how(piece(outputs, at), None, whole.count, family=family, inputs=piece(batch, at)) for at in parts
        ]
        assert all(scaled for _, scaled in shares)
        assert torch.allclose(sum(loss for loss, _ in shares), whole.over(None))  # type: ignore[arg-type]


def test_a_model_with_its_own_loss_or_an_unknown_name_keeps_its_loss() -> None:
    assert families.family_of(a_model("Net")) is None
    family = families.family_of(a_model("NetForCausalLM"))
    own, scaled = loss_and_how({"loss": torch.tensor(3.0)}, None, 5, family=family, inputs={})

    assert (float(own), scaled) == (3.0, False)


def test_a_missing_output_that_a_loss_needs_is_named() -> None:
    family = families.family_of(a_model("NetForQuestionAnswering"))
    assert family is not None
    where = {"start_positions": torch.zeros(2), "end_positions": torch.zeros(2)}
    with pytest.raises(ValueError, match="no start_logits"):
        family.loss({"logits": torch.zeros(2, 3)}, where)


# Detection


def detection(**values: Any) -> Any:
    return config(
        class_cost=1.0, bbox_cost=5.0, giou_cost=2.0, eos_coefficient=0.1, bbox_loss_coefficient=5.0,
        giou_loss_coefficient=2.0, mask_loss_coefficient=1.0, dice_loss_coefficient=1.0, decoder_layers=3,
        **{"auxiliary_loss": False, **values},
    )  # fmt: skip


@pytest.fixture
def with_scipy(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Lets transformers find SciPy, which is in the folder of the libraries that only some tests import."""
    monkeypatch.syspath_prepend(str(Path(sys.prefix, "libraries")))
    monkeypatch.delitem(sys.modules, DETECTION)
    is_scipy_available.cache_clear()
    yield
    is_scipy_available.cache_clear()
    families._of_transformers.cache_clear()


def scene() -> dict[str, Any]:
    boxes = noise(3, 2, 8, 4).sigmoid() * 0.4 + 0.05
    return {
        "logits": noise(2, 8, CLASSES + 1),
        "pred_boxes": boxes[-1],
        "pred_masks": noise(2, 8, 4, 4, seed=4),
        "labels": [
            {
                "class_labels": torch.tensor([1, 3, 0]),
                "boxes": noise(3, 4, seed=5).sigmoid() * 0.4 + 0.05,
                "masks": noise(3, 9, 7, seed=6).gt(0).float(),
            },
            {
                "class_labels": torch.tensor([2]),
                "boxes": noise(1, 4, seed=7).sigmoid() * 0.4 + 0.05,
                "masks": noise(1, 6, 8, seed=8).gt(0).float(),
            },
        ],
    }


@pytest.mark.parametrize("auxiliary", [False, True])
@pytest.mark.parametrize(("name", "masks"), [("NetForObjectDetection", False), ("NetForSegmentation", True)])
def test_a_detector_that_returns_no_loss_is_trained_on_its_boxes(
    with_scipy: None, name: str, masks: bool, auxiliary: bool
) -> None:
    outputs = scene()
    family = families.family_of(a_model(name, **vars(detection(auxiliary_loss=auxiliary))))

    loss, scaled = loss_and_how(outputs, None, 5, family=family, inputs={"labels": outputs["labels"]})

    theirs = vars(import_module(DETECTION))["ForSegmentationLoss" if masks else "ForObjectDetectionLoss"]
    predicted = {name: outputs[name] for name in ("pred_boxes", "pred_masks")[: 1 + masks]}
    expected, _, _ = theirs(outputs["logits"], outputs["labels"], "cpu", config=detection(), **predicted)
    assert (float(loss), scaled) == (float(expected), False)


def test_a_detector_without_the_packages_for_its_loss_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "scipy", None)
    family = families.family_of(a_model("NetForObjectDetection", **vars(detection())))
    assert family is not None
    with pytest.raises(ImportError, match=r"'footplate\[detection\]'"):
        family.loss(scene(), {"labels": scene()["labels"]})


# Label smoothing


@pytest.mark.parametrize("shift", [False, True])
@pytest.mark.parametrize("count", [None, 7, torch.tensor(7)])
def test_label_smoothing_gives_the_loss_of_transformers(shift: bool, count: Any) -> None:
    logits, labels = noise(SAMPLES, LENGTH, CLASSES), labels_of(SAMPLES, LENGTH)
    for outputs in ({"logits": logits}, (logits,)):
        mine = LabelSmoother(0.2)(outputs, labels.clone(), shift, count)
        assert torch.equal(mine, TheirSmoother(0.2)(outputs, labels.clone(), shift, count))
    assert torch.equal(mine, LabelSmoother(0.2)(SimpleNamespace(logits=logits), labels, shift, count))


# Labels out of range


@pytest.mark.parametrize(
    ("name", "values", "labels", "message"),
    [
        (
            "NetForSequenceClassification",
            {},
            torch.tensor([0, 9]),
            "labels has 9 at sample 1.*classes 0 to 3.*10 classes",
        ),
        (
            "NetForTokenClassification",
            {},
            torch.tensor([[0, 1], [-1, -100]]),
            r"has -1 at place \[1, 0\].*ignores labels that are -100",
        ),
        ("NetForCausalLM", {"vocab_size": 7}, torch.tensor([[0, 7]]), "has 7 at place"),
        (
            "NetForSemanticSegmentation",
            {},
            torch.tensor([[[255, -100]]]),
            "has -100 at place .*ignores labels that are 255",
        ),
    ],
)
def test_a_label_out_of_range_is_named_in_the_first_batch(
    name: str, values: dict[str, Any], labels: Tensor, message: str
) -> None:
    with pytest.raises(DatasetError) as error:
        require_labels({"labels": labels}, a_model(name, **values))

    assert re.search(message, f"{error.value}: {error.value.hint}")


@pytest.mark.parametrize(
    ("name", "values", "labels"),
    [
        ("NetForSequenceClassification", {"num_labels": 1}, torch.tensor([7])),
        ("NetForSequenceClassification", {"problem_type": "multi_label_classification"}, torch.ones(2, CLASSES)),
        ("NetForTokenClassification", {}, torch.tensor([[0, -100, 3]])),
        ("Net", {}, torch.tensor([99])),
        ("NetForCausalLM", {}, torch.tensor([99])),
        ("NetForTokenClassification", {}, None),
    ],
)
def test_labels_in_range_or_without_a_known_range_are_accepted(name: str, values: dict[str, Any], labels: Any) -> None:
    require_labels({"labels": labels}, a_model(name, **values))


def test_the_classification_loss_names_a_label_out_of_range() -> None:
    with pytest.raises(DatasetError, match="labels has 7 at sample 2") as error:
        classification(noise(3, CLASSES), torch.tensor([1, 2, 7]))
    assert error.value.__context__ is not None


def test_a_device_error_is_explained_by_a_label_out_of_range_in_the_batch() -> None:
    broken = RuntimeError("CUDA error: device-side assert triggered")
    plain = nn.Sequential(nn.Linear(2, 8), nn.Linear(8, CLASSES))
    batches = [{"labels": torch.tensor([0])}, {"labels": torch.tensor([1, CLASSES])}]

    explanation = explain(broken, batches, plain)

    assert "labels has 4 at sample 1" in str(explanation)
    assert explain(RuntimeError("out of memory"), batches, plain) is None
    assert explain(broken, batches[:1], plain) is None
    assert explain(broken, batches, nn.Identity()) is None
