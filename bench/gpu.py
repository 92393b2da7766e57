"""Measures GPT-2 small in bf16 on one GPU, beside a tuned loop by hand and transformers' Trainer if it is installed.

    python -m bench gpu [--quick] [--write]        the table
    python -m bench.gpu --trace FOLDER             the same, and a trace of ten steps of each, for chrome://tracing

The loop by hand uses fused AdamW and torch.compile. It pins batches and copies them one ahead on a stream of their own.
It reads nothing from the device between logs. Both Trainers get arguments for the same behaviour. This needs torch,
accelerate, safetensors and pydantic. Without a GPU, a tiny model shows that all of this runs, and the figures mean
nothing.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

from bench import report
from bench.loops.race import LOOPS, race

NEEDED = ("torch", "accelerate", "safetensors", "pydantic", "numpy")


def run(folder: Path, *, quick: bool = False, trace: str | None = None) -> list[report.Row]:
    if missing_names := [name for name in NEEDED if find_spec(name) is None]:
        sys.exit(f"bench gpu needs {', '.join(missing_names)}, which is not installed: put the wheels on PYTHONPATH")
    device = _device()
    loops = [loop for loop in LOOPS if loop != "accelerate" and (loop != "transformers" or find_spec(loop))]
    compiles, turns = device is not None and not quick, 1 if quick else 9
    steps = 20 if device else 10
    results = race("filling", turns=turns, loops=loops, on_one_core=False, whole=steps * (turns + 1), compiles=compiles)
    waits = race("waiting", turns=0, loops=loops, on_one_core=False, compiles=compiles, trace=trace)
    speeds = {loop: [turn["speed"] for turn in results[loop]] for loop in loops}
    what = f"GPT-2 small, bf16{', compiled' if compiles else ''}, {device}" if device else "a tiny GPT, no GPU"
    rows = [report.Row(f"{what}: {loop}", speeds[loop], "tokens/s") for loop in loops]
    rows.append(report.Row(f"{what}: ours, relative to the loop by hand", _quotients(speeds, "raw"), "×", "≥ 1.0"))
    if "transformers" in loops:
        rows.append(
            report.Row(f"{what}: ours, relative to transformers'", _quotients(speeds, "transformers"), "×", "≥ 1.1")
        )
    rows += [report.Row(f"{what}: loss at the end, {loop}", [results[loop][-1]["loss"]], "") for loop in loops]
    rows += [
        report.Row(f"{what}: peak memory, {loop}", [results[loop][-1]["bytes"] / 1e9], "GB") for loop in loops if device
    ]
    rows += [
        report.Row(f"{what}: the host waits in ten steps with one log, {loop}", [float(waits[loop])], "times")
        for loop in loops
    ]
    return rows


def _quotients(speeds: dict[str, list[float]], to: str) -> list[float]:
    return [speed / other_speed for speed, other_speed in zip(speeds["ours"], speeds[to], strict=True)]


def _device() -> str | None:
    """Returns the name of the GPU. A child looks, because the children of a process that has looked cannot use it."""
    question = "import torch; print(torch.cuda.get_device_name() if torch.cuda.is_available() else '')"
    answer = subprocess.run([sys.executable, "-c", question], stdout=subprocess.PIPE, text=True, check=True)
    return answer.stdout.strip() or None


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m bench.gpu")
    parser.add_argument("--quick", action="store_true", help="without compiling, and few steps")
    parser.add_argument("--trace", metavar="FOLDER", help="also write traces of ten steps")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="fp-bench-gpu-") as folder:
        print(report.table(run(Path(folder), quick=options.quick, trace=options.trace)))
