"""The snippets of the guide about several processes train, started by the guide's own command."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from tests.support.pages import paste, snippets
from tests.trainer.distributed import scenarios

PAGE = "guides/strategies.md"
BEFORE = """
import torch
from accelerate import ParallelismConfig
from footplate import Trainer, TrainingArguments
from transformers import AutoModelForCausalLM

path = "llama"
rows = [{"input_ids": torch.arange(8) + row, "labels": torch.arange(8) + row} for row in range(4)]
model = AutoModelForCausalLM.from_pretrained(path, attn_implementation="sdpa")
"""
# One text, and so one write: the lines of two processes could mix otherwise.
AFTER = 'trainer.train()\nprint(f"trained {trainer.state.global_step}\\n", end="", flush=True)\n'


@pytest.mark.matrix
@pytest.mark.parametrize("way", [0, 1], ids=["tensor parallel", "context parallel"])
def test_the_code_of_the_guide_trains_if_started_with_torchrun(way: int, tmp_path: Path) -> None:
    scenarios.a_llama(tmp_path)
    code = snippets(PAGE, "python")[way].replace("…", "train_dataset=rows").replace('"out"', '"out", use_cpu=True')
    (tmp_path / "train.py").write_text(BEFORE + code + AFTER)
    start = next(line for line in snippets(PAGE, "")[0].splitlines() if "--nnodes" not in line)
    command = start.replace("--nproc-per-node 4", "--nproc-per-node 2").replace(
        "torchrun", "python -m torch.distributed.run", 1
    )

    output = paste(
        [command], tmp_path, "", PATH=os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    )

    assert output.count("trained 3") == 2, "both processes train three epochs of one step"
