"""Losses by name equal those of transformers. As sums and counts they do not depend on how a batch was cut."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy
import pytest
import torch
from torch import Tensor, nn
from transformers.loss import loss_for_object_detection as their_detection
from transformers.loss import loss_utils as theirs
from transformers.trainer_pt_utils import LabelSmoother as TheirSmoother

from footplate.contract.errors import DatasetError
from footplate.trainer import losses as ours
from footplate.trainer.losses.detection import linear_sum_assignment

SAMPLES, LENGTH, CLASSES = 6, 5, 4


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def labels_of(*shape: int, classes: int = CLASSES, ignore: int = -100) -> Tensor:
    result = torch.randint(classes, shape, generator=torch.Generator().manual_seed(1))
    result.view(-1)[::3] = ignore
    return result


def config(**values: Any) -> Any:
    return SimpleNamespace(**{"num_labels": CLASSES, "problem_type": None, **values})


COUNTS: list[Any] = [None, 7, torch.tensor(7)]


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("name", ["ForCausalLM", "ForMaskedLM", "ForConditionalGeneration"])
def test_language_models_lose_what_the_reference_does(name: str, count: Any) -> None:
    logits, labels = drawn(SAMPLES, LENGTH, CLASSES).bfloat16(), labels_of(SAMPLES, LENGTH)

    mine, other = (
        mapping[name](logits, labels, CLASSES, num_items_in_batch=count)
        for mapping in (ours.LOSS_MAPPING, theirs.LOSS_MAPPING)
    )

    assert torch.equal(mine, other)
    shifted = {"shift_labels": labels.roll(-1, 1)} if name == "ForCausalLM" else {}
    assert torch.equal(
        ours.LOSS_MAPPING[name](logits, labels, CLASSES, **shifted),
        theirs.LOSS_MAPPING[name](logits, labels, CLASSES, **shifted),
    )


@pytest.mark.parametrize(
    ("labels", "values"),
    [
        (drawn(SAMPLES), {"num_labels": 1}),
        (drawn(SAMPLES, CLASSES), {"problem_type": "regression"}),
        (torch.arange(SAMPLES) % CLASSES, {}),
        (torch.ones(SAMPLES, CLASSES), {}),
        (torch.ones(SAMPLES, CLASSES), {"problem_type": "multi_label_classification"}),
    ],
)
def test_samples_are_classified_or_regressed_as_the_reference_does(labels: Tensor, values: dict[str, Any]) -> None:
    mine, other = config(**values), config(**values)
    logits = drawn(SAMPLES, mine.num_labels)

    assert torch.equal(
        ours.ForSequenceClassificationLoss(labels, logits, mine),
        theirs.ForSequenceClassificationLoss(labels, logits, other),
    )
    assert mine.problem_type == other.problem_type


@pytest.mark.parametrize("count", COUNTS)
def test_tokens_answers_and_pixels_lose_what_the_reference_does(count: Any) -> None:
    more = {"num_items_in_batch": count}
    tokens, names = drawn(SAMPLES, LENGTH, CLASSES), labels_of(SAMPLES, LENGTH)
    start, end = torch.tensor([0, 2, 4, 9, -1, 3]), torch.tensor([[1], [3], [9], [9], [0], [3]])
    picture, pixels = drawn(2, CLASSES, 3, 3), labels_of(2, 7, 5, ignore=255)

    for mine, other, args in (
        (ours.ForTokenClassification, theirs.ForTokenClassification, (tokens, names, config())),
        (ours.ForQuestionAnsweringLoss, theirs.ForQuestionAnsweringLoss, (tokens[..., 0], tokens[..., 1], start, end)),
    ):
        assert torch.equal(mine(*args, **more), other(*args, **more))  # type: ignore[operator]
    for aside in (None, drawn(2, CLASSES, 2, 2, seed=3)):
        assert torch.equal(
            ours.ForSemanticSegmentationLoss(picture, pixels, auxiliary_logits=aside, num_items_in_batch=count),
            theirs.ForSemanticSegmentationLoss(picture, pixels, auxiliary_logits=aside, num_items_in_batch=count),
        )
    assert ours.ForQuestionAnsweringLoss(start, start, None, end) is None  # type: ignore[arg-type]


def test_no_general_loss_of_the_reference_is_missing() -> None:
    general = {name for name in theirs.LOSS_MAPPING if name.startswith("For")}

    assert general - set(ours.LOSS_MAPPING) == {"ForCTC"}


def a_model(name: str, **values: Any) -> nn.Module:
    made: nn.Module = type(name, (nn.Module,), {})()
    made.config = config(**values)  # type: ignore[assignment]
    return made


FAMILIES: list[tuple[str, dict[str, Any], Callable[[], tuple[Any, dict[str, Tensor]]], Callable[..., Tensor]]] = [
    (
        "TinyForCausalLM",
        {},
        lambda: (drawn(SAMPLES, LENGTH, CLASSES), {"labels": labels_of(SAMPLES, LENGTH)}),
        lambda out, batch: theirs.ForCausalLMLoss(out, batch["labels"], CLASSES),
    ),
    (
        "GPT2LMHeadModel",
        {},
        lambda: (drawn(SAMPLES, LENGTH, CLASSES), {"labels": labels_of(SAMPLES, LENGTH)}),
        lambda out, batch: theirs.ForCausalLMLoss(out, batch["labels"], CLASSES),
    ),
    (
        "TinyForMaskedLM",
        {},
        lambda: (drawn(SAMPLES, LENGTH, CLASSES), {"labels": labels_of(SAMPLES, LENGTH)}),
        lambda out, batch: theirs.ForMaskedLMLoss(out, batch["labels"], CLASSES),
    ),
    (
        "T5ForConditionalGeneration",
        {"is_encoder_decoder": True},
        lambda: (drawn(SAMPLES, LENGTH, CLASSES), {"labels": labels_of(SAMPLES, LENGTH)}),
        lambda out, batch: theirs.ForMaskedLMLoss(out, batch["labels"], CLASSES),
    ),
    (
        "TinyForTokenClassification",
        {},
        lambda: (drawn(SAMPLES, LENGTH, CLASSES), {"labels": labels_of(SAMPLES, LENGTH)}),
        lambda out, batch: theirs.ForTokenClassification(out, batch["labels"], config()),
    ),
    (
        "TinyForSequenceClassification",
        {"num_labels": 1},
        lambda: (drawn(SAMPLES, 1), {"labels": drawn(SAMPLES, seed=2)}),
        lambda out, batch: theirs.ForSequenceClassificationLoss(batch["labels"], out, config(num_labels=1)),
    ),
    (
        "TinyForImageClassification",
        {},
        lambda: (drawn(SAMPLES, CLASSES), {"labels": labels_of(SAMPLES)}),
        lambda out, batch: theirs.ForSequenceClassificationLoss(batch["labels"], out, config()),
    ),
    (
        "TinyForAudioClassification",
        {},
        lambda: (drawn(SAMPLES, CLASSES), {"labels": drawn(SAMPLES, CLASSES, seed=2).gt(0).float()}),
        lambda out, batch: theirs.ForSequenceClassificationLoss(batch["labels"], out, config()),
    ),
    (
        "TinyForQuestionAnswering",
        {},
        lambda: (
            {"start_logits": drawn(SAMPLES, LENGTH), "end_logits": drawn(SAMPLES, LENGTH, seed=3)},
            {"start_positions": torch.tensor([0, 2, 4, 9, 9, 3]), "end_positions": torch.tensor([1, 3, 9, 4, 9, 3])},
        ),
        lambda out, batch: theirs.ForQuestionAnsweringLoss(**out, **batch),
    ),
    (
        "TinyForSemanticSegmentation",
        {"semantic_loss_ignore_index": 254},
        lambda: (drawn(SAMPLES, CLASSES, 3, 3), {"labels": labels_of(SAMPLES, 7, 5, ignore=254)}),
        lambda out, batch: theirs.ForSemanticSegmentationLoss(out, batch["labels"], ignore_index=254),
    ),
]


@pytest.mark.parametrize(("name", "values", "made", "expected"), FAMILIES)
def test_a_class_name_says_which_loss_its_logits_are_about(
    name: str, values: dict[str, Any], made: Any, expected: Any
) -> None:
    outputs, batch = made()
    family = ours.family_of(a_model(name, **values))
    assert family is not None

    loss, scaled = ours.loss_and_how(outputs, batch.get("labels"), None, family=family, inputs=batch)

    assert not scaled
    assert torch.allclose(loss, expected(outputs, batch))


@pytest.mark.parametrize(("name", "values", "made", "expected"), FAMILIES)
def test_however_a_batch_is_cut_the_loss_is_the_same(
    name: str, values: dict[str, Any], made: Any, expected: Any
) -> None:
    outputs, batch = made()
    family = ours.family_of(a_model(name, **values))
    assert family is not None

    def piece(value: Any, at: slice) -> Any:
        return {k: v[at] for k, v in value.items()} if isinstance(value, dict) else value[at]

    whole = family.loss(outputs, batch)
    for cut in ([1, 5], [2, 4], [1, 1, 1, 1, 1, 1]):
        edges = [0, *itertools.accumulate(cut)]
        parts = [slice(a, b) for a, b in itertools.pairwise(edges)]
        shares = [
            ours.loss_and_how(piece(outputs, at), None, whole.count, family=family, inputs=piece(batch, at))
            for at in parts
        ]
        assert all(scaled for _, scaled in shares)
        assert torch.allclose(sum(loss for loss, _ in shares), whole.over(None))  # type: ignore[arg-type]


def test_a_models_own_loss_and_an_unknown_name_are_left_alone() -> None:
    assert ours.family_of(a_model("Net")) is None
    family = ours.family_of(a_model("NetForCausalLM"))
    own, scaled = ours.loss_and_how({"loss": torch.tensor(3.0)}, None, 5, family=family, inputs={})

    assert (float(own), scaled) == (3.0, False)


def test_what_a_family_needs_and_does_not_find_is_named() -> None:
    family = ours.family_of(a_model("NetForQuestionAnswering"))
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
def reference(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Returns transformers' detection losses with our matching instead of SciPy's."""
    monkeypatch.setattr(their_detection, "linear_sum_assignment", linear_sum_assignment, raising=False)
    monkeypatch.setattr(their_detection, "requires_backends", lambda *_: None)
    from transformers import image_transforms

    monkeypatch.setattr(
        their_detection, "center_to_corners_format", image_transforms.center_to_corners_format, raising=False
    )
    return their_detection


