"""Typical mistakes in specs. The hint of each says what to type next."""

from __future__ import annotations

import json
from typing import Any

import pytest

from footplate.contract.body import read_json
from footplate.contract.components import GROUPS, Catalogue, Described, names
from footplate.contract.errors import InvalidSpec, Problem
from footplate.contract.next_step import with_next_steps
from footplate.contract.spec import JobSpec
from tests.contract.specs import TOY


def described(group: str, name: str) -> Described:
    properties: dict[str, Any] = {argument: {} for argument in ARGUMENTS.get(name, ())}
    return Described(name=name, group=group, args={"properties": properties, "additionalProperties": False})


ARGUMENTS = {
    "toy/mlp": ["hidden"], "toy/regression": ["n"], "early_stopping": ["patience"], "files/csv": ["paths", "delimiter"],
    "hf/causal-lm": ["path", "peft"], "trl/sft": ["packing"],
}  # fmt: skip
METRICS = [Described(name=name, group="metrics") for name in ("accuracy", "f1", "mcc")]
CATALOGUE = Catalogue.of([*(described(group, name) for group in GROUPS for name in names(group)), *METRICS])
SFT = {"model": {"use": "hf/causal-lm"}, "data": "data://chat.jsonl", "trainer": "trl/sft"}


def problems_of(raw: str | bytes) -> dict[str, Problem]:
    """Returns the problems with which POST /jobs refuses this body, by their pointers."""
    try:
        JobSpec.parse(read_json(raw.encode() if isinstance(raw, str) else raw), CATALOGUE)
        problems = []
    except InvalidSpec as invalid:
        problems = invalid.problems
    return {problem.pointer: problem for problem in problems}


@pytest.mark.parametrize(
    ("change", "pointer", "hint"),
    [
        # Names that other libraries use for fields of a spec
        ({"epochs": 3}, "/epochs", "training.num_train_epochs"),
        ({"hyperparameters": {}}, "/hyperparameters", "training"),
        ({"model_name_or_path": "gpt2"}, "/model_name_or_path", '"path": "models://NAME"'),
        ({"tokenizer": "gpt2"}, "/tokenizer", "hf/tokenizer"),
        ({"eval_dataset": "x"}, "/eval_dataset", "data.eval"),
        ({"data": {"train": "toy/regression", "validation": "x"}}, "/data/validation", "data.eval"),
        ({"data": {"path": "data://a.csv"}}, "/data/path", '"paths"'),
        ({"gpus": 1}, "/gpus", "resources.gpus_per_node"),
        ({"retries": 3}, "/retries", '"max_attempts": 3'),
        ({"script": "train.py"}, "/script", "--code DIR"),
        ({"spec": TOY}, "/spec", "send only the object that this field holds"),
        ({"training": {"num_labels": 2}}, "/training/num_labels", "hf/sequence-classification"),
        ({"training": {"max_length": 9}}, "/training/max_length", "tokenize"),
        ({"training": {"lr": 1}}, "/training/lr", "'learning_rate'"),
        ({**SFT, "training": {"lora_r": 8}}, "/training/lora_r", '"peft": {"r": 8}'),
        ({"code": {"path": "src"}}, "/code/path", "--code DIR"),
        ({"training": {"output_dir": "out"}}, "/training/output_dir", "leave it out"),
        # Names that other libraries use for arguments and components
        ({"model": {"use": "hf/causal-lm", "args": {"model_name": "x"}}}, "/model/args/model_name", "'path'"),
        ({"model": {"use": "hf/causal-lm", "args": {"lora": {}}}}, "/model/args/lora", "'peft'"),
        ({"model": {"use": "hf/causal-lm", "path": "x"}}, "/model/path", '{"use": "hf/causal-lm", "args": {"path"'),
        ({"model": {"path": "x"}}, "/model/use", '"use": "hf/causal-lm"'),
        ({"data": {"use": "files/csv", "args": {"sep": ";"}}}, "/data/args/sep", "'delimiter'"),
        ({"data": {"use": "toy/regression", "args": {"rows": 9}}}, "/data/args/rows", "'n'"),
        ({"data": {"train": {"path": "data://a.jsonl"}}}, "/data/train/path", '"train": "data://rows.jsonl"'),
        ({"optimizers": [{"id": "a", "use": "adam"}]}, "/optimizers/0/params", '"params": [".*"]'),
        ({"optimizers": [{"id": "a", "use": "adam", "params": ["a"], "lr": 1}]}, "/optimizers/0/lr", '"args": {"lr"'),
        ({"model": "AutoModelForCausalLM"}, "/model", "hf/causal-lm"),
        ({"model": "transformers.BertForTokenClassification"}, "/model", "hf/token-classification"),
        ({"model": "/home/me/bert"}, "/model", "a path is an argument"),
        ({"model": {"use": "hf/causal-lm", "args": {"path": "gpt2"}}}, "/model/args/path", "hub://NAME"),
        ({"collator": "DataCollatorWithPadding"}, "/collator", '"padding"'),
        ({"trainer": "SFTTrainer"}, "/trainer", '"trl/sft"'),
        ({"metrics": ["acc"]}, "/metrics/0", '"accuracy"'),
        ({"metrics": ["sklearn.metrics.f1_score"]}, "/metrics/0", '"f1"'),
        ({"metrics": ["F1"]}, "/metrics/0", "'f1'"),
        ({"resources": {"strategy": "DDP"}}, "/resources/strategy", "'ddp'"),
        ({"data": "imdb"}, "/data", "hub://datasets/imdb"),
        ({"data": "data://rows.json"}, "/data", "jq -c"),
        ({"data": "data://rows"}, "/data", '"paths": ["data://rows"]'),
        ({"loop": "train.py"}, "/loop", '{"script": "train.py"}'),
        ({"loop": "train:main"}, "/loop", "--code DIR"),
        # Habits of YAML, Python and command lines
        ({"training": {"learning_rate": "1e-3"}}, "/training/learning_rate", "write 0.001, without quotes"),
        ({"training": {"bf16": "yes"}}, "/training/bf16", "write true"),
        ({"training": {"bf16": 0}}, "/training/bf16", "write false"),
        ({"training": {"max_steps": 10.5}}, "/training/max_steps", "write 10 or 11"),
        ({"training": []}, "/training", '{"learning_rate": 1e-3'),
        ({"name": 5}, "/name", "in quotes"),
        ({"priority": "high"}, "/priority", "for example 10"),
        ({"metrics": "accuracy"}, "/metrics", 'write ["accuracy"]'),
        ({"report_to": "wandb"}, "/report_to", 'write ["wandb"]'),
        ({"model": ["toy/mlp"]}, "/model", 'write "toy/mlp", without brackets'),
        ({"callbacks": {"ema": {}}}, "/callbacks", 'write [{"use": "ema", "args": {}}]'),
        ({"secrets": {"KEY": "value"}}, "/secrets", "only names"),
        ({"resources": {"gpu": 1}}, "/resources/gpu", "gpus_per_node"),
        ({"model": {"use": "toy/mlp", "args": [1]}}, "/model/args", '{"NAME": value}'),
        ({"env": {"LD_PRELOAD": 1}}, "/env/LD_PRELOAD", "in quotes"),
    ],
)  # fmt: skip
def test_the_hint_for_a_common_mistake_shows_what_to_type(change: dict[str, Any], pointer: str, hint: str) -> None:
    problem = problems_of(json.dumps({**TOY, **change}))[pointer]

    assert hint in (problem.hint or ""), problem


