"""Tests that an override is called wherever the Trainer's own method would be called.

The expected calls are those of a Trainer in which every method is overridden, so that it takes no shortcut. The file
tests/trainer/test_methods.py compares the calls of such a Trainer with those of Hugging Face's.
"""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Iterable
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from footplate.trainer.arguments import TrainingArguments
from footplate.trainer.overrides import Overrides
from footplate.trainer.trainer import Trainer

DOCUMENTED = (
    "_save_checkpoint", "_prepare_inputs", "_prepare_input", "_get_train_sampler", "_get_eval_sampler", "_save",
    "_load_from_checkpoint", "_load_best_model", "_determine_best_metric", "_get_num_items_in_batch", "_evaluate",
    "_get_output_dir", "_get_learning_rate",
)  # fmt: skip
"""The private methods of Hugging Face's Trainer that libraries override."""
PUBLIC = tuple(name for name in dir(Trainer) if not name.startswith("_") and inspect.isroutine(getattr(Trainer, name)))
CALLED_BY_SCRIPTS = {
    "add_callback", "create_model_card", "create_optimizer_and_scheduler", "end", "get_cp_size", "get_learning_rates",
    "get_num_trainable_parameters", "get_optimizer_group", "get_sp_size", "get_tp_size", "hyperparameter_search",
    "init_hf_repo", "log_metrics", "metrics_format", "pop_callback", "push_to_hub", "remove_callback",
    "save_merged_model", "save_metrics", "save_state",
}  # fmt: skip
"""Methods that neither training, evaluation nor prediction calls, in both libraries."""
METHODS = sorted({*PUBLIC, *DOCUMENTED} - CALLED_BY_SCRIPTS)
WITHOUT_SAVING: dict[str, Any] = {"save_strategy": "no", "load_best_model_at_end": False}
STATIC = {"get_optimizer_cls_and_kwargs"}


class Point(nn.Module):
    """A model with a single parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))

    def num_parameters(self, exclude_embeddings: bool = False) -> int:
        return 1

    def forward(self, input_ids: Tensor, labels: Tensor) -> dict[str, Tensor]:
        logits = input_ids * self.weight
        return {"loss": (logits - labels).square().mean(), "logits": logits}


ROWS = [{"input_ids": [float(number)], "labels": [1.0]} for number in range(4)]


def overriding(names: Iterable[str], calls: Counter[str]) -> type[Trainer]:
    """Returns a subclass whose methods of these names record each call and then call the Trainer's method."""

    def override(name: str) -> Any:
        own = inspect.getattr_static(Trainer, name)
        plain = own.__func__ if isinstance(own, staticmethod) else own

        def method(*positional: Any, **kwargs: Any) -> Any:
            calls[name] += 1
            return plain(*positional, **kwargs)

        return staticmethod(method) if isinstance(own, staticmethod) else method

    return type("Own", (Trainer,), {name: override(name) for name in names})


def calls_of(names: Iterable[str], folder: Path, on: str = "a subclass", **arguments: Any) -> dict[str, Counter[str]]:
    """Counts the calls of these overrides while a Trainer is created, trains, evaluates and predicts."""
    calls: Counter[str] = Counter()
    args = TrainingArguments(
        str(folder), max_steps=2, per_device_train_batch_size=1, gradient_accumulation_steps=2,
        eval_strategy="steps", eval_steps=1, logging_steps=1, report_to="none", disable_tqdm=True, use_cpu=True,
        dataloader_pin_memory=False, **{"save_steps": 1, "load_best_model_at_end": True, **arguments},
    )  # fmt: skip
    own = overriding(names, calls)
    data: dict[str, Any] = {"train_dataset": ROWS, "eval_dataset": ROWS[:2]}
    kind: Any = own if on == "a subclass" else type("Plain", (Trainer,), {})
    trainer = kind(model_init=Point, args=args, **data)
    counted = {"make": Counter(calls)}
    if on == "its class":
        for name in names:
            setattr(kind, name, vars(own)[name])
    if on == "the object":
        for name in names:
            setattr(trainer, name, getattr(own, name).__get__(trainer))
    for path, run in (
        ("train", lambda: trainer.train()),
        ("evaluate", lambda: trainer.evaluate()),
        ("predict", lambda: trainer.predict(ROWS[:2])),
    ):
        before = Counter(calls)
        run()
        counted[path] = calls - before
    return counted


