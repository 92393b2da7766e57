"""A callback that stops training at a step until the test opens the gate.

So a test can act while a job is at that step, however slow the machine is.

    gate = Gate(system.processes.folder / "gate")
    job = system.submit(callbacks=[gate.at(15)])
    gate.until_reached(15)
    gate.open(15)

`System` registers the callback.
"""

from __future__ import annotations

import gc
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from footplate.trainer.callbacks import TrainerCallback

if TYPE_CHECKING:
    from footplate.runtime.emit import Emit
    from tests.support.system import JSON


class Gate:
    """A gate, as the test uses it. Each step stops training once: later attempts and other jobs pass it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def at(self, *steps: int) -> JSON:
        """Returns the spec of a callback that stops training at the end of these steps, after their logs and saves."""
        return {"use": "test/gate", "args": {"at": str(self.folder), "steps": list(steps)}}

    def is_reached(self, step: int) -> bool:
        return (self.folder / f"{step}").exists()

    def open(self, *steps: int) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        for step in steps:
            (self.folder / f"{step}.open").touch()


class Gatekeeper(TrainerCallback):
    """The callback in training. A requested stop opens the gate, because the loop checks for stops after a step."""

    def __init__(self, at: str, steps: list[int]) -> None:
        self.folder, self.steps = Path(at), steps

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        marker = self.folder / f"{state.global_step}"
        if state.global_step not in self.steps or marker.exists():
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        marker.touch()
        may_pass, emit = marker.with_name(f"{marker.name}.open"), _emit()
        while not may_pass.exists() and os.pread(emit.stop_fd, 1, 0) == b"\0":
            time.sleep(0.01)


def _emit() -> Emit:
    """Returns the only `Emit` of a training process, which user code has no other way to get."""
    from footplate.runtime.emit import Emit

    return next(candidate for candidate in gc.get_objects() if isinstance(candidate, Emit))
