"""The library that trains models with torch and Accelerate. It can be used alone, and does not know jobs or services.

Importing this package imports nothing. The public names come from `footplate`, others from the modules below.
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
"""Further modules to import, which exist only in versions of torch newer than 2.11."""


def preload() -> None:
    """Imports the modules that training needs. A process that forks training processes calls this before it forks."""
    for name in WHAT_TRAINING_IMPORTS:
        import_module(name)
    for name in NEWER:
        if find_spec(name):
            import_module(name)
