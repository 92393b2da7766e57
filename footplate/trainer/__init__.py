"""The library that trains: torch and Accelerate, usable alone. It knows no job, no queue, no Redis, no SQL.

Importing this package imports nothing; the names come from `footplate` or from the modules below.
"""

from importlib import import_module
from importlib.util import find_spec

WHAT_TRAINING_IMPORTS = (
    "torch",
    "torch._dynamo",
    "accelerate",
    "footplate.trainer.trainer",
    "footplate.trainer.strategies.single",
    # torch imports these when it first reads a batch, loads a checkpoint or starts a loading process.
    "multiprocessing.popen_fork",
    "multiprocessing.queues",
    "numpy.ctypeslib",
    "torch.utils.serialization.config",
)
NEWER = ("torch.profiler._cupti_monitor",)
"""Beside these, what torch 2.11 does not have yet."""


def preload() -> None:
    """Imports all that training will, and runs nothing: for a parent that forks, so that no child pays for it."""
    for name in WHAT_TRAINING_IMPORTS:
        import_module(name)
    for name in NEWER:
        if find_spec(name):
            import_module(name)