def scene() -> dict[str, Any]:
    boxes = drawn(3, 2, 8, 4).sigmoid() * 0.4 + 0.05
    return {
        "logits": drawn(2, 8, CLASSES + 1),
        "pred_boxes": boxes[-1],
        "pred_masks": drawn(2, 8, 4, 4, seed=4),
        "labels": [
            {
                "class_labels": torch.tensor([1, 3, 0]),
                "boxes": drawn(3, 4, seed=5).sigmoid() * 0.4 + 0.05,
                "masks": drawn(3, 9, 7, seed=6).gt(0).float(),
            },
            {
                "class_labels": torch.tensor([2]),
                "boxes": drawn(1, 4, seed=7).sigmoid() * 0.4 + 0.05,
                "masks": drawn(1, 6, 8, seed=8).gt(0).float(),
            },
        ],
        "layers": {"outputs_class": drawn(3, 2, 8, CLASSES + 1, seed=9), "outputs_coord": boxes},
    }


@pytest.mark.parametrize("auxiliary", [False, True])
@pytest.mark.parametrize("masks", [False, True])
def test_objects_lose_what_the_reference_does(reference: Any, auxiliary: bool, masks: bool) -> None:
    seen, settings = scene(), detection(auxiliary_loss=auxiliary)
    name = "ForSegmentationLoss" if masks else "ForObjectDetectionLoss"
    extra = {"pred_masks": seen["pred_masks"]} if masks else {}
    args = {**extra, **(seen["layers"] if auxiliary else {})}

    mine, other = (
        getattr(module, name)(
            seen["logits"], seen["labels"], "cpu", pred_boxes=seen["pred_boxes"], config=settings, **args
        )
        for module in (ours, reference)
    )

    assert torch.allclose(mine[0], other[0])
    assert mine[1].keys() == other[1].keys()
    for part in mine[1]:
        assert torch.allclose(mine[1][part], other[1][part]), part
    assert (mine[2] is None) == (other[2] is None)


