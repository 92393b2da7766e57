"""Runs scenarios in one process of several, and writes their results. Each scenario is a function of scenarios.py.

Starting processes that import torch costs seconds; so one start runs many scenarios, and the tests read the results.
"""

from __future__ import annotations

import json
import os
import time
import traceback
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

from tests.trainer.distributed import scenarios

torch.set_num_threads(1)


def without_building() -> None:
    """Stops DeepSpeed from compiling its shared-memory communication, which takes minutes and is optional."""
    way: Any = import_module("deepspeed.comm.torch")
    way.build_shm_op = lambda: None


def main(runs: list[dict[str, object]], folder: Path) -> None:
    if any("deepspeed" in scenario for scenario in runs):
        without_building()
    rank = int(os.environ.get("RANK", "0"))
    for number, scenario in enumerate(runs):
        options = dict(scenario)
        name, ends = str(options.pop("run")), bool(options.pop("ends", False))
        start_time = time.monotonic()
        raised: Exception | None = None
        try:
            content = getattr(scenarios, name)(folder, **options)
        except Exception as error:
            raised, notes = error, getattr(error, "__notes__", [])
            content = {"error": f"{type(error).__name__}: {error}", "notes": notes, "trace": traceback.format_exc()}
        result = {"seconds": round(time.monotonic() - start_time, 2), "found": content}
        (folder / f"result-{number}-{rank}.json").write_text(json.dumps(result), encoding="utf-8")
        if ends and raised is not None:
            raise raised
