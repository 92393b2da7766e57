"""Tests a Trainer subclass from a bundle, and the variables and packages that its code sees on a node."""

from __future__ import annotations

import re

from tests.examples.conftest import Examples
from tests.support.system import JSON

SAYS = """
import os
import torch
from footplate import TrainerCallback

TOKEN = os.environ.get("EXAMPLE_TOKEN", "")

class Say(TrainerCallback):
    def on_train_begin(self, args, state, control, **kwargs):
        print("flag", os.environ.get("EXAMPLE_FLAG"), "token", TOKEN, len(TOKEN), flush=True)
        print("leaks", [name for name in os.environ if "SECRET" in name or name.startswith("FOOTPLATE")], flush=True)

class Fail(TrainerCallback):
    def on_train_begin(self, args, state, control, **kwargs):
        raise ValueError(f"the token {TOKEN} is no good")

class NoTrainer:
    pass
"""
TOY: JSON = {"model": "toy/mlp", "data": "toy/regression", "training": {"max_steps": 2, "save_strategy": "no"}}


OUR_NAMES = {
    "contract/__init__.py": "WIDTH = 3",
    "service/model.py": """
from contract import WIDTH
from torch import nn

def tiny():
    return nn.Linear(WIDTH, 1)
""",
    "worker/__init__.py": """
import torch
from footplate import Trainer
from service.model import tiny

class Mine(Trainer):
    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        loss = model(inputs["x"]).square().mean()
        return (loss, {}) if return_outputs else loss

def rows():
    return [{"x": torch.ones(3) * n} for n in range(8)]
""",
    "script.py": """
from footplate import TrainingArguments
from worker import Mine, rows, tiny

arguments = TrainingArguments("out", max_steps=2, remove_unused_columns=False)
print("trained", Mine(tiny(), arguments, train_dataset=rows()).train().global_step)
""",
}


def test_a_trainer_subclass_in_a_bundle_trains(examples: Examples) -> None:
    job = examples.system.submit(examples.with_code("overrides/job.json"))
    outcome = examples.ended(job)

    assert outcome["state"] == "succeeded", outcome
    losses = examples.system.losses(job)
    # Each logged loss is a sum of two: the loss of the rows and the loss of the adversarially changed rows.
    assert losses[5] > losses[30]
    assert outcome["metrics"]["eval_loss"] < 0.6 * losses[5]


def test_variables_and_secrets_reach_only_the_job_that_names_them(examples: Examples) -> None:
    code = {"bundle": examples.system.upload({"my_code.py": SAYS})}
    spec = {**TOY, "code": code, "env": {"EXAMPLE_FLAG": "up"}, "secrets": ["EXAMPLE_TOKEN"]}
    saying, failing, other = (
        examples.system.submit(spec, callbacks=["my_code:Say"]),
        examples.system.submit(spec, callbacks=["my_code:Fail"]),
        examples.system.submit({**TOY, "code": code}, callbacks=["my_code:Say"]),
    )
    assert examples.ended(saying)["state"] == "succeeded"

    lines = "\n".join(str(event["data"]) for event in examples.system.events(saying) if event["kind"] == "line")
    assert "flag up token *** 15" in lines
    assert "leaks []" in lines
    error = examples.ended(failing)["error"]
    assert re.fullmatch(r"my_code\.py, line \d+: ValueError: the token \*\*\* is no good", error["message"])
    assert "hunter2" not in str([error, examples.system.events(failing)])
    assert examples.ended(other)["state"] == "succeeded"
    others = "\n".join(str(event["data"]) for event in examples.system.events(other) if event["kind"] == "line")
    assert "flag None token  0" in others


def test_code_may_have_packages_named_worker_service_and_contract(examples: Examples) -> None:
    code = {"bundle": examples.system.upload(OUR_NAMES)}
    script = examples.system.submit({"loop": {"script": "script.py"}, "code": code})
    spec = {"code": code, "trainer": "worker:Mine", "model": "service.model:tiny", "data": "worker:rows"}
    training = {"max_steps": 2, "save_strategy": "no", "remove_unused_columns": False}
    parts = examples.system.submit({**spec, "training": training})

    for job in (script, parts):
        outcome = examples.ended(job)
        assert outcome["state"] == "succeeded", outcome["error"]
    output = [event["data"] for event in examples.system.events(script) if event["kind"] == "line"]
    assert "trained 2" in str(output)