@pytest.mark.parametrize(
    ("raw", "hint"),
    [
        ('{"model": "toy/mlp",}', "remove the comma"),
        ("{'model': 'toy/mlp'}", "double quotes"),
        ('{"model": "toy/mlp" // mine\n}', "no comments"),
        ('{"training": {"bf16": True}}', "write true"),
        ('{"model": None}', "write null"),
        ("model: toy/mlp\n", "submit reads YAML"),
        ("\ufeff{}", "byte order mark"),
        ('{"model" "toy/mlp"}', "compare the quotes"),
    ],
)
def test_nearly_valid_json_is_refused_with_the_fix_as_a_hint(raw: str, hint: str) -> None:
    assert hint in (problems_of(raw)[""].hint or "")


def test_a_best_model_metric_that_is_not_evaluated_is_refused() -> None:
    def problems(best: str = "accuracy", **more: Any) -> dict[str, Problem]:
        training = {"eval_strategy": "epoch", "metric_for_best_model": best}
        data = {"train": "toy/regression", "split": {"test_size": 0.1}}
        return problems_of(json.dumps({**TOY, "data": data, "training": training, **more}))

    assert "list the metric" in (problems()["/training/metric_for_best_model"].hint or "")
    assert problems(metrics=["accuracy"]) == {}
    found_problems = problems(metrics=["f1", "mse"], best="f1_weighted")
    assert "use one of f1, loss" in (found_problems["/training/metric_for_best_model"].hint or "")
    weighted = problems(metrics=[{"use": "f1", "args": {"average": "weighted"}}], best="eval_f1_weighted")
    assert "/training/metric_for_best_model" not in weighted
    assert "/training/metric_for_best_model" not in problems(metrics=["torchmetrics/F1Score"], best="f1_score")


def test_a_best_model_metric_names_its_evaluation_set_if_there_are_several() -> None:
    data = {"train": "toy/regression", "eval": {"a": "toy/regression", "b": "toy/regression"}}
    training = {"eval_strategy": "epoch", "metric_for_best_model": "loss"}

    [problem] = problems_of(json.dumps({**TOY, "data": data, "training": training})).values()

    assert '"a_loss"' in (problem.hint or "")


def test_a_metric_of_an_lm_eval_task_can_select_the_best_model() -> None:
    data = {"train": "files/jsonl", "eval": {"use": "lm-eval", "args": {"task": "gsm8k"}}}
    training = {"eval_strategy": "epoch", "metric_for_best_model": "lm_eval/gsm8k/exact_match/strict-match"}

    problems = problems_of(json.dumps({"model": "hf/causal-lm", "data": data, "training": training}))

    assert "/training/metric_for_best_model" not in problems


def test_a_text_that_may_be_a_secret_is_not_repeated_in_a_hint() -> None:
    body = {
        **TOY,
        "tags": "hunter2",
        "env": ["hunter2"],
        "secrets": "hunter2",
        "code": ["hunter2"],
        "retry": ["hunter2"],
    }

    assert "hunter2" not in str(problems_of(json.dumps(body)))


def test_a_hint_follows_from_the_code_of_a_problem_and_not_from_its_text() -> None:
    problem = Problem("/priority", "wrong_type", "any sentence", expected=("a whole number",))

    assert with_next_steps([problem], {"priority": "5"})[0].hint == "write 5, without quotes"
    assert problem.as_dict() == {"pointer": "/priority", "code": "wrong_type", "detail": "any sentence"}
