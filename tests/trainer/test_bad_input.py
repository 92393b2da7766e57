"""Tests that wrong input is reported clearly, before the first step if possible."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import IterableDataset

from footplate.components import toy
from footplate.contract.errors import DatasetError
from footplate.contract.host.outcome import of_exception
from footplate.trainer.arguments import TrainingArguments
from footplate.trainer.collators import DataCollatorWithPadding
from footplate.trainer.evaluation import OwnEvaluation
from footplate.trainer.state import TrainerState
from footplate.trainer.trainer import Trainer
from tests.support.training import Events
from tests.trainer.parts import tokenizers


def a_trainer(folder: Path, model: Any = None, **values: Any) -> Trainer:
    options = {name: values.pop(name) for name in ("callbacks", "compute_metrics", "data_collator") if name in values}
    data, evaluated = values.pop("data", None), values.pop("evaluated", None)
    settings = {"max_steps": 2, "save_strategy": "no", "report_to": "none", "disable_tqdm": True, "use_cpu": True}
    args = TrainingArguments(str(folder), **{**settings, **values})
    return Trainer(
        model or toy.mlp(), args, train_dataset=toy.regression(n=16) if data is None else data, eval_dataset=evaluated,
        **options,
    )  # fmt: skip


class Stream(IterableDataset[Any]):
    """A stream that yields its rows in the first pass only, like a generator."""

    def __init__(self, n: int) -> None:
        self.rows = [toy.regression(n=16)[index] for index in range(n)]

    def __iter__(self) -> Iterator[Any]:
        rows, self.rows = self.rows, []
        yield from rows


class Frame(list[Any]):
    """Looks like a DataFrame of pandas, in which `[0]` would select a column."""

    iloc = loc = None


class Odd(nn.Module):
    def __init__(self, loss: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.net, self.loss = nn.Linear(8, 4), loss

    def forward(self, x: Tensor, labels: Tensor | None = None) -> dict[str, Any]:
        return {"loss": self.loss(self.net(x).sum())}


@pytest.mark.parametrize("callback", ["early_stopping", 5, lambda: None, str])
def test_a_callback_without_any_event_method_is_refused(tmp_path: Path, callback: Any) -> None:
    with pytest.raises(TypeError, match=r"no event.*TrainerCallback"):
        a_trainer(tmp_path, callbacks=[callback])


def test_a_callback_that_is_not_in_a_list_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="callbacks is a Events: pass a list of callbacks"):
        a_trainer(tmp_path, callbacks=Events())


@pytest.mark.parametrize("answer", [5, False, {"should_log": True}])
def test_a_callback_that_returns_anything_but_a_control_or_none_is_refused(tmp_path: Path, answer: Any) -> None:
    class Counts:
        def on_step_end(self, *args: Any, **kwargs: Any) -> Any:
            return answer

    with pytest.raises(TypeError, match=r"Counts.on_step_end returned "):
        a_trainer(tmp_path, callbacks=[Counts()]).train()


def test_an_object_of_any_class_with_event_methods_is_a_valid_callback(tmp_path: Path) -> None:
    class Counts:
        steps = 0

        def on_step_end(self, *args: Any, **kwargs: Any) -> None:
            self.steps += 1

    counts = Counts()

    a_trainer(tmp_path, callbacks=[counts]).train()

    assert counts.steps == 2


@pytest.mark.parametrize(
    ("model", "message"),
    [("bert-base-uncased", "the model is a str"), (nn.Linear, "the model is the class Linear")],
)
def test_a_model_of_the_wrong_type_is_refused_with_its_type(tmp_path: Path, model: Any, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        a_trainer(tmp_path, model)


def test_a_model_without_trainable_parameters_is_refused_before_the_first_step(tmp_path: Path) -> None:
    model = toy.mlp()
    model.requires_grad_(False)

    with pytest.raises(ValueError, match="no parameter of the model, a Mlp, requires a gradient"):
        a_trainer(tmp_path, model).train()


@pytest.mark.parametrize(
    ("loss", "error", "message"),
    [
        (Tensor.item, TypeError, "the model's loss is a float"),
        (Tensor.detach, ValueError, "the loss does not depend on any parameter that is trained"),
    ],
)
def test_a_loss_without_gradient_is_refused(tmp_path: Path, loss: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        a_trainer(tmp_path, Odd(loss)).train()


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"x": [1.0], "labels": [0]}, "train_dataset is a dict of x, labels: pass a list of samples"),
        ((row for row in ()), "train_dataset is a generator: pass a list of samples"),
        (Frame(), r"train_dataset is a Frame: pass a list of samples, such as its to_dict\('records'\)"),
    ],
)
def test_training_data_of_the_wrong_type_is_refused_by_the_constructor(tmp_path: Path, data: Any, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        a_trainer(tmp_path, data=data)


def test_any_object_with_length_and_integer_index_is_a_dataset(tmp_path: Path) -> None:
    rows = toy.regression(n=16)

    assert a_trainer(tmp_path, data={index: rows[index] for index in range(16)}).train().global_step == 2


def test_evaluation_and_prediction_data_of_the_wrong_type_is_refused(tmp_path: Path) -> None:
    trainer = a_trainer(tmp_path, evaluated={"a": toy.regression(n=8), "b": toy.regression(n=8)})

    with pytest.raises(TypeError, match="the data is a generator"):
        trainer.predict(row for row in ())
    with pytest.raises(KeyError, match="eval_dataset has no set 'c': its sets are a, b"):
        trainer.evaluate("c")
    with pytest.raises(TypeError, match=r"eval_dataset\['b'\] is a generator"):
        a_trainer(tmp_path, evaluated={"a": [1], "b": (row for row in ())}, eval_strategy="epoch")


def test_an_optimizer_of_another_model_is_refused(tmp_path: Path) -> None:
    args = TrainingArguments(str(tmp_path), report_to="none", use_cpu=True)
    other = torch.optim.SGD(toy.mlp().parameters(), lr=0.1)

    with pytest.raises(ValueError, match="has no parameter of this model"):
        Trainer(toy.mlp(), args, train_dataset=toy.regression(n=16), optimizers=(other, None))


def test_training_on_an_empty_stream_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match="the training data is a stream that gave no batch"):
        a_trainer(tmp_path, data=Stream(0)).train()


def test_an_exhausted_stream_logs_the_step_at_which_training_ends(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    trainer = a_trainer(tmp_path, data=Stream(16), max_steps=5)

    assert trainer.train().global_step == 2
    assert "the stream has no more batches: training ends at step 2 of 5" in caplog.text


@pytest.mark.parametrize("evaluated", [[], {"a": toy.regression(n=8), "b": []}])
def test_an_empty_evaluation_set_is_refused_before_the_first_step(tmp_path: Path, evaluated: Any) -> None:
    with pytest.raises(DatasetError, match="is to be evaluated, but is empty"):
        a_trainer(tmp_path, evaluated=evaluated, eval_strategy="epoch")


def test_compute_metrics_that_does_not_return_a_dict_is_refused(tmp_path: Path) -> None:
    trainer = a_trainer(tmp_path, evaluated=toy.regression(n=8), compute_metrics=lambda prediction: 0.5)

    with pytest.raises(TypeError, match="compute_metrics returned a float"):
        trainer.evaluate()


class Exam(OwnEvaluation):
    """An evaluation set that computes a metric of its own, as the tasks of lm-eval do."""

    def __len__(self) -> int:
        return 1

    def __getitem__(self, index: int) -> Any:
        return {}

    def check(self, trainer: Trainer) -> None: ...

    def metrics(self, trainer: Trainer) -> dict[str, float]:
        return {"lm_eval/exam/acc": 0.5}


def test_a_metric_of_an_evaluation_set_of_its_own_selects_the_best_model(tmp_path: Path) -> None:
    best = {"eval_strategy": "epoch", "metric_for_best_model": "lm_eval/exam/acc", "num_train_epochs": 1}

    trainer = a_trainer(tmp_path, evaluated=Exam(), **best)
    trainer.train()

    assert trainer.state.best_metric == 0.5


@pytest.mark.parametrize("value", ["good", [0.5, 0.7], None])
def test_a_best_model_metric_that_is_not_a_number_is_refused(tmp_path: Path, value: Any) -> None:
    more = {
        "eval_strategy": "epoch",
        "metric_for_best_model": "mine",
        "compute_metrics": lambda prediction: {"mine": value},
    }

    with pytest.raises(TypeError, match=r"metric_for_best_model.*'eval_mine'.*its value"):
        a_trainer(tmp_path, evaluated=toy.regression(n=8), **more).train()


def test_an_evaluation_without_a_batch_is_named_if_its_metric_is_needed(tmp_path: Path) -> None:
    more = {
        "eval_strategy": "epoch",
        "metric_for_best_model": "loss",
        "dataloader_drop_last": True,
        "per_device_eval_batch_size": 16,
    }

    with pytest.raises(KeyError, match="because eval_dataset gave no batch"):
        a_trainer(tmp_path, evaluated=toy.regression(n=8), **more).train()


def test_arrays_returned_by_compute_metrics_are_stored_in_checkpoints(tmp_path: Path) -> None:
    result = {"each": numpy.arange(3), "one": numpy.array(2), "tensor": torch.ones(2)}
    more = {"eval_strategy": "epoch", "save_strategy": "epoch", "num_train_epochs": 1, "max_steps": -1}
    trainer = a_trainer(
        tmp_path, evaluated=toy.regression(n=8), compute_metrics=lambda prediction: dict(result), **more
    )

    trainer.train()
    trainer.save_metrics("eval", trainer.evaluate())

    state = TrainerState.load_from_json(next(tmp_path.glob("checkpoint-*")) / "trainer_state.json")
    report = next(row for row in state.log_history if "eval_each" in row)
    assert (report["eval_each"], report["eval_one"], report["eval_tensor"]) == ([0, 1, 2], 2, [1.0, 1.0])
    assert isinstance(trainer.evaluate()["eval_each"], numpy.ndarray)


def test_intervals_that_are_not_set_have_the_defaults_of_transformers(tmp_path: Path) -> None:
    """Callbacks divide by these intervals, so they are never zero."""
    trainer = a_trainer(tmp_path)
    trainer.train()

    assert (trainer.state.eval_steps, trainer.state.save_steps) == (500, 500)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"label": 1}, "the samples have label, but not input_ids: tokenize"),
        ({"input_ids": [5, 6], "label": "pos"}, "label holds texts such as 'pos'"),
    ],
)
def test_rows_that_cannot_be_padded_are_refused_with_the_reason(row: Any, message: str) -> None:
    with pytest.raises(DatasetError, match=message):
        DataCollatorWithPadding(tokenizers.bert())([row, row])


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        ([1] * 9, "a sample has 9 tokens, and the model has positions for 8"),
        ([1, 40], "input_ids has 40 at place .*, and the model has an embedding for 32 tokens"),
    ],
)
def test_samples_too_long_or_with_unknown_token_ids_are_refused(tmp_path: Path, ids: list[int], message: str) -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig(
        vocab_size=32, hidden_size=8, num_hidden_layers=1, num_attention_heads=1, intermediate_size=8,
        max_position_embeddings=8,
    )  # fmt: skip
    rows = [{"input_ids": torch.tensor(ids), "labels": 1} for _ in range(16)]

    with pytest.raises(DatasetError, match=message):
        a_trainer(tmp_path, transformers.BertForSequenceClassification(config), data=rows).train()


def test_columns_that_forward_does_not_accept_are_refused_with_its_parameters(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match=r"forward takes x, labels .*; the batch has labels, .* rows with .*input_ids"):
        a_trainer(tmp_path, data=toy.text(n=16)).train()


def test_a_type_error_raised_inside_forward_is_not_changed(tmp_path: Path) -> None:
    class Adds(nn.Linear):
        def forward(self, x: Tensor, labels: Tensor) -> Tensor:
            return x + "1"  # type: ignore[operator]

    with pytest.raises(TypeError, match="unsupported operand"):
        a_trainer(tmp_path, model=Adds(8, 1)).train()


class NeedsLabels(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 1)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        return {"logits": self.linear(x)}


def test_missing_labels_get_a_hint_to_rename_their_column(tmp_path: Path) -> None:
    rows = [{"x": torch.zeros(8), "verdict": 1.0} for _ in range(16)]

    with pytest.raises(ValueError, match=r"The rows have x, verdict\. .*\"use\": \"rename\""):
        a_trainer(tmp_path, model=NeedsLabels(), data=rows).train()


class Compares(nn.Module):
    """A model that applies a given loss to its output and the labels."""

    def __init__(self, loss: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.net, self.loss = nn.Linear(4, 2), loss

    def forward(self, x: Tensor, labels: Tensor) -> dict[str, Any]:
        return {"loss": self.loss(self.net(x), labels)}


SUBTRACT: Any = lambda logits, labels: (logits - labels).sum()  # noqa: E731
LINEAR = "net is Linear(in_features=4, out_features=2, bias=True)"


@pytest.mark.parametrize(
    ("loss", "row", "says"),
    [
        (
            SUBTRACT,
            {"x": torch.ones(3), "labels": torch.ones(2)},
            ["x (2, 3) torch.float32", LINEAR, "got (2, 3)", "model.args"],
        ),
        (
            SUBTRACT,
            {"x": torch.ones(4), "labels": torch.ones(3)},
            ["labels (2, 3) torch.float32", "column of the labels"],
        ),
        (
            nn.BCEWithLogitsLoss(),
            {"x": torch.ones(4), "labels": 1.0},
            ["labels (2,) torch.float32", "column of the labels"],
        ),
        (
            SUBTRACT,
            {"x": torch.ones(4, dtype=torch.long), "labels": 1.0},
            ["x (2, 4) torch.int64", LINEAR, "decimal point"],
        ),
    ],
)
@pytest.mark.parametrize("does", ["train", "evaluate"])
def test_an_error_about_shapes_gets_a_hint_with_the_shapes_of_the_batch(
    tmp_path: Path, does: str, loss: Any, row: dict[str, Any], says: list[str]
) -> None:
    sizes = {"per_device_train_batch_size": 2, "per_device_eval_batch_size": 2}
    trainer = a_trainer(tmp_path, Compares(loss), data=[row] * 4, evaluated=[row] * 4, **sizes)

    with pytest.raises((RuntimeError, ValueError)) as failed:
        getattr(trainer, does)()

    hint = of_exception(failed.value).error.hint or ""
    assert [text for text in says if text not in hint] == [], hint
    assert hint in "".join(failed.value.__notes__), "the traceback must show the hint to the user of a script"


def test_an_error_that_is_not_about_the_batch_gets_no_hint(tmp_path: Path) -> None:
    def fail(logits: Tensor, labels: Tensor) -> Tensor:
        raise RuntimeError("my own trouble")

    trainer = a_trainer(tmp_path, Compares(fail), data=[{"x": torch.ones(4), "labels": 1.0}] * 4)
    with pytest.raises(RuntimeError, match="my own trouble") as failed:
        trainer.train()

    assert of_exception(failed.value).error.hint is None


def test_a_label_out_of_range_in_an_evaluation_is_named(tmp_path: Path) -> None:
    rows = [{"x": torch.ones(4), "labels": 7}] * 4
    trainer = a_trainer(tmp_path, Compares(nn.functional.cross_entropy), evaluated=rows)

    with pytest.raises(DatasetError, match="labels has 7 at sample 0") as failed:
        trainer.evaluate()

    assert "num_labels" in (failed.value.hint or "")