def test_a_detector_that_returns_no_loss_is_trained_on_its_boxes() -> None:
    seen = scene()
    family = ours.family_of(a_model("NetForObjectDetection", **vars(detection())))

    loss, scaled = ours.loss_and_how(seen, None, 5, family=family, inputs={"labels": seen["labels"]})

    expected, _, _ = ours.ForObjectDetectionLoss(seen["logits"], seen["labels"], "cpu", seen["pred_boxes"], detection())
    assert (float(loss), scaled) == (float(expected), False)


@pytest.mark.parametrize("shape", [(1, 1), (3, 3), (4, 6), (6, 3), (5, 0)])
def test_the_matching_is_the_cheapest_of_all(shape: tuple[int, int]) -> None:
    rows, columns = shape
    for seed in range(20):
        cost = numpy.random.default_rng(seed).normal(size=shape).round(1)
        chosen, to = linear_sum_assignment(cost)
        small, large = sorted(shape)
        every = (
            sum(cost[i, j] if rows <= columns else cost[j, i] for i, j in enumerate(order))
            for order in itertools.permutations(range(large), small)
        )
        assert len(set(chosen)) == len(set(to)) == small
        assert list(chosen) == sorted(chosen)
        assert cost[chosen, to].sum() == pytest.approx(min(every))


