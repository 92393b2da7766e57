"""The library that trains: torch and Accelerate, usable alone. It knows no job, no queue, no Redis, no SQL.

Importing this package imports nothing; the names come from `footplate` or from the modules below.
"""

from importlib import import_module

WHAT_TRAINING_IMPORTS = (
    "torch",
    "torch._dynamo",
    "accelerate",
    "worker.trainer.trainer",
    "worker.trainer.strategies.single",
    # torch imports these when it first reads a batch, loads a checkpoint or starts a loading process.
    "multiprocessing.popen_fork",
    "multiprocessing.queues",
    "numpy.ctypeslib",
    "torch.profiler._cupti_monitor",
    "torch.utils.serialization.config",
)


def preload() -> None:
    """Imports all that training will, and runs nothing: for a parent that forks, so that no child pays for it."""
    for name in WHAT_TRAINING_IMPORTS:
        import_module(name)
