"""An evaluation gets its loss as in `transformers.Trainer` if the model's forward names no label."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
import transformers
from torch import Tensor, nn

import footplate
from tests.trainer.sides import arguments, assert_same, bert, on_both


class Pairs(nn.Module):
    """A model that pulls pairs of embeddings together, like CLIP. Its loss needs no labels."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(3, 4), nn.Linear(3, 4)

    def forward(self, a: Tensor, b: Tensor, return_loss: bool = True) -> dict[str, Tensor]:
        logits = self.first(a) @ self.second(b).T
        result = {"logits": logits}
        if return_loss:
            result = {"loss": nn.functional.cross_entropy(logits, torch.arange(len(logits))), **result}
        return result


class Encoder(nn.Module):
    """A model that takes its input as one dict, like the models of Sentence Transformers."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(3, 4)

    def forward(self, input: dict[str, Tensor], **kwargs: Any) -> dict[str, Tensor]:
        return {"sentence_embedding": self.inner(input["a"])}


class OneInput(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(3, 1)

    def forward(self, a: Tensor) -> Tensor:
        return self.inner(a)  # type: ignore[no-any-return]


class Open(OneInput):
    def forward(self, **inputs: Any) -> Tensor:  # type: ignore[override]
        return self.inner(inputs["a"])  # type: ignore[no-any-return]


def rows(*names: str, n: int = 14) -> list[dict[str, Tensor]]:
    generator = torch.Generator().manual_seed(3)
    return [{name: torch.randn(3, generator=generator) for name in names} for _ in range(n)]


@pytest.mark.parametrize("make", [Pairs, Encoder, OneInput, Open, lambda: bert("BertForQuestionAnswering")])
@pytest.mark.parametrize("label_names", [None, [], ["b"]])
def test_label_names_equal_those_of_transformers(tmp_path: Path, make: Any, label_names: list[str] | None) -> None:
    ours, theirs = (
        side.Trainer(make(), arguments(side, tmp_path, label_names=label_names)) for side in (footplate, transformers)
    )

    assert ours.label_names == theirs.label_names
    assert ours.can_return_loss == theirs.can_return_loss


@pytest.mark.parametrize("more", [{}, {"label_names": []}, {"per_device_eval_batch_size": 4}])
def test_a_model_without_label_names_gets_the_evaluation_loss_of_transformers(
    tmp_path: Path, more: dict[str, Any]
) -> None:
    def script(side: Any, folder: Path) -> Any:
        trainer = side.Trainer(
            Pairs(),
            arguments(side, folder, eval_strategy="epoch", eval_do_concat_batches=False, **more),
            train_dataset=rows("a", "b"),
            eval_dataset=rows("a", "b", n=7),
            compute_metrics=lambda prediction: {
                "sum": float(sum(item.sum() for item in prediction.predictions)), "labels": len(prediction.label_ids[0])
            },
        )  # fmt: skip
        trainer.train()
        predicted = trainer.predict(rows("a", "b", n=5))
        return trainer, {**predicted.metrics, "logits": [prediction.tolist() for prediction in predicted.predictions]}

    ours, theirs = on_both(tmp_path, script)

    assert_same(ours, theirs)
    assert {"eval_loss", "eval_sum"} <= ours.history[-2].keys()


@pytest.mark.parametrize("returns_loss", [True, False])
def test_a_subclass_that_can_return_a_loss_gets_it_from_its_compute_loss(tmp_path: Path, returns_loss: bool) -> None:
    """Sentence Transformers and SetFit do this. Their models cannot be called with the batch as it is."""

    def script(side: Any, folder: Path) -> Any:
        class Sentences(side.Trainer):  # type: ignore[misc, name-defined]
            def __init__(self, *args: Any, **kwargs: Any) -> None:
                super().__init__(*args, **kwargs)
                self.can_return_loss = returns_loss

            def compute_loss(
                self, model: Any, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None
            ) -> Any:
                embeddings = model({"a": inputs["input"]["a"]})["sentence_embedding"]
                loss = (embeddings.mean(-1) - inputs["label"]).pow(2).mean()
                return (loss, {}) if return_outputs else loss

        def collate(samples: Any) -> Any:
            a = torch.stack([sample["a"] for sample in samples])
            return {"input": {"a": a}, "label": a.sum(-1)}

        args = arguments(side, folder, eval_strategy="epoch", remove_unused_columns=False)
        trainer = Sentences(Encoder(), args, collate, rows("a"), rows("a", n=7))
        return trainer, trainer.train().metrics

    ours, theirs = on_both(tmp_path, script)

    assert_same(ours, theirs)
    assert ("eval_loss" in ours.history[-2]) == returns_loss


class SquaredErrors(footplate.Trainer):
    def compute_loss(self, model: Any, inputs: Any, return_outputs: bool = False, **kwargs: Any) -> Any:
        inputs = dict(inputs)
        targets = inputs.pop("wanted")
        outputs = model(**inputs)
        loss = (outputs.squeeze(-1) - targets).pow(2).mean()
        return (loss, {"logits": outputs}) if return_outputs else loss


def test_an_own_compute_loss_may_get_batches_that_forward_cannot_accept(tmp_path: Path) -> None:
    """Hugging Face's Trainer calls forward with such a batch, which raises an error."""
    data = [{**row, "wanted": row["a"].sum()} for row in rows("a")]
    args = arguments(footplate, tmp_path, remove_unused_columns=False)
    trainer = SquaredErrors(OneInput(), args, eval_dataset=data)

    assert trainer.label_names == []
    assert trainer.evaluate()["eval_loss"] > 0
    assert trainer.predict(rows("a")).predictions.shape == (14, 1)


def test_the_loss_that_fits_the_logits_of_a_model_is_also_evaluated(tmp_path: Path) -> None:
    """If forward takes no labels, the Trainer selects a loss that fits the logits, for training and for evaluation."""
    data = [{**row, "labels": row["a"].sum()} for row in rows("a")]
    trainer = footplate.Trainer(
        OneInput(),
        arguments(footplate, tmp_path, label_names=None),
        eval_dataset=data,
        compute_metrics=lambda prediction: {"same": bool(numpy.shape(prediction.label_ids) == (14,))},
    )

    result = trainer.evaluate()

    assert result["eval_loss"] > 0
    assert result["eval_same"] is True
