"""A program that trains TRL's jobs with one strategy, each to the end and again from the checkpoint of step 2.

`on_two_processes.py FOLDER single` writes the models and rows, and trains in one process with the same batches. With
another strategy, torchrun starts two processes. Each strategy writes FOLDER/STRATEGY.json.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import tempfile
import traceback
from importlib import import_module
from pathlib import Path
from typing import Any

from tests.drop_in import libraries

import torch  # isort: skip  # libraries sets the number of threads first

LORA = {"peft": {"r": 4, "target_modules": ["q_proj", "v_proj"]}}
WHOLE_MODEL = ("sft", "reward", "grpo", "rloo")
SECOND_MODEL = ("dpo", "kto")
"""Trainers that need a second model if the first one has no adapter. FSDP and DeepSpeed refuse a second model."""
ADAPTER = ("sft", "dpo", "kto", "reward", "grpo", "rloo")
STRATEGIES: dict[str, Any] = {
    "single": "single",
    "ddp": "ddp",
    "fsdp": "fsdp",
    "zero2": {"type": "deepspeed", "config": {"zero_optimization": {"stage": 2}}},
    "zero3": {"type": "deepspeed", "config": {"zero_optimization": {"stage": 3}}},
}
WORLD = int(os.environ.get("WORLD_SIZE", "1"))
RANK = int(os.environ.get("RANK", "0"))
SAMPLES = 4
"""The number of samples in a micro-batch of all processes together."""


def outcome(case: str, strategy: str, model_args: dict[str, Any], folder: Path) -> dict[str, Any]:
    kind = {"model": "reward", "num_labels": 1} if case == "reward" else {}
    # With another beta, these trainers need a second model, which FSDP and DeepSpeed refuse.
    own = {"beta": 0.0} if case in ("grpo", "rloo") and not model_args else {}
    size = SAMPLES // WORLD
    resources = {"processes_per_node": WORLD, "strategy": STRATEGIES[strategy]} if WORLD > 1 else {}
    make = libraries.of_spec(
        f"trl/{case}",
        resources=resources,
        training={**own, "per_device_train_batch_size": size, "per_device_eval_batch_size": size},
        **kind,
        **model_args,
    )
    first = make(str(folder))
    before = checksum(first, folder / "before")
    first.train()
    second = make(str(folder))
    second.train(resume_from_checkpoint=str(folder / "checkpoint-2"))
    return {
        "losses": [log["loss"] for log in first.state.log_history if "loss" in log],
        "before": before,
        "weights": checksum(first, folder / "first"),
        "resumed weights": checksum(second, folder / "second"),
    }


def checksum(trainer: Any, folder: Path) -> str | None:
    """Returns a checksum of the weights that the main process has saved, and None in all other processes."""
    trainer.save_model(str(folder))
    if RANK > 0:
        return None
    return hashlib.sha256(b"".join(file.read_bytes() for file in sorted(folder.glob("*.safetensors")))).hexdigest()


def main(root: Path, strategy: str) -> None:
    import footplate

    libraries.FOLDER = root
    tempfile.tempdir = str(root)
    torch.set_num_threads(1)
    footplate.install()
    if strategy == "single":
        libraries.small_models()
    elif strategy.startswith("zero"):
        # DeepSpeed would compile an extension for a CPU's shared memory, which takes minutes.
        communication: Any = import_module("deepspeed.comm.torch")
        communication.build_shm_op = lambda: None
    outcomes: dict[str, Any] = {}
    whole = WHOLE_MODEL + (SECOND_MODEL if strategy in ("single", "ddp") else ())
    for kind, cases, model_args in (("whole", whole, {}), ("adapter", ADAPTER, LORA)):
        for case in cases:
            name = f"{case}, {kind}"
            try:
                outcomes[name] = outcome(case, strategy, model_args, root / strategy / name.replace(", ", "-"))
            except Exception:
                outcomes[name] = {"error": traceback.format_exc()}
    if RANK == 0:
        (root / f"{strategy}.json").write_text(json.dumps(outcomes))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