def only(names: Iterable[str], calls: dict[str, Counter[str]]) -> dict[str, dict[str, int]]:
    return {path: {name: counts[name] for name in names} for path, counts in calls.items()}


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Counter[str]]:
    return calls_of(METHODS, tmp_path_factory.mktemp("all"))


def test_the_code_paths_of_the_trainer_call_every_overridable_method(expected: dict[str, Counter[str]]) -> None:
    assert {name for calls in expected.values() for name in calls} == set(METHODS)


@pytest.mark.parametrize("name", METHODS)
def test_an_override_in_a_subclass_is_called_on_every_code_path(
    tmp_path: Path, expected: dict[str, Counter[str]], name: str
) -> None:
    assert only([name], calls_of([name], tmp_path)) == only([name], expected)


@pytest.mark.parametrize("name", sorted({*METHODS} - STATIC))
def test_a_method_assigned_to_a_trainer_object_is_called_on_every_code_path(
    tmp_path: Path, expected: dict[str, Counter[str]], name: str
) -> None:
    calls = calls_of([name], tmp_path, on="the object")
    assert only([name], calls | {"make": expected["make"]}) == only([name], expected)


@pytest.mark.parametrize("name", ["training_step", "compute_loss", "prediction_step"])
def test_a_method_assigned_to_the_class_of_a_trainer_object_is_called(
    tmp_path: Path, expected: dict[str, Counter[str]], name: str
) -> None:
    """Tests patch the class while an object exists, with `mock.patch.object(Trainer, "training_step")` for example."""
    calls = calls_of([name], tmp_path, on="its class")
    assert only([name], calls | {"make": expected["make"]}) == only([name], expected)


@pytest.fixture(scope="module")
def expected_without_saving(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Counter[str]]:
    return calls_of(METHODS, tmp_path_factory.mktemp("unsaved"), **WITHOUT_SAVING)


PAIRS = list(combinations(METHODS, 2))
EIGHTHS = [part if part == 0 else pytest.param(part, marks=pytest.mark.matrix) for part in range(8)]


@pytest.mark.parametrize("eighth", EIGHTHS)
def test_two_overrides_in_a_subclass_are_called_on_every_code_path(
    tmp_path: Path,
    expected: dict[str, Counter[str]],
    expected_without_saving: dict[str, Counter[str]],
    eighth: int,
) -> None:
    """Each case tests every eighth pair of methods. Every method is in each case."""
    for number, pair in enumerate(PAIRS[eighth :: len(EIGHTHS)]):
        if only(pair, expected_without_saving) == only(pair, expected):
            # A run without checkpoints takes half the time.
            assert only(pair, calls_of(pair, tmp_path, **WITHOUT_SAVING)) == only(pair, expected)
        else:
            assert only(pair, calls_of(pair, tmp_path / str(number))) == only(pair, expected)


@pytest.mark.parametrize("name", ["save_model", "_save", "_save_checkpoint"])
def test_an_override_of_a_save_method_is_called_with_save_in_background(
    tmp_path: Path, expected: dict[str, Counter[str]], name: str
) -> None:
    assert only([name], calls_of([name], tmp_path, save_in_background=True)) == only([name], expected)


def test_a_method_assigned_to_the_class_is_called(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some scripts replace a method of the Trainer class itself."""
    calls: Counter[str] = Counter()
    monkeypatch.setattr(Trainer, "compute_loss", overriding(["compute_loss"], calls).compute_loss)

    calls_of([], tmp_path)

    assert calls["compute_loss"] == 4 + 2 + 1 + 1


def test_looking_up_an_override_with_an_unknown_name_is_an_error() -> None:
    with pytest.raises(KeyError, match="no method compute_los"):
        _ = "compute_los" in Overrides(object(), {})