# Label smoothing


@pytest.mark.parametrize("shift", [False, True])
@pytest.mark.parametrize("count", COUNTS)
def test_smoothed_labels_cost_what_the_references_do(shift: bool, count: Any) -> None:
    logits, labels = drawn(SAMPLES, LENGTH, CLASSES), labels_of(SAMPLES, LENGTH)
    for outputs in ({"logits": logits}, (logits,)):
        mine = ours.LabelSmoother(0.2)(outputs, labels.clone(), shift, count)
        assert torch.equal(mine, TheirSmoother(0.2)(outputs, labels.clone(), shift, count))
    assert torch.equal(mine, ours.LabelSmoother(0.2)(SimpleNamespace(logits=logits), labels, shift, count))


# Labels out of range


@pytest.mark.parametrize(
    ("name", "values", "labels", "told"),
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
            r"has -1 at place \[1, 0\].*not count is -100",
        ),
        ("NetForCausalLM", {"vocab_size": 7}, torch.tensor([[0, 7]]), "has 7 at place"),
        ("NetForSemanticSegmentation", {}, torch.tensor([[[255, -100]]]), "has -100 at place .*not count is 255"),
    ],
)
def test_a_label_out_of_range_is_named_in_the_first_batch(
    name: str, values: dict[str, Any], labels: Tensor, told: str
) -> None:
    with pytest.raises(DatasetError, match=told):
        ours.require_labels({"labels": labels}, a_model(name, **values))


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
def test_labels_in_range_and_models_that_do_not_say_pass(name: str, values: dict[str, Any], labels: Any) -> None:
    ours.require_labels({"labels": labels}, a_model(name, **values))


def test_the_loss_itself_names_a_class_that_does_not_exist() -> None:
    with pytest.raises(DatasetError, match="labels has 7 at sample 2") as error:
        ours.classification(drawn(3, CLASSES), torch.tensor([1, 2, 7]))
    assert error.value.__context__ is not None


def test_after_a_step_broke_the_batches_at_hand_are_looked_at() -> None:
    broken = RuntimeError("CUDA error: device-side assert triggered")
    plain = nn.Sequential(nn.Linear(2, 8), nn.Linear(8, CLASSES))
    batches = [{"labels": torch.tensor([0])}, {"labels": torch.tensor([1, CLASSES])}]

    explanation = ours.explain(broken, batches, plain)

    assert "labels has 4 at sample 1" in str(explanation)
    assert ours.explain(RuntimeError("out of memory"), batches, plain) is None
    assert ours.explain(broken, batches[:1], plain) is None
    assert ours.explain(broken, batches, nn.Identity()) is None


def test_the_matching_needs_nothing_but_numpy() -> None:
    assert "scipy" not in sys.modules
