"""Tests that imports stay cheap: a warm parent must remain able to fork, and the SDK must not import torch."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from footplate import trainer


def python(script: str) -> str:
    item = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
    process = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        check=True,
        timeout=600,
        env={**os.environ, **item},
    )
    return process.stdout.strip()


def test_preload_skips_modules_that_this_torch_does_not_have(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trainer, "NEWER", ("torch.profiler._of_another_version",))

    trainer.preload()


def test_a_preloaded_parent_has_one_thread_and_its_child_imports_no_torch_module() -> None:
    script = """
from footplate.trainer import preload
preload()
import os, sys, tempfile, torch
assert "torch._dynamo" in sys.modules and "footplate.trainer.trainer" in sys.modules
assert (len(os.listdir("/proc/self/task")), torch.cuda.is_initialized()) == (1, False)
before = {name for name in sys.modules if name.startswith(("torch", "accelerate", "numpy"))}
child = os.fork()
if child:
    sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
from footplate.components import toy
from footplate.trainer.arguments import TrainingArguments
from footplate.trainer.trainer import Trainer
with tempfile.TemporaryDirectory() as folder:
    args = TrainingArguments(folder, max_steps=2, dataloader_num_workers=1, disable_tqdm=True)
    Trainer(toy.mlp(), args, train_dataset=toy.regression()).train()
print(sorted({name for name in sys.modules if name.startswith(("torch", "accelerate", "numpy"))} - before), flush=True)
os._exit(0)
"""
    assert python(script).splitlines()[-1] == "[]"


def test_the_client_imports_no_torch_and_no_service_and_the_trainer_only_torch() -> None:
    """Accelerate's import takes a tenth of torch's time. It is imported when a Trainer is created."""
    script = """
import sys
from footplate import AsyncClient, Client, Job, JobFailed
import footplate.cli, footplate.contract.components, footplate.contract.spec, footplate.trainer
assert "Trainer" in dir(footplate)

def imported(*names):
    return sorted({name.partition(".")[0] for name in sys.modules}.intersection(names))

heavy = "accelerate", "datasets", "peft", "pyarrow", "tensorboard", "transformers"
print(imported(*heavy, "torch", "numpy", "sqlalchemy", "redis", "celery", "fastapi", "service", "worker"))
from footplate import Trainer, TrainingArguments, TrainerCallback
print(imported(*heavy, "yaml"))
for name in footplate.__all__:
    assert getattr(footplate, name) is not None
from footplate.contract.arguments import TrainingArguments as Plain
assert issubclass(TrainingArguments, Plain)
footplate.note("outside a job it does nothing")
try:
    footplate.NoSuchThing
except AttributeError as error:
    print(error)
"""
    assert python(script).splitlines() == ["[]", "[]", "module 'footplate' has no attribute 'NoSuchThing'"]
