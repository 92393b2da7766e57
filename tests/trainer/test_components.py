"""The arguments of all built-in components, the toy models and datasets, and files of JSON lines."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from footplate.components import files, toy
from footplate.contract.components import GROUPS
from footplate.runtime.build import load, registered
from footplate.runtime.catalogue import arguments_schema
from footplate.trainer.arguments import TrainingArguments
from footplate.trainer.trainer import Trainer, set_seed


@pytest.mark.parametrize(
    ("model", "data", "rate"),
    [(toy.mlp, toy.regression, 1e-2), (toy.mlp, toy.classification, 1e-2), (toy.gpt, toy.text, 3e-3)],
)
def test_toy_models_learn_their_toy_data_with_default_arguments(
    tmp_path: Path, model: Callable[[], Any], data: Callable[..., Any], rate: float
) -> None:
    set_seed(0)
    args = TrainingArguments(
        str(tmp_path), max_steps=60, learning_rate=rate, logging_steps=10, save_strategy="no", disable_tqdm=True
    )
    trainer = Trainer(model(), args, train_dataset=data(), eval_dataset=data(n=64, seed=1))
    before = trainer.evaluate()["eval_loss"]

    trainer.train()

    assert trainer.evaluate()["eval_loss"] < 0.8 * before


@pytest.mark.parametrize("group", GROUPS)
def test_every_argument_of_a_component_has_a_description(group: str) -> None:
    assert registered(group)
    for name in registered(group):
        component = load(group, name)
        assert component.__doc__, f"{name} has no description"
        for argument, schema in arguments_schema(component)["properties"].items():
            assert schema.get("description"), f"{name} does not say what {argument} is"


def test_toy_data_depends_only_on_its_seed() -> None:
    assert toy.regression(seed=3)[5]["x"].equal(toy.regression(seed=3)[5]["x"])
    assert not toy.regression(seed=3)[5]["x"].equal(toy.regression(seed=4)[5]["x"])
    assert toy.text(seed=3)[5]["input_ids"].equal(toy.text(seed=3)[5]["input_ids"])


def test_rows_of_several_files_are_indexed_consecutively(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"x": 1}\n\n{"x": 2}\n')
    (tmp_path / "b.jsonl").write_text('{"x": 3}')

    rows = files.jsonl(paths=[str(tmp_path / "a.jsonl"), str(tmp_path / "b.jsonl")])

    assert len(rows) == 3
    assert [rows[item]["x"] for item in (2, 0, 1, -1)] == [3, 1, 2, 3]
    assert pickle.loads(pickle.dumps(rows))[1] == {"x": 2}
    with pytest.raises(IndexError):
        rows[3]
