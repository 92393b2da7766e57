"""Measures a cold process to the end of its imports and of its first step: `python -m bench.loops.starting LOOP`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from typing import Any

IMPORTS = {
    "raw": "import torch",
    "accelerate": "import torch; from accelerate import Accelerator",
    "transformers": "from transformers import Trainer, TrainingArguments",
    "ours": "from footplate import Trainer, TrainingArguments",
}


def start(loop: str, environment: dict[str, str]) -> dict[str, float]:
    """Returns the wall time and the CPU time to both points, in seconds."""
    began = time.time()
    process = subprocess.run(
        [sys.executable, "-m", "bench.loops.starting", loop], env=environment, stdout=subprocess.PIPE, check=True
    )
    times: dict[str, float] = json.loads(process.stdout.splitlines()[-1])
    return {name: value - began if name.startswith("wall") else value for name, value in times.items()}


def main(loop: str) -> None:
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    exec(IMPORTS[loop])
    times: dict[str, Any] = {"wall to import": time.time(), "cpu to import": time.process_time()}

    from bench.loops.training import train
    from bench.loops.work import WORKS

    train(loop, WORKS["mlp"], 1, lambda step, loss: None)
    print(json.dumps({**times, "wall to step": time.time(), "cpu to step": time.process_time()}))


if __name__ == "__main__":
    main(sys.argv[1])
